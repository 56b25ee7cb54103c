"""Project configuration: what it may say, what is refused, and which ops a change concerns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opgauge.harness.errors import ConfigurationError, TreeError
from opgauge.harness.project import active
from opgauge.harness.project.changes import matches, touched_ops
from opgauge.harness.project.configuration import Project, find_project, read_project
from opgauge.harness.project.loading import build, load_ops
from opgauge.harness.worker.attempt import KernelFailedError, _blamed_on_kernel


def configure(folder: Path, text: str, name: str = "opgauge.toml") -> Path:
    """A configuration file."""
    file = folder / name
    file.write_text(text)
    return file


def check_out_beside(tree: Path, base: Path) -> None:
    """Make `tree` a repository with all of its files, and `base` a worktree of its commit."""
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "one")
    git(tree, "worktree", "add", "-q", str(base))


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    """`opgauge.toml` or `[tool.opgauge]`, here or above; a pyproject.toml without the table is passed over."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "cases").mkdir()
    configure(tmp_path, '[tool.opgauge]\nname = "outer"\ncases = "cases"\n', "pyproject.toml")
    configure(tmp_path / "a", '[project]\nname = "a"\n', "pyproject.toml")
    found = find_project(inner)
    assert found is not None
    assert (found.name, found.root, found.cases) == ("outer", tmp_path, (tmp_path / "cases",))
    configure(tmp_path / "a", 'database = "runs.db"\n')
    nearer = find_project(inner)
    assert nearer is not None
    assert nearer.database == f"sqlite:///{tmp_path}/a/runs.db"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pollicy = 'x'", "unknown key 'pollicy'; did you mean 'policy'"),
        ("zzz = 1", "unknown key 'zzz'; known: name, ops"),
        ("builtin = 1", "builtin should be true or false, not 1"),
        ("ops = []", "ops should be text or a list of texts"),
        ('cases = ["~nobody.here/cases"]', "cases names a home folder that is not known"),
        ("ops = ['gone.py']", "there is no .*gone.py"),
        ("cases = 'gone'", "there is no .*gone"),
        ("changed = ['a']", "changed should be a table of paths by op"),
        ("name = ", "opgauge.toml: "),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    """A misspelt key with the nearest one, a value of a wrong type, a path that is not there."""
    with pytest.raises(ConfigurationError, match=said):
        read_project(configure(tmp_path, text))


def project(tmp_path: Path, text: str) -> Project:
    """A project of this configuration."""
    return read_project(configure(tmp_path, text))


def test_declared_paths_decide_what_a_change_concerns(tmp_path: Path) -> None:
    """Patterns by op, shared ones, and always an op's own files; without patterns every file but documents counts."""
    sources = {"rms": {"bench.py"}, "dot": {"bench.py", "cases/dot.yaml"}}
    plain = project(tmp_path, "")
    assert touched_ops(plain, ["README.md"], sources).ops == set()
    assert touched_ops(plain, ["cases/dot.yaml"], sources).ops == {"dot"}
    assert touched_ops(plain, ["kernels/rms.cu"], sources).ops is None
    declared = project(tmp_path, '[changed]\nrms = ["kernels/rms*"]\n"*" = ["kernels/common"]\n')
    assert touched_ops(declared, ["kernels/rms.cu", "setup.py"], sources).ops == {"rms"}
    assert touched_ops(declared, ["kernels/common/pack.cuh"], sources).ops is None
    assert touched_ops(declared, ["bench.py"], sources).ops == {"rms", "dot"}
    assert touched_ops(declared, ["kernels/common/pack.cuh", "setup.py"], sources).shared == (
        "kernels/common/pack.cuh",
    )
    assert matches("a/b/c.cu", "a/*.cu")
    assert not matches("ab/c.cu", "a")


def test_files_elsewhere_in_the_repository_count(tmp_path: Path) -> None:
    """Every one without declared paths; with them, those that a pattern with `../` names: `*` stays in the tree."""
    changed = ["../common/clip.h", "../notes.md"]
    assert touched_ops(project(tmp_path, ""), changed, {}) == (None, ("../common/clip.h",))
    assert touched_ops(project(tmp_path, '[changed]\n"*" = ["*"]\n'), changed, {}) == (set(), ())
    assert touched_ops(project(tmp_path, '[changed]\n"*" = ["../common"]\n'), changed, {}).ops is None
    assert touched_ops(project(tmp_path, '[changed]\nclip = ["../common/clip*"]\n'), changed, {}).ops == {"clip"}


def test_cases_are_in_the_folder_of_that_name(tmp_path: Path) -> None:
    """Where ops are named, and no cases."""
    assert project(tmp_path, 'ops = ["json"]\n').cases == ()
    (tmp_path / "cases").mkdir()
    assert project(tmp_path, 'ops = ["json"]\n').cases == (tmp_path / "cases",)
    assert project(tmp_path, 'database = "x.db"\n').cases == ()


def test_a_build_may_make_cases(tmp_path: Path) -> None:
    """A fresh checkout has none yet; without a build they have to be there."""
    assert project(tmp_path, 'cases = ["made/cases"]\nbuild = "make"\n').cases == (tmp_path / "made" / "cases",)
    with pytest.raises(ConfigurationError, match=r"there is no .*made/cases"):
        project(tmp_path, 'cases = ["made/cases"]\n')


def test_a_failed_build_says_what_it_printed(tmp_path: Path) -> None:
    """The build command runs in the tree with this Python; its failure is an error with the end of its output."""
    made = project(tmp_path, 'build = "echo built > built.txt"\n')
    build(made, tmp_path)
    python = project(tmp_path, "build = \"python -c 'import sys; print(sys.prefix)' >prefix.txt\"\n")
    build(python, tmp_path)
    assert (tmp_path / "prefix.txt").read_text().strip() == sys.prefix
    assert (tmp_path / "built.txt").read_text() == "built\n"
    with pytest.raises(TreeError, match="no rule to make that"):
        build(project(tmp_path, "build = \"echo 'no rule to make that'; exit 2\"\n"), tmp_path)


def test_a_failed_import_names_the_line_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost line of the project stands in the message, as in a traceback."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "unbuilt.py").write_text("\nimport module_that_a_build_would_make\n")
    (tmp_path / "hook.py").write_text("import unbuilt\n")
    with pytest.raises(TreeError, match=r"ModuleNotFoundError: .* \(unbuilt\.py:2\)$"):
        load_ops(project(tmp_path, 'ops = ["hook.py"]\nbuild = "make"\n'))


def test_what_a_hook_prints_goes_to_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output may be JSON."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "printing_hook.py").write_text("print('loading kernels')\n")
    load_ops(project(tmp_path, 'ops = ["printing_hook.py"]\n'))
    assert capsys.readouterr() == ("", "loading kernels\n")


def test_a_kernels_exception_names_the_line_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost line of the project's own files, not of a library in an environment inside the tree."""
    library = tmp_path / ".venv" / "site-packages" / "library_beside.py"
    library.parent.mkdir(parents=True)
    library.write_text("def fail():\n    raise KeyError('SETTING')\n")
    monkeypatch.setattr(sys, "path", [str(library.parent), *sys.path])
    (tmp_path / "raising_hook.py").write_text("import library_beside\n\ndef kernel():\n    library_beside.fail()\n")
    monkeypatch.setattr(active._Active, "project", project(tmp_path, 'ops = ["raising_hook.py"]\n'))
    monkeypatch.setattr(active._Active, "tree", None)
    active.load()
    with pytest.raises(KernelFailedError, match=r"KeyError: 'SETTING' \(raising_hook\.py:4\)$"), _blamed_on_kernel():
        sys.modules["raising_hook"].kernel()


def test_a_hook_that_ends_the_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that calls `sys.exit(0)` when imported would end `check` and `gate` as if all had passed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(TreeError, match=r"script\.py cannot be imported: SystemExit: 0 \(script\.py:2\)"):
        load_ops(project(tmp_path, 'ops = ["script.py"]\n'))


def test_ops_of_another_checkout_are_imported_from_there(tmp_path: Path) -> None:
    """Tracked files come from the checkout, untracked hooks from where they are, and a file it lacks is left out."""
    tree = tmp_path / "tree"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg" / "kernels.py").write_text("value = 'old'\n")
    (tree / "old.py").write_text("import pkg.kernels\nprint(pkg.kernels.value)\n")
    check_out_beside(tree, tmp_path / "base")
    (tree / "pkg" / "kernels.py").write_text("value = 'new'\n")
    (tree / "new.py").write_text("print('new file')\n")
    git(tree, "add", ".")
    (tree / "hook.py").write_text("import pkg.kernels\nprint('hook', pkg.kernels.value)\n")
    file = configure(tree, 'ops = ["old.py", "new.py", "hook.py"]\n')
    program = (
        "import sys; from pathlib import Path; from opgauge.harness.project import active;"
        f"active.choose(active.ProjectChoice(Path({str(file)!r})));"
        "active.load(Path(sys.argv[1]) if sys.argv[1:] else None)"
    )
    assert run_python(program, str(tmp_path / "base")) == ["old", "hook old"]
    assert run_python(program) == ["new", "new file", "hook new"]


def test_an_untracked_hook_reads_the_files_of_each_checkout(tmp_path: Path) -> None:
    """Read from beside the hook, and built from a source that is not tracked either; a binary is not lent."""
    tree, base = tmp_path / "tree", tmp_path / "base"
    tree.mkdir()
    (tree / "kernel.cu").write_text("old")
    check_out_beside(tree, base)
    (tree / "kernel.cu").write_text("new")
    (tree / "hook.py").write_text(
        "from pathlib import Path\n"
        "for name in ('kernel.cu', 'made'): print((Path(__file__).parent / name).read_text())\n"
    )
    (tree / "hook.cu").write_text("bound to ")
    (tree / "hook.o").write_text("compiled")
    file = configure(tree, 'ops = ["hook.py"]\nbuild = "cat hook.cu kernel.cu >made"\n')
    program = (
        "import sys; from pathlib import Path; from opgauge.harness.project import active;"
        f"active.choose(active.ProjectChoice(Path({str(file)!r})));"
        "tree = Path(sys.argv[1]) if sys.argv[1:] else None; tree and active.lend(tree);"
        "active.build(tree); active.load(tree)"
    )
    assert run_python(program, str(base)) == ["old", "bound to old"]
    assert run_python(program) == ["new", "bound to new"]
    assert not (base / "hook.o").exists()


def run_python(program: str, *arguments: str) -> list[str]:
    """Lines that the hooks of a fresh process print, which go to standard error."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def git(folder: Path, *arguments: str) -> None:
    """Run git in `folder`."""
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True)
