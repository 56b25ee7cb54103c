"""Files of other tools become runs, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opgauge.harness.case.case import Case, Imported
from opgauge.harness.case.casejson import case_from_json, case_to_json
from opgauge.harness.errors import CaseError, StoreError
from opgauge.harness.interchange import enter_file, import_file
from opgauge.harness.interchange.exporting import as_bencher, as_github
from opgauge.harness.interchange.importing import read_file
from opgauge.harness.interchange.self_test_file import self_test_file
from opgauge.harness.report.export import ImportFileError, as_csv, as_json, records, whole_run
from opgauge.harness.result.result import Result, Status
from opgauge.harness.store import Store
from opgauge.harness.store.projects import list_projects
from opgauge.harness.store.self_tests import SelfTest, list_self_tests
from tests.commandline import run_here
from tests.harness import foreign_files

DATA = Path(__file__).parents[1] / "data"


def write(folder: Path, data: Any) -> Path:
    """A file with this JSON."""
    path = folder / "result.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def by_name(results: Any) -> dict[str, Result]:
    """Results by their case's name."""
    return {result.trial.case.name: result for result in results}


def test_nvbench(tmp_path: Path) -> None:
    """Samples and clocks come from files beside the JSON, the mean where there are none; what was skipped says so."""
    run = read_file(write(tmp_path, foreign_files.nvbench(tmp_path)))
    found = by_name(run.results)
    whole, mean, skipped = found["copy[T=F32,BlockSize=2^8]"], found["copy[T=F32]"], found["copy"]
    assert whole.measurement is not None
    assert whole.measurement.samples_ns == pytest.approx((1500, 1250, 2000))
    assert whole.measurement.clock_mhz == pytest.approx((1900,) * 3)
    assert whole.measurement.hot_ns == pytest.approx(1100)
    assert (whole.trial.case.dtype, whole.trial.device, whole.trial.backend) == ("float32", "cuda:0", "cuda")
    assert whole.bytes == pytest.approx(1583300, rel=1e-6)
    assert mean.measurement is not None
    assert mean.measurement.samples_ns == pytest.approx((1583.3,))
    assert mean.measurement.calls_per_sample == 3
    assert (skipped.status, skipped.reason, skipped.trial.device) == (Status.UNSUPPORTED, "no", "cuda:1")
    assert run.environment.hard["cuda:0.model"] == "NVIDIA H200"
    assert whole.measurement.timer == "nvbench 0.1.0"


@pytest.mark.parametrize("filename", ["../outside.bin", "result.json-bin/../../outside.bin", "link/outside.bin"])
def test_sample_files_lie_beside_the_file(tmp_path: Path, filename: str) -> None:
    """A path that leads elsewhere is refused, whatever is there."""
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(12))
    (folder / "link").symlink_to(tmp_path)
    data = foreign_files.nvbench(folder)
    data["benchmarks"][0]["states"][0]["summaries"][-2]["data"][0]["value"] = filename
    with pytest.raises(ImportFileError, match="is not in the folder of"):
        read_file(write(folder, data))


@pytest.mark.parametrize("start", ["", "/home/ci/out/", "build/bench/out/", "C:\\bench\\", "../../"])
def test_sample_files_are_found_where_they_were_brought(tmp_path: Path, start: str) -> None:
    """Whatever path NVBench wrote where it ran, the folder beside the JSON has the samples; no other file is read."""
    data = foreign_files.nvbench(tmp_path)
    where = data["benchmarks"][0]["states"][0]["summaries"][-2]["data"][0]
    where["value"] = start + where["value"]
    found = by_name(read_file(write(tmp_path, data)).results)["copy[T=F32,BlockSize=2^8]"]
    assert found.measurement is not None
    assert found.measurement.samples_ns == pytest.approx((1500, 1250, 2000))
    where["value"] = "/etc/passwd"
    other = by_name(read_file(write(tmp_path, data)).results)["copy[T=F32,BlockSize=2^8]"]
    assert other.measurement is not None
    assert other.measurement.samples_ns == pytest.approx((1583.3,))


def test_sample_files_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    """A cut sample file is not half a measurement."""
    data = foreign_files.nvbench(tmp_path)
    (tmp_path / "result.json-bin" / "0.bin").write_bytes(bytes(8))
    with pytest.raises(ImportFileError, match="holds 2 samples, not 3"):
        read_file(write(tmp_path, data))


def test_pytest_benchmark(tmp_path: Path) -> None:
    """Every round is a sample where the file has them, the median else; parameters are axes."""
    run = read_file(write(tmp_path, foreign_files.pytest_benchmark() | {}))
    found = by_name(run.results)
    whole = found["tests/test_add.py::test_add[size=4,dtype=float32]"]
    short = found["tests/test_mul.py::test_mul"]
    assert whole.measurement is not None
    assert whole.measurement.samples_ns == pytest.approx((1000, 2000, 3000))
    assert whole.measurement.calls_per_sample == 5
    assert short.measurement is not None
    assert short.measurement.samples_ns == pytest.approx((1900,))
    assert run.started == datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
    assert run.environment.commit == "a" * 40 + "-dirty"
    assert run.environment.hard == {"cpu.model": "AMD EPYC", "cpu.threads": "2"}


def test_google_benchmark(tmp_path: Path) -> None:
    """Repetitions are samples in their order; the median stands for aggregates alone; failures keep their message."""
    run = read_file(write(tmp_path, foreign_files.google_benchmark()))
    found = by_name(run.results)
    whole = found["BM_copy<float>[arg0=1024,threads=2]"]
    assert whole.measurement is not None
    assert whole.measurement.samples_ns == pytest.approx((1500, 2500))
    assert whole.measurement.threads == 2
    assert whole.bytes == 3000
    assert found["BM_only"].measurement is not None
    assert found["BM_only"].measurement.samples_ns == pytest.approx((7e6,))
    assert (found["BM_bad"].status, found["BM_bad"].reason) == (Status.ERROR, "no file")
    assert (found["BM_skip"].status, found["BM_skip"].reason) == (Status.UNSUPPORTED, "not here")
    assert run.started == datetime(2026, 1, 31, 11, tzinfo=UTC)


@pytest.mark.parametrize("make", ["nvbench", "pytest_benchmark", "google_benchmark"])
def test_a_file_is_imported_once(tmp_path: Path, make: str) -> None:
    """The run is stored with all it has, shown like any other, exported and read again; the same file is refused."""
    data = foreign_files.nvbench(tmp_path) if make == "nvbench" else getattr(foreign_files, make)()
    path = write(tmp_path, data)
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store, Store.open(f"sqlite:///{tmp_path}/y.db") as other:
        run_id = import_file(path, store)
        with pytest.raises(StoreError, match="stored already"):
            import_file(path, store)
        run = store.find_run(run_id)
        assert run.status == "imported"
        results = store.results(run_id, samples=True)
        assert {result.trial.case.op for result in results} == {"imported"}
        flat = records(run, store.results(run_id), {})
        for text in (as_json(flat), as_csv(flat), as_bencher(flat), as_github(flat)):
            assert "NaN" not in text
        again = tmp_path / "again.json"
        again.write_text(as_json(whole_run(run, results, {})), encoding="utf-8")
        assert import_file(again, other) == run_id
        assert other.results(run_id, samples=True) == results


def test_a_run_measured_here_is_stored_already(tmp_path: Path) -> None:
    """Its export, which calls it imported, is the same run; with other times it is another."""
    read = read_file(write(tmp_path, foreign_files.google_benchmark()))
    path = tmp_path / "own.json"
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        run_id = store.begin_run(read.environment, command="opgauge run")
        for result in read.results:
            store.add_result(run_id, result)
        store.finish_run(run_id)
        text = as_json(whole_run(store.find_run(run_id), store.results(run_id, samples=True), {}))
        path.write_text(text, encoding="utf-8")
        with pytest.raises(StoreError, match="stored already"):
            import_file(path, store)
        store.add_result(run_id, replace(read.results[0], trial=replace(read.results[0].trial, implementation="more")))
        with pytest.raises(StoreError, match="other content"):
            import_file(path, store)


def a_self_test() -> dict[str, Any]:
    """A file of one self-test."""
    found = SelfTest("cheats", datetime(2026, 11, 27, 9, tzinfo=UTC), "c0ffee", "cpu", {"cheats_seen_share": 1.0})
    return self_test_file([found])


def test_self_tests_are_exported_and_imported_once(tmp_path: Path) -> None:
    """They are the same in the other database, however often they are imported."""
    path, again = write(tmp_path, a_self_test()), tmp_path / "again.json"
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in "xy")
    here = partial(run_here, cwd=tmp_path, variables={})
    assert here("import", str(path), "--db", first).stdout.startswith("1 self-tests from")
    assert here("import", str(path), "--db", first).stdout.startswith("0 self-tests from")
    here("export", "--self-tests", "--db", first, "-o", str(again))
    assert json.loads(again.read_bytes()) == json.loads(path.read_bytes())
    here("import", str(again), "--db", second)
    with Store.open(second) as store:
        (found,) = list_self_tests(store.engine, "cheats")
    assert (found.created.hour, found.commit, found.data) == (9, "c0ffee", {"cheats_seen_share": 1.0})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("kind", "guess", "one of aa, inject, agree, cheats"),
        ("commit", "c" * 65, "at most 64 characters"),
        ("device", None, "a text of at most 16"),
        ("created", "2026-11-27T09:00:00", "time zone"),
        ("data", [], "an object"),
        ("data", {"share": float("inf")}, "Infinity"),
    ],
)
def test_a_faulty_self_test_is_refused_with_its_field(tmp_path: Path, name: str, value: object, rule: str) -> None:
    """Nothing of the file is stored."""
    data = a_self_test()
    data["self_tests"].append({**data["self_tests"][0], name: value})
    path = tmp_path / "faulty.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        with pytest.raises(ImportFileError, match=rule):
            enter_file(path, store)
        assert not list_self_tests(store.engine, "cheats")


def test_a_run_without_a_project_is_imported_into_the_one_named(tmp_path: Path) -> None:
    """Files of other tools name no project; a run that names its own stays in that."""
    path = write(tmp_path, foreign_files.pytest_benchmark())
    history = min((DATA / "history").glob("*.json"))
    command = ("import", "--project", "kernels", "--db", "x.db", str(path), str(history))
    for code in (0, 2):
        done = run_here(*command, cwd=tmp_path, variables={})
        assert done.returncode == code, done.stderr
    assert "stored already" in done.stderr
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store:
        assert {name: count for name, count, _ in list_projects(store.engine)} == {"kernels": 1, "opgauge": 1}


def test_a_benchmark_that_comes_twice_has_two_blocks(tmp_path: Path) -> None:
    """Files that were merged hold a benchmark several times: each is a block of one trial, none is lost."""
    data = foreign_files.pytest_benchmark()
    data["benchmarks"] = data["benchmarks"][:1] * 3
    run = read_file(write(tmp_path, data))
    assert [result.block for result in run.results] == [0, 1, 2]
    assert len({result.trial.case.id for result in run.results}) == 1


@pytest.mark.parametrize("data", [None, [], {}, {"benchmarks": []}])
def test_what_is_no_such_file_is_one_error(tmp_path: Path, data: Any) -> None:
    """JSON of no known tool: the message names the file and what could be read instead."""
    with pytest.raises(ImportFileError, match=r"result\.json is none of the files"):
        read_file(write(tmp_path, data))


@pytest.mark.parametrize(
    "data",
    [
        {"benchmarks": 1, "machine_info": {}},
        {"benchmarks": [{}], "machine_info": {}},
        {"benchmarks": [{"name": "x", "stats": {"data": ["x"]}}], "machine_info": [1]},
        {"benchmarks": [{}], "context": {}},
        {"benchmarks": [{"name": "x", "real_time": 1, "time_unit": "weeks"}], "context": {}},
        {"benchmarks": [{"name": "x", "real_time": 10**400}], "context": {}},
        {"benchmarks": [{"name": "x" * 100_000, "real_time": 1}], "context": {}},
        {"benchmarks": [{"name": "x", "states": [{}]}], "devices": [{}]},
        {"benchmarks": [{"name": "x", "states": [{"device": 10**9}]}], "devices": []},
        {"opgauge": 1},
    ],
)
def test_a_faulty_file_of_a_known_tool_says_what_is_wrong(tmp_path: Path, data: Any) -> None:
    """The message names the tool and the reason, not the tools that did not write it."""
    with pytest.raises(ImportFileError, match=r"result\.json is a file of \S+.*, but cannot be imported: .+"):
        read_file(write(tmp_path, data))


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Editors of Windows write one before JSON; the run is the same as without."""
    path = write(tmp_path, foreign_files.pytest_benchmark())
    plain = read_file(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    marked = read_file(path)
    assert (marked.id, [one.trial for one in marked.results]) == (plain.id, [one.trial for one in plain.results])


def test_files_that_are_no_json_are_one_error(tmp_path: Path) -> None:
    """Nor is a missing file a traceback."""
    path = tmp_path / "x.json"
    with pytest.raises(ImportFileError, match="cannot be read"):
        read_file(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ImportFileError, match="UTF-8"):
        read_file(path)


def imported_case(**changes: Any) -> dict[str, Any]:
    """A case of another tool as JSON."""
    params = {"tool": "nvbench", "benchmark": "copy", "axes": {"T": "F32"}}
    return {"op": "imported", "name": "copy", "dtype": "float32", "params": params, **changes}


def test_cases_of_other_tools_are_cases() -> None:
    """They go to JSON and back, and their identity is tool, benchmark, axes and dtype."""
    case = case_from_json(imported_case())
    assert case.params == Imported("nvbench", "copy", {"T": "F32"})
    assert case_from_json(case_to_json(case)) == case
    assert case_from_json(imported_case(name="other", tags=["x"])).id == case.id
    other = case_from_json(imported_case(params={"tool": "nvbench", "benchmark": "copy", "axes": {"T": "F64"}}))
    assert other.id != case.id
    assert isinstance(case, Case)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shapes": {"x": [1]}}, "should be empty"),
        ({"dtype": 1}, "dtype"),
        ({"dtype": "x" * 17}, "longer than"),
        ({"params": {"tol": "x"}}, "did you mean 'tool'"),
        ({"params": {"axes": {"T": 1}}}, "should be text"),
        ({"params": {"axes": []}}, "should be a mapping"),
        ({"params": {"tool": 1}}, "should be text"),
    ],
)
def test_cases_of_other_tools_are_read_strictly(changes: Mapping[str, Any], message: str) -> None:
    """What such a case cannot have is refused."""
    with pytest.raises(CaseError, match=message):
        case_from_json(imported_case(**changes))
