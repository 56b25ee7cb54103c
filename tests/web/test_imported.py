"""Runs of other tools on the pages: shown like any other, hostile names and all."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.interchange import import_file
from opgauge.harness.result import summary
from opgauge.harness.result.submission import parse, read_submission
from opgauge.harness.settings import Settings
from opgauge.web.app import create_app
from opgauge.web.cache import Cache
from opgauge.web.reader import Reader
from opgauge.web.rows import rows_of
from tests.commandline import run_here
from tests.databases import database
from tests.harness import foreign_files
from tests.web.dataset import HOSTILE
from tests.web.reading_pages import reader_of
from tests.web.submissions import store_of

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "data").glob("*/*.json"))
"""Committed runs, and self-tests."""


def a_file(folder: Path, tool: str) -> Path:
    """A file of a tool, one of its benchmarks named by an enemy."""
    data = foreign_files.nvbench(folder) if tool == "nvbench" else getattr(foreign_files, tool)()
    first = data["benchmarks"][0]
    for item in data["benchmarks"][: 2 if tool == "google_benchmark" else 1]:
        for name in {"name", "fullname", "run_name"} & set(first):
            item[name] = HOSTILE.replace("/", "")
    path = folder / "result.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("tool", ["nvbench", "pytest_benchmark", "google_benchmark"])
def test_imported_runs_are_on_the_pages(writable: TestClient, tmp_path: Path, tool: str) -> None:
    """List, run, op, cases, comparison, records, badges and files: all answer, and escape what is hostile."""
    run = import_file(a_file(tmp_path, tool), store_of(writable))
    results = writable.get(f"/api/v1/runs/{run}/results").json()["items"]
    names = {one["case"] for one in results}
    assert any("<script>" in name for name in names)
    assert run[:8] in writable.get("/runs").text
    pages = [
        "/",
        f"/runs/{run}",
        f"/ops/imported?run={run}",
        f"/roofline?run={run}",
        f"/compare?base={run}&head={run}",
        "/regressions",
    ]
    pages += sorted({f"/cases/{one['case_id']}" for one in results})
    pages += sorted({f"/api/v1/cases/{one['case_id']}/badge.svg" for one in results})
    for path in pages:
        answer = writable.get(path)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text, path
    shown = writable.get(f"/runs/{run}").text
    assert shown.count("/cases/") >= len(names)
    assert "imported" in writable.get("/runs").text
    for form in ("csv", "json"):
        assert writable.get(f"/runs/{run}/export.{form}").status_code == 200
    assert all(one["status"] != "ok" or one["median_ns"] > 0 for one in results)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over what `make demo` imports."""
    command = ["make", "--dry-run", "--old-file=.venv/.run", f"--what-if={FILES[0]}", "VENV=.venv", "demo.db"]
    variables = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS"}}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if "opgauge import" in line)
    with database(tmp_path_factory.mktemp("store")) as url:
        _, *arguments = shlex.split(line.replace("sqlite:///demo.db", url))
        imported = run_here(*arguments, cwd=ROOT, variables={})
        assert imported.returncode == 0, imported.stderr
        with TestClient(create_app(Settings(database=url))) as client:
            yield client


def test_committed_runs_load_and_show(demo: TestClient) -> None:
    """The exports of a GPU in this repository are a dashboard: their devices, ops and cases are on it."""
    runs = [run.id for run in reader_of(demo).history().runs if run.environment.model("cuda:0") == "NVIDIA H200"]
    assert len(runs) == len(list((ROOT / "tests" / "data" / "h200").glob("*.json"))) > 0
    for run in runs:
        results = demo.get(f"/api/v1/runs/{run}/results", params={"limit": 500}).json()["items"]
        assert results
        assert {one["status"] for one in results if one["implementation"] == "optimized"} == {"ok"}
        for op in sorted({one["op"] for one in results}):
            assert demo.get(f"/ops/{op}").status_code == 200
        assert demo.get(f"/cases/{results[0]['case_id']}").status_code == 200


def test_the_demo_opens_on_the_overview(demo: TestClient) -> None:
    """`make demo` imports the committed runs of a GPU, of CPUs and of the history into one project, and self-tests."""
    page, trust = (demo.get(path).text for path in ("/", "/trust"))
    runs = reader_of(demo).history().runs
    assert len(runs) == sum("/trust/" not in file for file in FILES)
    assert "Not tested yet" not in trust
    assert "Standing of every op" in page
    models = {run.environment.model(device) for run in runs for device in ("cpu", "cuda:0")} - {""}
    assert "NVIDIA H200" in models
    assert len(models) > 1
    assert all(model in page for model in models)


def test_pages_and_commands_tell_the_same_ratios(empty_copy: TestClient, tmp_path: Path) -> None:
    """Of a run in several processes too: ratios are of what was measured in the same one. Red is what is behind.

    Few cases of the committed run are behind, or none; those of one op are made slower.
    """
    data = json.loads((Path(__file__).parents[1] / "data" / "h200" / "full.json").read_text(encoding="utf-8"))
    for result in data["results"]:
        if result["trial"]["case"]["op"] == "lerp" and result["trial"]["implementation"] == "optimized":
            for name in ("samples_ns", "hot_ns"):
                taken = result["measurement"][name]
                result["measurement"][name] = [2 * one for one in taken] if isinstance(taken, list) else 2 * taken
    file = tmp_path / "full.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    told = {row.case_id: row for row in summary.rows(read_submission(parse(file.read_bytes())).results)}
    import_file(file, store_of(empty_copy))
    reader = Reader(store_of(empty_copy), Cache(lambda: 0))
    shown = rows_of(reader, reader.runs()[0])
    assert len(shown) == len(told)
    assert max(level.blocks for row in shown for level in row.levels.values()) > 1
    red = {row.case.case_id for row in shown if row.is_behind}
    compared = {case: said for case, said in told.items() if said.deciding is not None}
    assert red == {case for case, said in compared.items() if (said.standing, said.decides) == ("slower", "cold")}
    assert "lerp" in {told[case].op for case in red}
    for row in shown:
        said = told[row.case.case_id]
        ratio = said.against_peer
        assert row.over_best_peer == (None if ratio is None else pytest.approx(1 / ratio, rel=1e-6))


def test_what_is_shown_together_was_measured_together(empty_copy: TestClient, tmp_path: Path) -> None:
    """An op's page names the runs of its rows only; a run is compared with the one before it in the same place.

    Two of one commit say what is called slower or faster though nothing changed.
    """
    folder = Path(__file__).parents[1] / "data"
    both = [json.loads((folder / "h200" / name).read_text(encoding="utf-8")) for name in ("full.json", "seed.json")]
    for number, data in enumerate(both):
        data["run"]["environment"]["soft"]["commit"] = both[0]["run"]["environment"]["soft"]["commit"]
        (tmp_path / f"{number}.json").write_text(json.dumps(data), encoding="utf-8")
    files = (tmp_path / "0.json", tmp_path / "1.json", folder / "cpu" / "seed.json")
    full, seed, cpu = (import_file(file, store_of(empty_copy), "opgauge") for file in files)
    times = {run: empty_copy.get(f"/api/v1/runs/{run}").json()["started"] for run in (full, seed)}
    earlier, later = sorted(times, key=lambda run: times[run])
    compared = f"/compare?base={earlier[:8]}&amp;head={later[:8]}"
    on_gpu = empty_copy.get("/ops/p_norm_grad").text
    assert f"/runs/{later}" in on_gpu
    assert f"/runs/{cpu}" not in on_gpu
    assert f"/runs/{cpu}" in empty_copy.get("/ops/p_norm_grad", params={"device": "all"}).text
    assert compared in empty_copy.get("/compare").text
    assert compared in empty_copy.get(f"/runs/{later}").text
    assert "/compare?base=" not in empty_copy.get(f"/runs/{earlier}").text
    assert "/compare?base=" not in empty_copy.get(f"/runs/{cpu}").text
    assert "No case has a time on both sides" in empty_copy.get(f"/compare?base={seed}&head={cpu}").text
    assert "No case has a time on both sides" not in empty_copy.get(f"/compare?base={full}&head={seed}").text
    assert "Neighbouring runs" in empty_copy.get("/trust").text
