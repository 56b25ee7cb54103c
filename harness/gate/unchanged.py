"""Code that does not differ between two trees, by their files or by the digest of what is compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from filecmp import cmp
from pathlib import Path

from opgauge.harness.gate.plan import Plain, TreeTrials
from opgauge.harness.gate.pool import WorkerPool
from opgauge.harness.gate.record import BASE, HEAD, SIDES
from opgauge.harness.project.active import measured
from opgauge.harness.project.changes import touched_ops
from opgauge.harness.project.hook import untracked_hook
from opgauge.harness.project.revision import repository_top
from opgauge.harness.run.tree import Tree, changed_files, changed_folders, untracked_files
from opgauge.harness.worker import protocol
from opgauge.ops import Device


def touched_folders(
    head: Path, trees: Mapping[str, Tree], inventories: Iterable[Plain], reports: Collection[Path] = ()
) -> set[str] | None:
    """Ops, or folders of opgauge's own, that the difference of the trees can reach; None for all.

    reports: files that the command writes. They are no change, and neither is a hook that git does not track, nor what
    the builds of both trees have written.
    """
    commit = trees[BASE].commit.removesuffix("-dirty")
    project = measured()
    if project is None:
        return changed_folders(head, commit)
    roots = [tree.path.resolve() for tree in trees.values()]
    sources: dict[str, set[str]] = {}
    for inventory in inventories:
        named = [(one["op"], one["source"]) for one in inventory.get("kernels", ())]
        for op, file in [*named, *((one["op"], one["file"]) for one in inventory.get("cases", ()))]:
            found = Path(file).resolve()
            sources.setdefault(op, set()).update(
                found.relative_to(root).as_posix() for root in roots if found.is_relative_to(root)
            )
    same = [*untracked_hook(project, repository_top(head)), *reports]
    changed = [name for name in changed_files(head, commit) if not any(_is_inside(head / name, path) for path in same)]
    return touched_ops(project, sorted(set(changed) - _written_by_builds(head, trees[BASE].path, changed)), sources)


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


def touched_note(touched: Collection[str] | None) -> str:
    """The note that names the ops in which the trees differ."""
    if touched is None:
        return "a changed file counts for every op: all are compared"
    return f"changed: {', '.join(sorted(touched)) or 'no op'}; --all compares the others too"


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
