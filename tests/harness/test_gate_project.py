"""`opgauge gate` in somebody else's repository: one file with an op, a case file, and what a change of it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from opgauge.harness.gate.gate import ExitCode
from opgauge.harness.store import Store
from opgauge.harness.store.self_tests import list_self_tests
from tests.tinytree import ROOT

FILES = {
    "opgauge.toml": 'name = "foreign"\nops = ["bench/doubled.py"]\ncases = "cases"\npolicy = "policy.yaml"\n',
    "policy.yaml": "defaults: {threshold: 0.5}  # the slowdown here is by 33, and other processes take the cores\n",
    "bench/doubled.py": '''\
"""One op, as a user writes it."""

from time import perf_counter

import opgauge
from kernels import multiply

SECONDS = 300e-6


@opgauge.op
def doubled(x, *, factor: float = 2.0):
    """A multiple of x."""
    return factor * x


@doubled.implementation("plain", device="cpu")
def plain(x, *, factor):
    """Busy for a known time."""
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        pass
    return multiply(x, factor)
''',
    "kernels/__init__.py": '''\
"""The code that is measured; it knows nothing of opgauge."""


def multiply(x, factor):
    """A product."""
    return x * x.dtype.type(factor)
''',
    "cases/doubled.yaml": (
        "op: doubled\ncases:\n  - {name: small, tags: [gate], shapes: {x: [64]}, dtype: float32}\n"
        "  - {name: empty, shapes: {x: [0]}, dtype: float32}\n"
    ),
    "README.md": "Kernels.\n",
    ".gitignore": "__pycache__/\n",
}
QUICK = ("--device", "cpu", "--pairs", "4", "--most-pairs", "6", "--block-s", "0.02", "--timeout", "20")
WRONG = ("kernels/__init__.py", "type(factor)", "type(factor + 0.01)")
WRONG_OP = ("bench/doubled.py", "multiply(x, factor)", "multiply(x, factor + 0.01)")
ONE_PAIR = ("--pairs", "1", "--most-pairs", "1")
"""For what a comparison does not decide."""
REFERENCE = ("bench/doubled.py", "return factor * x", "return factor * x + x * 1e-12")
INPUTS = ("bench/doubled.py", "@opgauge.op\n", "@opgauge.op(inputs={'x': opgauge.Input('x', std=1.5)})\n")


class ForeignProject:
    """A git repository outside opgauge's tree, with one commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, text in FILES.items():
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "first")

    def git(self, *arguments: str) -> str:
        """What git prints here."""
        names = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        command = ["git", *names, *arguments]
        return subprocess.run(command, cwd=self.path, check=True, capture_output=True, text=True).stdout.strip()

    def restore(self) -> None:
        """The files of the commit, and no others but ignored ones."""
        self.git("reset", "--quiet", "--hard")
        self.git("clean", "--quiet", "--force", "-d")

    def change(self, name: str, before: str, after: str) -> None:
        """Replace text of a file."""
        file = self.path / name
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))

    def gate(self, *arguments: str, base: str = "HEAD") -> tuple[int, str]:
        """Exit code and output of `opgauge gate`."""
        return self.opgauge("gate", "--base", base, *QUICK, *arguments)

    def opgauge(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of a command in a process of its own."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "OPGAUGE_"))}
        path = os.pathsep.join([str(ROOT / "tools" / "package"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-P", "-m", "opgauge", *arguments],
            cwd=self.path,
            env={**outside, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> ForeignProject:
    """One repository for all tests of this file."""
    return ForeignProject(tmp_path_factory.mktemp("foreign") / "kernels")


@pytest.fixture
def project(repository: ForeignProject) -> ForeignProject:
    """The repository as committed."""
    repository.restore()
    return repository


def test_an_unchanged_project_is_neither_slower_nor_broken(project: ForeignProject) -> None:
    """A change of a document only: passed, or undecided on a busy host; the op is compared with its own commit.

    Neither its reference nor its inputs are said to have changed.
    """
    project.change("README.md", "Kernels", "More kernels")
    code, said = project.gate("--all", "--json")
    assert code in {ExitCode.PASSED, ExitCode.UNDECIDED}, said
    found = json.loads(said)
    (case,) = found["cases"]
    assert (case["op"], case["kind"]) == ("doubled", "compared")
    assert found["base"]["commit"] == project.git("rev-parse", "HEAD")
    assert found["head"]["commit"].endswith("-dirty")
    assert not any("the reference changed" in note or "other inputs" in note for note in found["notes"])


@pytest.mark.parametrize("planted", [WRONG, WRONG_OP])
def test_a_planted_fault_of_the_head_is_found(project: ForeignProject, planted: tuple[str, str, str]) -> None:
    """A result that is wrong by half a per cent is broken.

    It is in a package of the project, or in the file that registers the op: both are imported from the base's worktree
    for the base. A note tells that the package is not known to belong to one op.
    """
    project.change(*planted)
    code, said = project.gate("--json", "--changed")
    assert code == ExitCode.BROKEN, said
    found = json.loads(said)
    (case,) = found["cases"]
    assert case["verdict"] == "broken"
    assert [case["sides"][side]["statuses"] for side in ("base", "head")] == [["ok"], ["wrong"]]
    assert any("counts for every op" in note for note in found["notes"]) == (planted is WRONG)
    assert project.git("worktree", "list").count("\n") == 0


@pytest.mark.parametrize("chosen", [("--changed",), ("--tag", "nosuch")])
def test_reports_are_written_where_nothing_is_measured(
    project: ForeignProject, tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    """A change of a document only, or a filter without a match: every report has the reason."""
    project.change("README.md", "Kernels", "More kernels")
    files = (tmp_path / "gate.xml", tmp_path / "gate.md")
    code, said = project.gate("--json", "--junit", str(files[0]), "--markdown", str(files[1]), *chosen)
    reason, expected = ("changed: no op", ExitCode.NOTHING) if len(chosen) == 1 else ("nosuch", ExitCode.USAGE)
    assert code == expected, said
    found, _ = json.JSONDecoder().raw_decode(said)
    assert found["exit_code"] == expected
    assert reason in found["notes"][0]
    (error,) = ET.parse(files[0]).getroot().iter("error")  # noqa: S314  our own
    assert reason in error.get("message", "")
    assert reason.replace("_", "") in files[1].read_text()


def test_each_tree_has_its_own_extensions_of_torch(tmp_path: Path) -> None:
    """Torch compiles them at import, to a folder that has the name of the extension: not of the tree."""
    project = ForeignProject(tmp_path / "kernels")
    folder = f'Path(os.environ.get("TORCH_EXTENSIONS_DIR", {str(tmp_path)!r}))'
    compiling = f"import os\nfrom pathlib import Path\n\nBUILT, CODE = {folder} / 'extension', 'one'\n"
    compiling += "BUILT.parent.mkdir(exist_ok=True)\nBUILT.write_text(CODE)\n\n\ndef multiply"
    project.change("kernels/__init__.py", "\n\ndef multiply", compiling)
    project.change("kernels/__init__.py", "    return", "    assert BUILT.read_text() == CODE\n    return")
    project.git("commit", "-qam", "one")
    project.change("kernels/__init__.py", "'one'", "'two'")
    code, said = project.gate(*ONE_PAIR)
    assert code in {ExitCode.PASSED, ExitCode.UNDECIDED}, said
    assert "AssertionError" not in said


def test_the_build_is_named_where_it_did_not_run(project: ForeignProject) -> None:
    """By verbs that only import the ops; one that has just built them says what is wrong, and nothing of the build."""
    project.change("opgauge.toml", "name =", 'build = "true"\nname =')
    project.change("bench/doubled.py", "import multiply", "import made_by_the_build")
    _, said = project.opgauge("list")
    assert "ImportError: cannot import name 'made_by_the_build'" in said
    assert "if it is not built yet: `opgauge compile`, `run` and `gate` run the build command first" in said
    _, said = project.opgauge("run")
    assert "ImportError: cannot import name 'made_by_the_build'" in said
    assert "not built" not in said


def test_the_head_is_built_beside_stored_results_too(project: ForeignProject) -> None:
    """Else the last build would be measured instead of the change: here it makes the kernel a wrong one."""
    kernel = project.path / "kernels" / "built.py"
    project.change("opgauge.toml", "name =", 'build = "cp kernels/source.txt kernels/built.py"\nname =')
    project.change("kernels/__init__.py", "def multiply", "from kernels.built import more\n\n\ndef multiply")
    project.change("kernels/__init__.py", "type(factor)", "type(factor + more)")
    source = kernel.with_name("source.txt")
    source.write_text("more = 0\n")
    code, said = project.opgauge("run", "--device", "cpu", "--budget", "0.02", "--db", "runs.db")
    assert code == 0, said
    source.write_text("more = 0.5\n")
    code, said = project.opgauge("gate", "--against", "last", "--db", "runs.db", *QUICK)
    kernel.unlink()
    assert code == ExitCode.BROKEN, said


def test_a_base_with_a_wrong_configuration_is_no_base(project: ForeignProject) -> None:
    """A mistake that the change mends is no usage error; the file has its name in the repository."""
    project.change("opgauge.toml", "ops =", "opss =")
    project.git("commit", "--quiet", "--all", "-m", "a mistake")
    project.change("opgauge.toml", "opss =", "ops =")
    base = project.git("rev-parse", "HEAD")
    code, said = project.gate(base=base)
    project.git("reset", "--quiet", "--hard", "HEAD~1")
    assert code == ExitCode.NOTHING, said
    assert f"the base ({base[:12]}) cannot be used, --base names another: opgauge.toml:" in said
    assert "unknown key 'opss'; did you mean 'ops'?" in said


def test_a_budget_ends_a_first_call(project: ForeignProject) -> None:
    """A kernel that tunes itself for minutes is not waited for beyond the budget: a note tells."""
    tuning = "\n\nTUNED = []\n\n\ndef multiply"
    project.change("kernels/__init__.py", "\n\ndef multiply", f"\nimport time\n{tuning}")
    project.change("kernels/__init__.py", "    return x *", "    TUNED or time.sleep(1000)\n    return x *")
    code, said = project.gate("--budget", "6", "--timeout", "2000")
    assert code == ExitCode.NOTHING, said
    assert "the budget ended with 1 undecided" in said


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("planted", ["import absent_module", "build"])
def test_a_head_that_cannot_be_imported_is_broken(
    project: ForeignProject, tmp_path: Path, side: str, planted: str
) -> None:
    """CI may allow 5, for a change of documents: a head without a build or import ends with 3, such a base with 5."""
    report = tmp_path / "gate.md"
    start = project.git("rev-parse", "HEAD")
    if planted == "build":
        project.change("opgauge.toml", "name =", 'build = "exit 7"\nname =')
    else:
        project.change("kernels/__init__.py", "def", f"{planted}\n\n\ndef")
    if side == "base":
        project.git("commit", "--quiet", "--all", "-m", "broken")
        project.git("checkout", "--quiet", start, "--", "opgauge.toml", "kernels")
    code, said = project.gate("--all", "--markdown", str(report))
    project.git("reset", "--quiet", "--hard", start)
    assert code == (ExitCode.BROKEN if side == "head" else ExitCode.NOTHING), said
    assert "Traceback" not in said
    assert ("absent" if "import" in planted else "exit 7") in report.read_text()
    assert f"Exit code {code}" in report.read_text()
    if planted == "build" and side == "base":
        assert "cannot be used, --base names another: `exit 7` failed in its checkout with exit code 7" in said


def test_a_submodule_that_is_not_initialized_is_named(project: ForeignProject) -> None:
    """The import that it explains is said to fail, and how to get the submodule."""
    (project.path / ".gitmodules").write_text('[submodule "third"]\n\tpath = third\n\turl = ../third\n')
    project.git("update-index", "--add", "--cacheinfo", f"160000,{project.git('rev-parse', 'HEAD')},third")
    project.git("add", ".gitmodules")
    project.change("bench/doubled.py", "import multiply", "import multiply, absent_from_third")
    code, said = project.opgauge("list")
    assert code == ExitCode.NOTHING, said
    assert "absent_from_third" in said
    assert "not initialized: third (git submodule update --init)" in said


def test_a_planted_slowdown_of_a_project_is_detected(project: ForeignProject, tmp_path: Path) -> None:
    """`inject` slows a project's kernel down without a change of its files; the gate detects it, and it is stored."""
    code, said = project.opgauge("inject", "--slowdown", "40", *QUICK, "--json", "--db", f"{tmp_path}/x.db")
    assert code == 0, said
    data = json.loads(said.partition("\n}\n")[0] + "}")
    assert (data["decisions"], data["slower"], data["among"]) == (1, 1, 60)
    assert (data["caught_share"], data["caught_from_40_us_share"]) == (1.0, 1.0)
    assert 0 <= data["caught_within_10_s_share"] <= 1  # a busy machine takes longer over what is planted
    assert 0 < data["measuring_share"] < 1
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        (stored,) = list_self_tests(store.engine, "inject")
    assert stored.data["caught_low"] == pytest.approx(0.025)
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("edit", "told"), [(REFERENCE, "doubled: the reference changed"), (INPUTS, "doubled: the base has other inputs")]
)
def test_a_changed_reference_is_told(project: ForeignProject, edit: tuple[str, str, str], told: str) -> None:
    """A change of the reference or of the inputs by itself breaks nothing, if the kernel agrees, and is named."""
    project.change(*edit)
    code, printed = project.gate("--all", *ONE_PAIR)
    assert code in {ExitCode.PASSED, ExitCode.UNDECIDED}, printed
    assert told in printed


def test_removed_and_renamed_ops_are_told(project: ForeignProject) -> None:
    """A case that is gone is `removed`; an op under another name, with its files renamed, is one new and one removed.

    Nothing was compared then, so the gate does not pass. The base's case files are found by its own configuration: the
    head's names another folder.
    """
    cases = project.path / "cases" / "doubled.yaml"
    cases.write_text(cases.read_text().replace("x: [64]", "x: [65]"))
    _, said = project.gate("--json", "--changed", *ONE_PAIR)
    kinds = {(one["op"], one["kind"]) for one in json.loads(said)["cases"]}
    assert kinds == {("doubled", "new"), ("doubled", "removed")}
    project.restore()
    project.git("mv", "cases", "bench/cases")
    project.git("mv", "bench/doubled.py", "bench/twice.py")
    project.change("bench/twice.py", "doubled", "twice")
    project.change("bench/cases/doubled.yaml", "doubled", "twice")
    project.change("opgauge.toml", "bench/doubled.py", "bench/twice.py")
    project.change("opgauge.toml", '"cases"', '"bench/cases"')
    code, said = project.gate("--json", "--changed", *ONE_PAIR)
    kinds = {(one["op"], one["kind"]) for one in json.loads(said)["cases"]}
    assert kinds == {("twice", "new"), ("doubled", "removed")}, said
    assert code == ExitCode.NOTHING
