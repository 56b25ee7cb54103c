"""The command line as a person meets it; in a process of its own where its start or its end matters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from opgauge.harness.run.worker_process import PRELOADED, worker_options
from opgauge.harness.store import Store
from tests.commandline import Done, run_here

ROOT = Path(__file__).parent.parent.parent
SMOKE = ("run", "cases/dot.yaml", "--name", "vector-small", "--dtype", "float32", "--budget", "0.02")


def opgauge(*arguments: str, db: Path | None = None, code: int | None = 0) -> Done:
    """Run `opgauge` and expect an exit code, if any."""
    done = run_here(*arguments, cwd=ROOT, variables={"OPGAUGE_DB": f"sqlite:///{db}" if db else "sqlite://"})
    if code is not None:
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one small run, whose peaks take little time."""
    path = tmp_path_factory.mktemp("cli") / "run.db"
    brief = partial(worker_options, preload=(*PRELOADED, "tests.faulty.brief"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opgauge.harness.run.worker_process.worker_options", brief)
        done = opgauge(*SMOKE, "-i", "baseline", "-i", "optimized", "--ceilings", db=path)
    assert "vector-small" in done.stdout
    assert "copy" in done.stdout
    return path


def test_run_stores_and_shows(measured: Path) -> None:
    """`run` stores every trial; `show` finds it again, as a table and as JSON."""
    assert "vector-small" in opgauge("show", db=measured).stdout
    records = json.loads(opgauge("show", "--json", db=measured).stdout)
    assert {item["implementation"] for item in records} == {"baseline", "optimized"}
    assert all(item["status"] == "ok" and item["median_ns"] > 0 for item in records)
    assert "2 results" in opgauge("db", "info", db=measured).stdout


def test_export_and_import(measured: Path, tmp_path: Path) -> None:
    """A run exported with samples is the same run elsewhere; importing it twice is refused."""
    whole = tmp_path / "run.json"
    opgauge("export", "--samples", "--output", str(whole), db=measured)
    other = tmp_path / "other.db"
    opgauge("import", str(whole), db=other)
    first = opgauge("export", "--format", "csv", db=measured).stdout
    assert first == opgauge("export", "--format", "csv", db=other).stdout
    assert "stored already" in opgauge("import", str(whole), db=other, code=2).stderr
    opgauge("export", "--output", str(whole), db=measured)
    assert "export them with --samples" in opgauge("import", str(whole), db=other, code=2).stderr
    whole.write_text("[]")
    assert "none of the files" in opgauge("import", str(whole), db=other, code=2).stderr


def test_resume_runs_only_the_rest(measured: Path) -> None:
    """`--resume last` adds what is missing to the same run and leaves the rest alone."""
    before = json.loads(opgauge("export", db=measured).stdout)
    opgauge(*SMOKE, "-i", "baseline", "-i", "torch", "--resume", "last", db=measured)
    after = json.loads(opgauge("export", db=measured).stdout)
    assert after[: len(before)] == before
    assert [item["implementation"] for item in after[len(before) :]] == ["torch"]


def test_a_run_goes_on_under_the_same_conditions_only(measured: Path) -> None:
    """With other threads than it was begun with nothing is measured, and what differs is said."""
    before = opgauge("export", db=measured).stdout
    arguments = (*SMOKE, "-i", "torch_compile", "--resume", "last")
    done = run_here(*arguments, cwd=ROOT, variables={"OPGAUGE_DB": f"sqlite:///{measured}", "OPGAUGE_THREADS": "1"})
    assert done.returncode == 2
    assert "cpu.threads is '1' here" in " ".join(done.stderr.split())
    assert opgauge("export", db=measured).stdout == before


def test_what_is_compiled_ahead_is_counted(tmp_path: Path) -> None:
    """`--ahead` says how many trials were right before the first is timed; they are measured as ever."""
    done = opgauge(*SMOKE, "-i", "baseline", "--ahead", "1", db=tmp_path / "x.db")
    assert "1 of 1 trial compiled and valid" in done.stderr
    assert re.search(r"worker time: \d+ % \w", done.stderr)
    (found,) = json.loads(opgauge("show", "--json", db=tmp_path / "x.db").stdout)
    assert found["status"] == "ok"


def test_each_filter_value_that_matches_nothing_is_named(tmp_path: Path) -> None:
    """Beside a right value too; the nearest name is given, exit code 2, and nothing is measured."""
    right = ("run", "cases/dot.yaml", "cases/sign.yaml", "--op", "dot", "--tag", "smoke", "--dtype", "float32")
    for option, value, nearest in (
        ("--op", "sgin", "sign"),
        ("--tag", "smokee", "smoke"),
        ("--dtype", "flaot16", "float16"),
        ("--name", "vektor-smal", "vector-small"),
        ("--case", "dto/*", "dot"),
        ("-i", "torchh", "torch"),
        ("--tag", "/^smok$/", ""),
    ):
        done = opgauge(*right, "-i", "baseline", option, value, db=tmp_path / "x.db", code=2)
        assert value in done.stderr
        assert nearest in done.stderr.replace(value, "")
    both = opgauge(*right, "--tag", "smokee", "--dtype", "flaot16", db=tmp_path / "x.db", code=2).stderr
    assert "smokee" in both
    assert "flaot16" in both
    assert "no regular expression" in opgauge(*right, "--name", "/(/", db=tmp_path / "x.db", code=2).stderr


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("/^vector-/", True), ("vector-s*", True), ("tor-sm", True), ("/small$/", False), ("vector-small[float32]", True)],
)
def test_filters_take_parts_wildcards_and_expressions(tmp_path: Path, pattern: str, expected: bool) -> None:
    """A part of a name, `*`, and /regex/; brackets in a name stand for themselves."""
    done = opgauge("run", "cases/dot.yaml", "--dtype", "float32", "--name", pattern, "--dry-run", "--json",
                   db=tmp_path / "x.db", code=None)  # fmt: skip
    names = {trial["case"] for trial in json.loads(done.stdout)["trials"]} if done.returncode == 0 else set()
    assert ("vector-small[float32]" in names) is expected


@pytest.mark.parametrize("pattern", ["dot/vector-smal*[float32]", "/^dot.vector-small.float32/"])
def test_cases_are_chosen_by_path(tmp_path: Path, pattern: str) -> None:
    """`--case` takes what the gate's takes: op/name, with wildcards or as an expression, and brackets as they are."""
    done = opgauge("run", "cases/dot.yaml", "--case", pattern, "--dry-run", "--json", db=tmp_path / "x.db")
    assert {trial["case"] for trial in json.loads(done.stdout)["trials"]} == {"vector-small[float32]"}


def test_the_name_in_a_file_selects_its_sweep(tmp_path: Path) -> None:
    """A sweep appends brackets to the name that the file gives; the name alone selects every case of it."""
    file = tmp_path / "swept.yaml"
    file.write_text("op: dot\ncases:\n  - {name: mine, shapes: {x: [8]}, dtype: [float32, float64]}\n")
    done = opgauge("run", str(file), "--case", "dot/mine", "--dry-run", "--json", db=tmp_path / "x.db")
    assert {trial["case"] for trial in json.loads(done.stdout)["trials"]} == {"mine[float32]", "mine[float64]"}
    assert "matches nothing" in opgauge("run", str(file), "--case", "dot/min", db=tmp_path / "x.db", code=2).stderr
    for pattern in ("mine", "*ine*"):  # a pattern without a slash is an op's
        said = opgauge("run", str(file), "--case", pattern, db=tmp_path / "x.db", code=2).stderr
        assert f"--case {pattern} matches nothing; did you mean '*/{pattern}'?" in said


def test_filters_that_exclude_each_other_select_nothing(tmp_path: Path) -> None:
    """Values that exist, but not together: exit code 5, and the values that exist."""
    done = opgauge("run", "cases/dot.yaml", "cases/sign.yaml", "--op", "sign", "--name", "vector-small",
                   db=tmp_path / "x.db", code=5)  # fmt: skip
    assert "matches all filters" in done.stderr


def test_mistakes_of_the_user_are_one_line(tmp_path: Path) -> None:
    """A misspelt case file, a missing database folder, a device that is none: exit code 2."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("op: p_norm\ncases:\n  - {name: a, shapes: {x: [3]}, dtype: float32, params: {porder: banana}}\n")
    command = [sys.executable, "-m", "opgauge", "check", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=200)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"{wrong}:3:" in done.stderr
    assert "banana" in done.stderr
    assert "no folder" in opgauge("show", "--db", f"sqlite:///{tmp_path}/no/x.db", code=2).stderr
    assert "no device 'gpu'" in opgauge(*SMOKE, "--device", "gpu", db=tmp_path / "x.db", code=2).stderr


def test_words_are_read_before_anything_is_built(tmp_path: Path) -> None:
    """Help and a misspelt option need no build, which may take minutes or fail; a build that begins is announced."""
    (tmp_path / "hook.py").write_text("import opgauge\n")
    (tmp_path / "opgauge.toml").write_text('ops = ["hook.py"]\nbuild = "touch built; exit 1"\n')
    assert run_here("run", "--help", cwd=tmp_path, variables={}).returncode == 0
    assert run_here("run", "--hlep", cwd=tmp_path, variables={}).returncode == 2
    assert not (tmp_path / "built").exists()
    done = run_here("run", cwd=tmp_path, variables={})
    assert "building: touch built; exit 1\n" in done.stderr
    assert (tmp_path / "built").exists()
    (tmp_path / "opgauge.toml").write_text('ops = ["absent.py"]\n')
    assert "there is no" in run_here("check", cwd=tmp_path, variables={}).stderr


@pytest.mark.parametrize(("words", "noted"), [((), True), (("--builtin",), False), (("--quiet",), False)])
def test_a_run_where_nothing_is_configured_says_so(tmp_path: Path, words: tuple[str, ...], noted: bool) -> None:
    """What it measures is then opgauge's own."""
    done = run_here("run", "--op", "dot", "--dry-run", *words, cwd=tmp_path, variables={"OPGAUGE_DB": "sqlite://"})
    assert ("`opgauge init` writes an example" in done.stderr) is noted
    assert "dot" in done.stdout


def test_a_wrong_kernel_of_ours_fails_the_run(tmp_path: Path) -> None:
    """Exit code 3 when a kernel of ours cannot do its work in time."""
    done = opgauge(
        "run", "cases/mean.yaml", "--tag", "seed", "-i", "baseline", "--timeout", "0.1", "--no-ceilings",
        db=tmp_path / "x.db", code=None,
    )  # fmt: skip
    assert done.returncode in {0, 3}
    records = json.loads(opgauge("export", db=tmp_path / "x.db").stdout)
    assert done.returncode == (3 if any(item["status"] != "ok" for item in records) else 0)


def test_list_shows_every_kernel_without_a_device() -> None:
    """CUDA kernels are listed wherever this runs."""
    listed = json.loads(opgauge("list", "--op", "p_norm_grad", "--json").stdout)
    ours = next(item for item in listed if item["implementation"] == "optimized")
    assert set(ours["backends"]) == {"cpu", "cuda"}
    assert "did you mean 'p_norm'" in opgauge("list", "--op", "p_nrm", code=2).stderr


def test_schema_is_written_where_editors_look(tmp_path: Path) -> None:
    """`opgauge schema` prints the schema of every op, or writes it to a file whose folder need not be there."""
    file = tmp_path / "schema" / "case.schema.json"
    opgauge("schema", "--output", str(file))
    assert opgauge("schema").stdout == file.read_text()
    assert {"p_norm", "dot"} <= set(json.loads(file.read_text())["properties"]["op"]["enum"])


def test_interrupting_keeps_what_is_finished(tmp_path: Path) -> None:
    """Ctrl-C ends with 130, and the results until then are stored."""
    db = tmp_path / "x.db"
    with subprocess.Popen(
        [sys.executable, "-m", "opgauge", "run", "cases/dot.yaml", "-i", "baseline",
         "--tag", "smoke", "--budget", "0.3", "--no-ceilings"],
        env={**os.environ, "OPGAUGE_DB": f"sqlite:///{db}"}, cwd=ROOT, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        for _ in range(400):
            if db.exists():
                with Store.open(f"sqlite:///{db}") as store:
                    if store.runs() and store.runs()[0].results:
                        break
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    with Store.open(f"sqlite:///{db}") as store:
        (run,) = store.runs()
        assert run.status == "interrupted"
        assert run.results >= 1


@pytest.mark.parametrize("arguments", [("list", "--json"), ("check",)])
def test_a_folder_without_a_project_is_told(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Shipped ops stand in for those of a project, which standard error says unless they were requested."""
    done = run_here(*arguments, cwd=tmp_path, variables={})
    assert "nothing is configured here" in done.stderr
    assert "nothing is configured here" not in done.stdout
    assert run_here("--builtin", *arguments, cwd=tmp_path, variables={}).stderr == ""


@pytest.mark.parametrize("place", ["kernels/opgauge.toml", "packages/fast/pyproject.toml"])
@pytest.mark.parametrize("arguments", [("list",), ("check",), ("run",)])
def test_a_project_below_is_meant(arguments: tuple[str, ...], place: str, tmp_path: Path) -> None:
    """At the top of a repository whose folders have projects, shipped ops are used only if they are requested."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    table = "[tool.opgauge]" if place.endswith("pyproject.toml") else ""
    for name, text in ((place, table), ("web/pyproject.toml", "a")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run_here(*arguments, cwd=tmp_path, variables={})
    assert done.returncode == 2
    assert f"but below it: {place}; change to that folder" in done.stderr
    assert run_here("--builtin", "list", cwd=tmp_path, variables={}).returncode == 0
