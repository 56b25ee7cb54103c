"""Code that does not differ between two trees, by their files or by the digest of what is compiled."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from filecmp import cmp
from pathlib import Path

from opgauge.harness.counting import counted
from opgauge.harness.gate.plan import Plain, TreeTrials
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import BASE, HEAD, SIDES
from opgauge.harness.project.active import measured
from opgauge.harness.project.changes import Touched, touched_ops
from opgauge.harness.project.hook import untracked_hook
from opgauge.harness.project.revision import repository_top
from opgauge.harness.run.tree import Tree, changed_files, changed_folders, untracked_files
from opgauge.harness.worker import protocol
from opgauge.ops import Device


def touched_folders(
    head: Path, trees: Mapping[str, Tree], inventories: Iterable[Plain], reports: Collection[Path] = ()
) -> Touched:
    """Ops, or folders of opgauge's own, that the difference of the trees can reach.

    reports: files that the command writes. They are no change, and neither is a hook that git does not track, nor what
    the builds of both trees have written.
    """
    commit = trees[BASE].commit.removesuffix("-dirty")
    project = measured()
    if project is None:
        names = changed_files(head, commit)
        folders = changed_folders(head, names)
        causes = [name for name in names if changed_folders(head, [name]) is None] if folders is None else ()
        return Touched(folders, tuple(causes))
    places = [(tree.path.resolve(), repository_top(tree.path).resolve()) for tree in trees.values()]
    sources: dict[str, set[str]] = {}
    for inventory in inventories:
        named = [(one["op"], one["source"]) for one in inventory.get("kernels", ())]
        for op, file in [*named, *((one["op"], one["file"]) for one in inventory.get("cases", ()))]:
            found = Path(file).resolve()
            sources.setdefault(op, set()).update(
                _name(found, tree) for tree, top in places if found.is_relative_to(top)
            )
    top = repository_top(head)
    same = [*untracked_hook(project, top), *reports]
    changed = [name for name in changed_files(top, commit) if not any(_is_inside(top / name, path) for path in same)]
    written = _written_by_builds(top, repository_top(trees[BASE].path), changed)
    return touched_ops(project, [_name(top / name, head) for name in changed if name not in written], sources)


def _name(file: Path, tree: Path) -> str:
    """The path of a file from a tree, with `../` if it is elsewhere in its repository."""
    return Path(os.path.relpath(file, tree.resolve())).as_posix()


def _written_by_builds(head: Path, base: Path, changed: Collection[str]) -> set[str]:
    """Changed files that the build of a checkout writes as well: git tracks them in neither tree, or they are equal."""
    if not changed or head.resolve() == base.resolve():
        return set()  # results of a stored run have no checkout
    both = {name for name in changed if (head / name).is_file() and (base / name).is_file()}
    equal = {name for name in both if cmp(head / name, base / name, shallow=False)}
    return equal | (both & untracked_files(head) & untracked_files(base))


def _is_inside(file: Path, path: Path) -> bool:
    """Whether a file is this one, or in this folder."""
    return file.resolve().is_relative_to(path.resolve())


def touched_note(touched: Touched) -> str:
    """The note that names the ops in which the trees differ, or the file because of which all are compared."""
    if touched.ops is not None:
        return f"changed: {', '.join(sorted(touched.ops)) or 'no op'}; --all compares the others too"
    first, *others = touched.shared or ("a changed file",)
    more = f" and {counted(len(others), 'more changed file')} count" if others else " changed and counts"
    is_declared = (project := measured()) is None or bool(project.changed)
    advice = "" if is_declared else "; [changed] in the configuration says which files count for which op"
    return f"{first}{more} for every op: all are compared{advice}"


def unchanged_subjects(pool: WorkerPool, head: TreeTrials, base: TreeTrials, notes: list[str]) -> set[tuple[str, str]]:
    """Ops and devices whose code has the same digest in both trees; a note lists them."""
    pairs = sorted({(subject.op, subject.device) for subject in head.trials} & {(s.op, s.device) for s in base.trials})
    places = sorted(
        {(head.folders[op], device) for op, device in pairs if head.folders.get(op) == base.folders.get(op)}
    )
    requests = [protocol.DigestSources(folder, Device.parse(device).backend) for folder, device in places]
    digests = {side: pool.ask(side, requests) for side in SIDES}
    same = set()
    for place, ours, theirs in zip(places, digests[HEAD], digests[BASE], strict=True):
        if ours["host"] == theirs["host"] and (ours["device"] == theirs["device"] or _same_cubins(pool, *place)):
            same.add(place)
    notes.append(
        f"trusted as unchanged: {', '.join(f'{folder} on {device}' for folder, device in sorted(same)) or 'none'}"
    )
    return {(op, device) for op, device in pairs if (head.folders.get(op, ""), device) in same}


def _same_cubins(pool: WorkerPool, folder: str, device: str) -> bool:
    request = protocol.DigestCubins(folder, Device.parse(device).index)
    ours, theirs = (pool.ask(side, [request])[0] for side in SIDES)
    return bool(ours == theirs)
