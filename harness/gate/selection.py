"""Selection of the compared jobs from the inventories of two trees, and of those that need no measuring.

A case that only one tree has (by identity, not by name), or a kernel that only one has, is new or removed. Case files
outside the trees belong to both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opgauge.harness.case.filters import matches_any, matches_any_case, require_cases, require_matches
from opgauge.harness.errors import NothingError
from opgauge.harness.gate.plan import GatePlan, Plain, TreeTrials, lay_out
from opgauge.harness.gate.policy import Policy
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import BASE, HEAD
from opgauge.harness.gate.unchanged import touched_folders, touched_note, unchanged_subjects
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.project.active import measured
from opgauge.harness.project.loading import project_at
from opgauge.harness.result.summary import BASELINE, OPTIMIZED, PEERS
from opgauge.harness.run.tree import CASES
from opgauge.harness.worker import protocol
from opgauge.ops import Device

if TYPE_CHECKING:
    from opgauge.harness.gate.stored import Stored

GATE_TAG = "gate"
"""Tag of the cases that are gated by default."""
MANY_CPUS = 8
"""CPUs from which three processes import at once."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters; empty means all, except that the baseline, peers and variants must be named.

    cases: patterns of opgauge.harness.judge.pattern. tags: without tags and cases, those tagged `gate`, if there
    are any. changed: only ops that the difference of the trees can reach. trust_hash: exclude kernels whose code does
    not differ. reports: files that the command writes.
    """

    paths: tuple[Path, ...] = ()
    cases: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    changed: bool = False
    trust_hash: bool = False
    reports: tuple[Path, ...] = ()


def plan(pool: WorkerPool, selection: Selection, policy: Policy, stored: Stored | None = None) -> GatePlan:
    """Query both trees (only the head if the base is stored) and plan the jobs.

    Raises CaseError, TreeError, and NothingError if none is left.
    """
    head_path = pool.trees[HEAD].path
    paths = selection.paths or _case_paths(head_path)
    request = protocol.TakeInventory(tuple(str(path.resolve()) for path in paths))
    if stored is None:  # nothing is measured yet: both may import at once, and a third that a GPU's ceilings may need
        pool.prepare((HEAD, BASE, HEAD) if (os.cpu_count() or 1) >= MANY_CPUS else (HEAD, BASE), preload=())
    (head,) = pool.ask(HEAD, [request])
    base, notes = _ask_base(pool, selection, paths, head["cases"]) if stored is None else ({}, [])
    host_only = set() if selection.devices else _host_only([head, base])
    asked = [str(Device.parse(name)) for name in selection.devices or _default_devices(head, host_only)]
    devices = tuple(device for device in asked if Device.parse(device).backend in head["available"])
    notes += [f"{device}: there is no such device here" for device in asked if device not in devices]
    chosen, variants = _tagged(selection, head["cases"]), _variants([head, base])
    every_head = _trials_of(head, head["cases"], devices, host_only)
    every_base = _remembered(stored) if stored else _trials_of(base, base["cases"], devices, host_only)
    _require_matches(selection, [*head["cases"], *base.get("cases", ())], {**every_base.trials, **every_head.trials})
    notes += _unmatched_rules(policy, selection, {**every_base.trials, **every_head.trials})
    in_head, in_base = _select(every_head, every_base, chosen, variants)
    unchanged = unchanged_subjects(pool, in_head, in_base, notes) if selection.trust_hash else set()
    if selection.changed:
        touched = touched_folders(head_path, pool.trees, [head, base], selection.reports)
        notes.append(touched_note(touched))
        in_head, in_base = (
            _only(one, touched.ops, {**in_base.folders, **in_head.folders}) for one in (in_head, in_base)
        )
    if not in_head.trials and not in_base.trials:
        there = f"cases: {len(head['cases'])}, kernels: {len(head['kernels'])}"
        notes += _other_backends(head, asked)
        msg = f"nothing to compare is selected ({there} in {pool.trees[HEAD]}){_hint(notes)}"
        raise NothingError(msg)
    if _need_torch([head, base], (*in_head.trials, *in_base.trials)):
        pool.imported.add("torch")
    return lay_out(in_head, in_base, unchanged, policy, devices, notes)


def _need_torch(inventories: Iterable[Plain], subjects: Iterable[Subject]) -> bool:
    """Whether some kernels take torch tensors, which the harness makes."""
    keys = {(subject.op, subject.implementation, Device.parse(subject.device).backend) for subject in subjects}
    return any(
        kernel.get("arrays") == "torch" and (kernel["op"], kernel["implementation"], kernel["backend"]) in keys
        for inventory in inventories
        for kernel in inventory.get("kernels", ())
    )


def _ask_base(
    pool: WorkerPool, selection: Selection, paths: Sequence[Path], cases: Sequence[Plain]
) -> tuple[dict[str, Any], list[str]]:
    """The base's inventory: its own case files, and the cases of files outside the trees that it can build.

    Without named files, its own configuration selects them, so that renamed or deleted files are read.
    """
    head_path, base_path = (pool.trees[side].path.resolve() for side in (HEAD, BASE))
    configured = [] if selection.paths else list(_configured_paths(base_path))
    inside = [path.resolve() for path in (*paths, *configured)]
    own = sorted(
        {str(base_path / path.relative_to(head_path)) for path in inside if path.is_relative_to(head_path)}
        | {str(path) for path in inside if path.is_relative_to(base_path)}
    )
    outside = [case for case in cases if not _counterpart(Path(case["file"]), head_path, base_path)]
    requests = (protocol.TakeInventory(tuple(own), lenient=True), protocol.CheckBuildable(tuple(cases)))
    base, refusals = pool.ask(BASE, requests)
    refused = {case["id"]: why for case, why in zip(cases, refusals, strict=True) if why}
    # a case that means something else in the base is no pair
    held = [case for case in base["cases"] if case["id"] not in refused]
    held += [case for case in outside if case["id"] not in refused]
    notes = [f"base: {note}" for note in base["notes"]]
    return {**base, "cases": held}, notes


def _unmatched_rules(policy: Policy, selection: Selection, subjects: Iterable[Subject]) -> list[str]:
    """Notes of the policy's rules that match no case; of other ops' rules too, unless only some files are read."""
    known = list(subjects)
    ops = {subject.op for subject in known}
    rules = [rule for rule in policy.unmatched(known) if not selection.paths or rule.cases.partition("/")[0] in ops]
    return [f"{rule.place}: the policy's rule for {rule.cases} matches no case" for rule in rules]


def _require_matches(selection: Selection, listed: Iterable[Plain], trials: Mapping[Subject, Plain]) -> None:
    """Raise FilterError for each value of the selection that matches nothing in either tree."""
    if not trials:
        return  # nothing can be measured on this machine, whatever is selected
    subjects = trials.keys()
    cases = [*listed, *(trial["case"] for trial in trials.values())]
    known = {
        "--op": [case["op"] for case in cases],
        "--tag": [tag for case in cases for tag in case["tags"]],
        "--dtype": [case["dtype"] for case in cases],
        "--name": [case["name"] for case in cases],
        "--implementation": [subject.implementation for subject in subjects],
    }
    filters = {
        "--op": selection.ops,
        "--tag": selection.tags,
        "--dtype": selection.dtypes,
        "--name": selection.names,
        "--implementation": selection.implementations,
    }
    require_matches(filters, known, anywhere=("--name",))
    require_cases(selection.cases, {(subject.path, subject.case_id) for subject in subjects})


def _case_paths(tree: Path) -> tuple[Path, ...]:
    project = measured()
    return project.cases if project is not None and project.cases else (tree / CASES,)


def _configured_paths(base: Path) -> tuple[Path, ...]:
    """Case files and folders that the project's configuration names in the base's checkout."""
    project = measured()
    return () if project is None else project_at(project, base).cases


def _counterpart(file: Path, head: Path, base: Path) -> bool:
    """Whether a case file of the head's tree is in the base too."""
    found = file.resolve()
    return found.is_relative_to(head) and (base / found.relative_to(head)).is_file()


def _variants(inventories: Iterable[Plain]) -> set[tuple[str, str]]:
    """Ops and implementations kept for comparison: declared so, or beside one called `optimized`."""
    kernels = [kernel for inventory in inventories for kernel in inventory.get("kernels", ())]
    optimized = {kernel["op"] for kernel in kernels if kernel["implementation"] == OPTIMIZED}
    return {
        (kernel["op"], kernel["implementation"])
        for kernel in kernels
        if kernel.get("variant") or (kernel["op"] in optimized and kernel["implementation"] != OPTIMIZED)
    }


def _select(
    head: TreeTrials, base: TreeTrials, chosen: Selection, variants: Collection[tuple[str, str]]
) -> tuple[TreeTrials, TreeTrials]:
    """Selected trials of either tree: a case that was renamed or lost a tag is the same case in both."""
    keys = {
        subject.key
        for tree in (head, base)
        for subject, trial in tree.trials.items()
        if _is_chosen(subject, trial["case"], chosen, variants)
    }
    return _restricted(head, keys), _restricted(base, keys)


def _restricted(tree: TreeTrials, keys: Collection[tuple[str, str, str]]) -> TreeTrials:
    trials = {subject: trial for subject, trial in tree.trials.items() if subject.key in keys}
    return replace(tree, trials=trials)


def _default_devices(head: Plain, host_only: Collection[str]) -> tuple[str, ...]:
    """The GPU if there is one, and the CPU for ops that have kernels nowhere else; without a GPU the CPU."""
    if "cuda" not in head["available"]:
        return ("cpu",)
    return ("cuda", "cpu") if host_only else ("cuda",)


def _other_backends(head: Plain, asked: Iterable[str]) -> list[str]:
    """A note where the head has kernels, but none for a device that was asked for."""
    backends = {kernel["backend"] for kernel in head["kernels"]}
    if not backends or not backends.isdisjoint(Device.parse(name).backend for name in asked):
        return []
    return [f"its kernels are for {' and '.join(sorted(backends))}, not for {' and '.join(asked)}"]


def _host_only(inventories: Iterable[Plain]) -> set[str]:
    """Ops with kernels for the CPU only, in both trees."""
    kernels = [kernel for inventory in inventories for kernel in inventory.get("kernels", ())]
    return {kernel["op"] for kernel in kernels} - {kernel["op"] for kernel in kernels if kernel["backend"] != "cpu"}


def _tagged(selection: Selection, cases: Iterable[Plain]) -> Selection:
    """The selection, with the tag `gate` if no tag is requested and some case has it."""
    if selection.tags or selection.cases or selection.names:
        return selection
    some = any(GATE_TAG in case["tags"] for case in cases if matches_any(selection.ops, [case["op"]]))
    return Selection(**{**_fields(selection), "tags": (GATE_TAG,)}) if some else selection


def _fields(selection: Selection) -> dict[str, Any]:
    return {name: getattr(selection, name) for name in Selection.__slots__}


def _trials_of(
    inventory: Plain, cases: Iterable[Plain], devices: Sequence[str], host_only: Collection[str] = ()
) -> TreeTrials:
    """Trials of a tree. host_only: ops that are measured on the CPU, if it is one of several devices."""
    by_key: dict[tuple[str, str, str], list[str]] = {}
    for kernel in inventory["kernels"]:
        by_key.setdefault((kernel["op"], kernel["backend"], kernel["dtype"]), []).append(kernel["implementation"])
    folders = {kernel["op"]: kernel["folder"] for kernel in inventory["kernels"] if kernel["folder"]}
    trials = {}
    for device in devices:
        backend = Device.parse(device).backend
        measured_here = [
            case for case in cases if not host_only or len(devices) == 1 or backend != "cpu" or case["op"] in host_only
        ]
        for case in measured_here:
            for name in sorted(by_key.get((case["op"], backend, case["dtype"]), ())):
                subject = Subject(case["op"], case["name"], case["id"], name, device)
                trials[subject] = {"case": case, "implementation": name, "backend": backend, "device": device}
    return TreeTrials(trials, folders)


def _remembered(stored: Stored) -> TreeTrials:
    """Trials of the stored results."""
    trials = {
        subject: {"case": {"tags": [], "file": "", **stored.cases[subject.case_id].data}} for subject in stored.blocks
    }
    return TreeTrials(trials, blocks={subject.key: stored.blocks[subject] for subject in trials})


def _is_chosen(
    subject: Subject, case: Plain, chosen: Selection, variants: Collection[tuple[str, str]] = frozenset()
) -> bool:
    wanted, name = chosen.implementations, subject.implementation
    ours = (
        matches_any(wanted, [name]) if wanted else name not in {BASELINE, *PEERS} and (subject.op, name) not in variants
    )
    return (
        ours
        and matches_any(chosen.ops, [subject.op])
        and matches_any(chosen.tags, case["tags"])
        and matches_any(chosen.dtypes, [case["dtype"]])
        and matches_any(chosen.names, [subject.case], anywhere=True)
        and matches_any_case(chosen.cases, subject.path, subject.case_id)
    )


def _only(tree: TreeTrials, touched: Collection[str] | None, folders: Mapping[str, str]) -> TreeTrials:
    if touched is None:
        return tree
    kept = {
        subject: trial
        for subject, trial in tree.trials.items()
        if folders.get(subject.op, subject.op) in touched or Path(trial["case"]["file"]).stem in touched
    }
    return TreeTrials(kept, tree.folders)


def _hint(notes: Iterable[str]) -> str:
    return "".join(f"; {note}" for note in notes)
