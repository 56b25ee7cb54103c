"""A project whose kernels are a git submodule, in a folder of its repository, with a hook that git does not track."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opgauge.harness.errors import RefError
from opgauge.harness.gate.annotation import annotate
from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.gate.record import BASE, HEAD, Job, JobRecord
from opgauge.harness.gate.unchanged import touched_folders, touched_note
from opgauge.harness.project.active import use
from opgauge.harness.project.changes import Touched
from opgauge.harness.project.configuration import read_project
from opgauge.harness.project.loading import build
from opgauge.harness.project.revision import read_revision
from opgauge.harness.run.submodules import check_out_submodules
from opgauge.harness.run.tree import Tree, changed_files, checkout
from tests.gateruns import a_run, compared
from tests.harness.test_gate_project import FILES, QUICK, ForeignProject
from tests.tinytree import ROOT

HOOK = {name: FILES[name] for name in ("opgauge.toml", "policy.yaml", "bench/doubled.py", "cases/doubled.yaml")}
HOOK["bench/doubled.h"] = ""
ONCE = (*QUICK, "--pairs", "1", "--most-pairs", "1")
KERNELS = '''\
"""The code that is measured."""

from time import perf_counter

SECONDS = 300e-6


def multiply(x, factor):
    """A product, after a known time."""
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        pass
    return x * x.dtype.type(factor)
'''


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder."""
    names = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always")
    command = ["git", *names, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class Monorepo(ForeignProject):
    """A repository with the submodule `packages/numbers/kernels`; path: of the project in `packages/numbers`."""

    def __init__(self, folder: Path) -> None:
        self.kernels, self.top = folder / "kernels", folder / "monorepo"
        self.path = self.top / "packages" / "numbers"
        for made in (self.kernels, self.path):
            made.mkdir(parents=True)
        (self.kernels / "__init__.py").write_text(KERNELS)
        for top in (self.kernels, self.top):
            git(top, "init", "--quiet", "--initial-branch=main")
        git(self.kernels, "add", "--all")
        git(self.kernels, "commit", "--quiet", "-m", "kernels")
        (self.top / "README.md").write_text("Numbers.\n")
        (self.top / ".gitignore").write_text("__pycache__/\n")
        git(self.top, "submodule", "--quiet", "add", str(self.kernels), "packages/numbers/kernels")
        self.commit("first")
        for name, text in HOOK.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text.replace("end = perf_counter() + SECONDS", "end = 0"))

    def commit(self, subject: str, **replaced: str) -> str:
        """Commit the submodule with text replaced, and the repository with it; returns the commit."""
        submodule = self.path / "kernels"
        for before, after in replaced.items():
            file = submodule / "__init__.py"
            file.write_text(file.read_text().replace(before, after))
            git(submodule, "commit", "--quiet", "--all", "-m", subject)
            git(submodule, "push", "--quiet", "origin", "HEAD:refs/heads/pushed")
        (self.top / "notes.txt").write_text(subject)
        git(self.top, "add", "notes.txt", ".gitignore", "README.md", "packages/numbers/kernels")
        git(self.top, "commit", "--quiet", "-m", subject)
        return git(self.top, "rev-parse", "HEAD")


@pytest.fixture
def monorepo(tmp_path: Path) -> Monorepo:
    """A repository of one commit and a hook."""
    return Monorepo(tmp_path)


def test_a_base_has_its_submodules(monorepo: Monorepo) -> None:
    """Each at the commit that the base records; `.git` is a folder, and the user's repository lists no worktree."""
    first = git(monorepo.top, "rev-parse", "HEAD")
    monorepo.commit("second", **{"300e-6": "600e-6"})
    with checkout(monorepo.path, first) as base:
        assert "300e-6" in (base / "kernels" / "__init__.py").read_text()
        assert (base.parents[1] / ".git").is_dir()
        assert git(base, "status", "--porcelain") == ""
        assert git(base, "rev-parse", "HEAD") == first
        assert git(monorepo.top, "worktree", "list").count("\n") == 0
        assert git(monorepo.top, "gc", "--quiet") == ""
        assert git(base, "log", "-1", "--format=%s") == "first"
    assert not base.exists()
    assert git(monorepo.top, "status", "--porcelain", "--untracked-files=no") == ""


def test_two_gates_may_begin_at_once(monorepo: Monorepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worktree is not complete until its `.git` is a folder: what another gate prunes meanwhile leaves it alone."""
    move = shutil.move

    def prune_and_move(source: Path, target: Path) -> None:
        git(monorepo.top, "worktree", "prune", "--expire", "now")
        move(source, target)

    monkeypatch.setattr(shutil, "move", prune_and_move)
    with checkout(monorepo.path, git(monorepo.top, "rev-parse", "HEAD")) as base:
        assert git(base, "status", "--porcelain") == ""
    assert not (monorepo.top / ".git" / "worktrees").exists()


def test_a_hook_of_git_gates_other_checkouts(monorepo: Monorepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git's hooks and bisections name their repository in variables, which must not lead to it from the base."""
    first = git(monorepo.top, "rev-parse", "HEAD")
    second = monorepo.commit("second", **{"300e-6": "600e-6"})
    index = (monorepo.top / ".git" / "index").read_bytes()
    monkeypatch.setenv("GIT_DIR", str(monorepo.top / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(monorepo.top / ".git" / "index"))
    with checkout(monorepo.path, first) as base:
        assert "300e-6" in (base / "kernels" / "__init__.py").read_text()
    assert read_revision(monorepo.path).commit == second
    assert (monorepo.top / ".git" / "index").read_bytes() == index


def test_files_of_a_submodule_count_as_changed(monorepo: Monorepo) -> None:
    """Committed or not, they are listed by their own names, which the paths of `[changed]` may match; no bytecode."""
    first = git(monorepo.top, "rev-parse", "HEAD")
    assert not [name for name in changed_files(monorepo.path, first) if name.startswith("kernels")]
    monorepo.commit("second", **{"300e-6": "600e-6"})
    (monorepo.path / "kernels" / "new.py").write_text("")
    (monorepo.path / "kernels" / "__pycache__").mkdir()
    (monorepo.path / "kernels" / "__pycache__" / "new.pyc").write_text("")
    found = changed_files(monorepo.path, first)
    assert [name for name in found if name.startswith("kernels")] == ["kernels/__init__.py", "kernels/new.py"]


def test_an_untracked_hook_and_reports_are_no_change(monorepo: Monorepo) -> None:
    """Both trees use the same hook, and nothing reads what the gate writes; any other new file counts for every op."""
    first = git(monorepo.top, "rev-parse", "HEAD")
    use(read_project(monorepo.path / "opgauge.toml"))
    trees = {BASE: Tree(monorepo.path, first, "main"), HEAD: Tree(monorepo.path, first, "this tree")}
    report = monorepo.path / "gate.xml"
    report.write_text("")
    try:
        assert touched_folders(monorepo.path, trees, (), [report]).ops == set()
        assert touched_folders(monorepo.path, trees, ()).ops is None
        git(monorepo.top, "add", "packages/numbers/cases", "packages/numbers/opgauge.toml")
        assert touched_folders(monorepo.path, trees, (), [report]).ops is None
    finally:
        use(None)


def test_what_a_build_writes_is_no_change(monorepo: Monorepo) -> None:
    """Nor in a submodule, nor a tracked file that it writes alike; a file that the user adds is one."""
    (monorepo.path / "version.py").write_text("1\n")
    git(monorepo.top, "add", "packages/numbers/version.py")
    commit = monorepo.commit("second")
    (monorepo.path / "kernels" / "notes.md").write_text("A document is no change either.\n")
    git(monorepo.path / "kernels", "add", "notes.md")
    text = "echo $$ >made.o; echo $$ >kernels/made.o; echo 2 >version.py"
    (monorepo.path / "opgauge.toml").write_text(f'{HOOK["opgauge.toml"]}build = "{text}"\n')
    project = use(read_project(monorepo.path / "opgauge.toml"))
    assert project is not None
    try:
        with checkout(monorepo.path, commit) as base:
            for tree in (monorepo.path, base):
                build(project, tree)
            trees = {BASE: Tree(base, commit, "main"), HEAD: Tree(monorepo.path, commit, "this tree")}
            assert touched_folders(monorepo.path, trees, ()).ops == set()
            (monorepo.path / "mine.o").write_text("")
            assert touched_folders(monorepo.path, trees, ()).ops is None
    finally:
        use(None)


def test_a_change_elsewhere_in_the_repository_is_one(monorepo: Monorepo) -> None:
    """A header of another folder may be compiled in: it counts as a file of the project does, and the note names it."""
    (monorepo.top / "common").mkdir()
    (monorepo.top / "common" / "clip.h").write_text("first")
    (monorepo.top / ".gitignore").write_text("packages/numbers/*.o\n__pycache__/\n")
    git(monorepo.top, "add", "common")
    commit = monorepo.commit("second")
    project = use(read_project(monorepo.path / "opgauge.toml"))
    assert project is not None
    trees = {BASE: Tree(monorepo.path, commit, "main"), HEAD: Tree(monorepo.path, commit, "this tree")}
    try:
        assert touched_folders(monorepo.path, trees, ()) == (set(), ())
        (monorepo.top / "common" / "clip.h").write_text("second")
        touched = touched_folders(monorepo.path, trees, ())
        assert touched == Touched(None, ("../../common/clip.h",))
        assert touched_note(touched).startswith(
            "../../common/clip.h changed and counts for every op: all are compared; "
        )
        two = touched_note(Touched(None, ("a.c", "b.c", "c.c")))
        assert two.startswith("a.c and 2 more changed files count for every op: all are compared; ")
        use(replace(project, changed={"doubled": ("kernels",)}))
        assert touched_folders(monorepo.path, trees, ()) == (set(), ())
    finally:
        use(None)


def test_annotations_name_files_from_the_top_of_the_repository(monorepo: Monorepo) -> None:
    """GitHub looks files up there, and the project may be a folder below."""
    found = compared("slow", 1.3)
    case = {"file": str(monorepo.path / "cases" / "doubled.yaml"), "line": 3}
    run = a_run([found])
    record = JobRecord(Job(found.subject, {"case": case}))
    run = replace(run, head=replace(run.head, path=monorepo.path), records={found.subject: record})
    assert "file=packages/numbers/cases/doubled.yaml,line=3," in annotate(run)[0]


def test_a_commit_that_a_submodule_lacks_is_told(monorepo: Monorepo) -> None:
    """A shallow submodule may lack what the base records: the message names the submodule and the remedy."""
    clone = monorepo.top.parent / "clone"
    git(monorepo.top, "clone", "--quiet", str(monorepo.top), str(clone))
    check_out_submodules(clone, clone)
    assert not list((clone / "packages" / "numbers" / "kernels").iterdir())  # none is initialized
    git(clone, "submodule", "--quiet", "update", "--init")
    sha = git(monorepo.top, "rev-parse", "HEAD:packages/numbers/kernels")
    git(clone, "update-index", "--cacheinfo", f"160000,{sha[::-1]},packages/numbers/kernels")
    other = monorepo.top.parent / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    git(other, "update-index", "--add", "--cacheinfo", f"160000,{sha[::-1]},packages/numbers/kernels")
    with pytest.raises(RefError, match="submodule packages/numbers/kernels cannot be checked out"):
        check_out_submodules(clone, other)


def test_the_bisection_of_an_untracked_hook_finds_the_commit(monorepo: Monorepo) -> None:
    """The command that the gate gives, run as it is, in a folder of the repository, with a wrong submodule.

    One pair is enough for each commit: whether it is slower does not matter.
    """
    first = git(monorepo.top, "rev-parse", "HEAD")
    commits = [
        monorepo.commit("other"),
        monorepo.commit("wrong", **{"type(factor)": "type(factor + 0.01)"}),
        monorepo.commit("last", product="result"),
    ]
    code, said = monorepo.gate("--json", base=first)
    assert code == ExitCode.BROKEN, said
    (case,) = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]["cases"]
    assert " packages/numbers/bench/doubled.h " in case["bisect"]
    program = monorepo.top.parent / "bin" / "opgauge"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m opgauge "$@" {" ".join(ONCE)}\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(ROOT / "tools" / "package"), os.environ.get("PYTHONPATH", "")])
    search = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", case["bisect"]],
        cwd=monorepo.path,
        env={**os.environ, "PATH": search, "PYTHONPATH": path, "GIT_ALLOW_PROTOCOL": "file"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{case['bisect']}\n{done.stdout}\n{done.stderr}"
    assert git(monorepo.top.parent / "opgauge-bisect", "rev-parse", "bisect/bad") == commits[1]
    assert git(monorepo.top, "rev-parse", "--abbrev-ref", "HEAD") == "main"
