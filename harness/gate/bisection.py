"""The command that finds the commit of a change, by `git bisect` in a worktree beside the project's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from opgauge.harness.project.active import measured
from opgauge.harness.project.hook import untracked_files
from opgauge.harness.project.revision import repository_top
from opgauge.harness.run.submodules import recorded_submodules

BESIDE = "opgauge-bisect"
"""Worktree in which a bisection checks out; `git worktree remove` deletes it afterwards."""
UPDATE = "git submodule update --recursive --quiet || exit 125"
"""Command that fits initialized submodules to a commit, or skips it."""


def bisection(tree: Path, base: str, head: str, command: Sequence[str]) -> str:
    """Command for the project's folder that finds the first bad commit after `base`; empty if there is none.

    command: judges one commit. Files of the hook that git does not track are copied into the worktree. An `opgauge`
    that is installed from this tree would change with every step, therefore the worktree.
    """
    project = measured()
    top = repository_top(tree)
    root = tree if project is None else project.root
    if not root.is_relative_to(top):
        return ""  # the configuration names one checkout
    inner = root.relative_to(top)
    upwards = "/".join([".."] * len(inner.parts)) or "."
    beside = f"../{BESIDE}" if upwards == "." else f"{upwards}/../{BESIDE}"
    steps = [f"git worktree add --detach {beside} {head}"]
    untracked = (
        [] if project is None else sorted({str(path.relative_to(top)) for path in untracked_files(project, top)})
    )
    if untracked:
        steps.append(f"tar -C {upwards} -cf - {shlex.join(untracked)} | tar -C {beside} -xf -")
    paths = " -- ops" if project is None else ""
    steps += [f"cd {beside}", f"git bisect start {head} {base}{paths}"]
    return " && ".join([*steps, f"git bisect run {_script(top, inner, command)}"])


def _script(top: Path, inner: Path, command: Sequence[str]) -> str:
    """The command for `git bisect run`, which starts it in the repository's top folder."""
    before = [UPDATE] if recorded_submodules(top) else []
    before += [f"cd {shlex.quote(str(inner))} || exit 125"] if inner.parts else []
    plain = shlex.join(command)
    return f"sh -c {shlex.quote('; '.join([*before, plain]))}" if before else plain
