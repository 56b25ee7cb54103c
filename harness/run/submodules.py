"""Submodules of a temporary checkout, from repositories of the project: nothing is fetched."""

from __future__ import annotations

from pathlib import Path

from opgauge.harness.errors import RefError
from opgauge.harness.project.git import run_git

SUBMODULE = "160000"
"""Mode of a submodule's entry in the index of git."""


def check_out_submodules(repository: Path, checkout: Path) -> None:
    """Check out the submodules that `checkout` records, of those that `repository` has initialized; nested ones too.

    Raises RefError if a recorded commit is not there.
    """
    for commit, name in recorded_submodules(checkout):
        source = repository / name
        if not (source / ".git").exists():
            continue  # not initialized: this tree lacks its files too
        folder = checkout / name
        done = run_git(checkout, "clone", "--quiet", "--shared", "--no-checkout", str(source), str(folder))
        if not done.returncode:
            done = run_git(folder, "-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "--detach", commit)
        if done.returncode:
            msg = (
                f"submodule {name} cannot be checked out at {commit[:12]}: {done.stderr.strip()}; "
                f"fetch that commit: git -C {source} fetch origin {commit[:12]}"
            )
            raise RefError(msg)
        check_out_submodules(source, folder)


def recorded_submodules(checkout: Path) -> list[tuple[str, str]]:
    """Commit and path of each submodule in the index of a repository."""
    listed = run_git(checkout, "ls-files", "--stage", "-z").stdout.split("\0")
    entries = [line.partition("\t") for line in listed if line.startswith(f"{SUBMODULE} ")]
    return [(facts.split()[1], name) for facts, _, name in entries]


def is_readable(submodule: Path, commit: str) -> bool:
    """Whether a submodule is initialized and has a commit."""
    return (submodule / ".git").exists() and not run_git(submodule, "cat-file", "-e", f"{commit}^{{commit}}").returncode
