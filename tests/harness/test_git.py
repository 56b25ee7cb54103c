"""Git commands of the harness, and the temporary checkout that they make."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from opgauge.harness.errors import RefError
from opgauge.harness.project.git import git
from opgauge.harness.project.revision import read_revision
from opgauge.harness.report.commits import read_commits
from opgauge.harness.run.tree import changed_files, checkout, default_base, resolve


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    (tmp_path / "kernel.py").write_text("1\n")
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run(["git", "-C", str(tmp_path), *names, *command], check=True)
    return tmp_path


def test_a_file_name_may_be_no_text(repository: Path) -> None:
    """A name that is not UTF-8 counts as a changed file."""
    Path(os.fsdecode(os.fsencode(repository) + b"/\xff.py")).write_text("2\n")
    assert changed_files(repository, "HEAD") == ["\N{REPLACEMENT CHARACTER}.py"]


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision is unknown, and what needs git says so."""
    monkeypatch.setenv("PATH", str(repository))
    assert read_revision(repository).commit == git(repository, "rev-parse", "HEAD") == ""
    for needs_git in (lambda: read_commits(repository), lambda: changed_files(repository, "HEAD")):
        with pytest.raises(RefError, match="git is needed"):
            needs_git()


def test_a_commit_that_is_not_there_has_a_reason(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a shallow clone, a first commit and a folder without git; a misspelt name needs none."""
    clone, plain = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("plain")
    git(repository, "branch", "-M", "main")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "two", "--allow-empty")
    git(clone, "clone", "-q", "--depth=1", repository.as_uri(), ".")
    git(repository, "reset", "-q", "--soft", "HEAD~1")
    apart, empty = tmp_path_factory.mktemp("apart"), tmp_path_factory.mktemp("empty")
    git(apart, "clone", "-q", repository.as_uri(), ".")
    git(apart, "checkout", "-qb", "topic")
    git(apart, "branch", "-qD", "main")
    git(empty, "init", "-q")
    for tree, ref, why in (
        (clone, "HEAD~1", "(a shallow clone has only its last commits: git fetch --unshallow)"),
        (apart, "main", "(did you mean 'origin/main'?)"),
        (empty, "HEAD", "(it has no commit yet: commit first)"),
        (repository, "HEAD~1", "(it has one commit: commit a change, or name --base)"),
        (repository, "mian", f"no commit 'mian' in {repository}"),
        (plain, "main", "(fatal: not a git repository (or any of the parent directories): .git)"),
    ):
        with pytest.raises(RefError) as raised:
            resolve(tree, ref)
        assert str(raised.value).endswith(why)
    for tree, why in ((repository, "commit a change"), (plain, "not a git repository"), (empty, "no commit yet")):
        with pytest.raises(RefError, match=why):
            default_base(tree)


def test_a_branch_goes_before_a_tag_of_its_name(repository: Path) -> None:
    """Git prefers the tag; the base is the branch, named or by default."""
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(repository, "branch", "-M", "main")
    git(repository, "checkout", "-qb", "topic")
    git(repository, *names, "commit", "-qm", "two", "--allow-empty")
    git(repository, "tag", "main")
    assert resolve(repository, "main") == default_base(repository) == git(repository, "rev-parse", "HEAD~1")


def test_the_default_branch_may_have_any_name(repository: Path) -> None:
    """`init.defaultBranch` gives it where neither the remote nor a usual name does."""
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(repository, "branch", "-M", "trunk")
    git(repository, "checkout", "-qb", "topic")
    git(repository, *names, "commit", "-qm", "two", "--allow-empty")
    git(repository, "config", "init.defaultBranch", "other")
    with pytest.raises(RefError, match=r"no default branch \(origin/HEAD, main, master or init.defaultBranch\)"):
        default_base(repository)
    git(repository, "config", "init.defaultBranch", "trunk")
    assert default_base(repository) == git(repository, "rev-parse", "trunk")


def test_a_default_branch_of_another_history_is_named(repository: Path) -> None:
    """It is there, and so the reason is not that there is none."""
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(repository, "branch", "-M", "main")
    git(repository, "checkout", "-q", "--orphan", "other")
    git(repository, *names, "commit", "-qm", "two", "--allow-empty")
    with pytest.raises(RefError, match="no commit in common with heads/main: name --base"):
        default_base(repository)


def test_a_checkout_survives_the_terminal_under_nohup(repository: Path) -> None:
    """SIGHUP stays ignored while a checkout exists."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with checkout(repository, "HEAD") as base:
            os.kill(os.getpid(), signal.SIGHUP)
            assert (base / "kernel.py").is_file()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_checkout_is_of_the_folder_by_its_earlier_name(repository: Path) -> None:
    """A project's folder that was moved is compared with what it was, not taken for a new one; others are new."""
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for name in ("alpha", "beta"):
        (repository / "packages" / name).mkdir(parents=True)
        (repository / "packages" / name / "opgauge.toml").write_text(f"# {name}\n" * 9)
        (repository / "packages" / name / "kernel.py").write_text(f"{name} = 1\n" * 9)
    git(repository, "add", ".")
    git(repository, *names, "commit", "-qm", "packages")
    git(repository, "mv", "packages/alpha", "packages/gamma")
    (repository / "packages" / "gamma" / "kernel.py").write_text("alpha = 1\n" * 9 + "changed = 1\n")
    with checkout(repository / "packages" / "gamma", "HEAD") as base:
        assert base.parts[-2:] == ("packages", "alpha")
        assert (base / "opgauge.toml").read_text().startswith("# alpha")
    new = repository / "packages" / "delta"
    new.mkdir()
    (new / "opgauge.toml").write_text("# delta\n")
    git(repository, "add", ".")
    with checkout(new, "HEAD") as base:
        assert base.parts[-2:] == ("packages", "delta")
