"""The store: what goes in comes out, nothing finished is lost, and a database that cannot be used says why."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text, update
from sqlalchemy.exc import OperationalError

from opgauge.harness.case.case import Case
from opgauge.harness.errors import NothingError, StoreError
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.figures import with_possible_figures
from opgauge.harness.result.result import Check, Environment, Measurement, Result, Status, Trial
from opgauge.harness.result.strict import SubmissionError
from opgauge.harness.settings import ROOT
from opgauge.harness.store import Store
from opgauge.harness.store.abandoned import end_lost_runs
from opgauge.harness.store.schema import HEAD, MIGRATIONS, version
from opgauge.harness.store.tables import RunRow, Table
from opgauge.ops import find_op
from tests.databases import database

ENVIRONMENT = Environment({"cpu.model": "test"}, {"commit": "abc"})


def a_result(implementation: str = "optimized", porder: float = math.inf, samples: int = 5) -> Result:
    """A result with a parameter that JSON has no number for."""
    params = find_op("p_norm").params(porder=porder)
    case = Case("p_norm", "rows", {"x": (3, 4)}, "float32", params, tags=("smoke",), published={"torch_ms": 0.2})
    measurement = Measurement(tuple(float(10 + item) for item in range(samples)), "test", 3, cpu_ns=(1.0, 2.0))
    check = Check(ok=True, max_abs_error=0.0, max_rel_error=math.inf, worst=0.5)
    trial = Trial(case, implementation, "cpu", "cpu")
    return Result(trial, Status.OK, check=check, measurement=measurement, bytes=64, flops=24, extra={"log": "x"})


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database(tmp_path) as made:
        yield made


def test_what_goes_in_comes_out(url: str) -> None:
    """A result with infinities, its samples and its case survive; without samples the median stands for them."""
    result = a_result()
    with Store.open(url) as store:
        run = store.begin_run(ENVIRONMENT, command="opgauge run")
        store.add_result(run, result)
        store.add_ceilings(run, Ceilings("cpu", copy_gbps=10.0, matrix_gflops={"float32": 100.0}))
        store.finish_run(run)
    with Store.open(url) as store:
        (whole,) = store.results(run, samples=True)
        extra = {key: value for key, value in whole.extra.items() if key != "quantiles_ns"}
        assert replace(whole, extra=extra) == result
        assert whole.trial.case.id == result.trial.case.id
        (listed,) = store.results(run)
        assert listed.measurement is not None
        assert listed.measurement.samples_ns == (12.0,)
        assert listed.extra["quantiles_ns"] == [10.0, 11.0, 13.0, 5]
        assert store.ceilings(run)["cpu"].copy_gbps == 10.0
        found = store.find_run()
        assert (found.id, found.status, found.results, found.commit) == (run, "finished", 1, "abc")
        assert found.environment == ENVIRONMENT


def test_each_result_is_there_at_once(url: str) -> None:
    """Another connection sees a result before the run ends: killing the writer loses nothing finished."""
    with Store.open(url) as writer, Store.open(url) as reader:
        run = writer.begin_run(ENVIRONMENT)
        writer.add_result(run, a_result())
        assert len(reader.results(run)) == 1
        case_id = a_result().trial.case.id
        assert reader.finished_trials(run) == {(case_id, "optimized", "cpu")}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_figures_that_no_measurement_gives_are_refused(url: str, wrong: float) -> None:
    """Also among others: pages would fail at them. The error names the trial, and nothing is stored of it."""
    result = a_result()
    measurement = result.measurement
    assert measurement is not None
    with Store.open(url) as store:
        run = store.begin_run(ENVIRONMENT)
        for changed in (replace(measurement, samples_ns=(1.0, wrong, 3.0)), replace(measurement, hot_ns=wrong)):
            with pytest.raises(SubmissionError, match=r"^p_norm rows optimized\.measurement"):
                store.add_result(run, replace(result, measurement=changed))
        with pytest.raises(SubmissionError, match="those of cpu should be positive numbers"):
            store.add_ceilings(run, Ceilings("cpu", copy_gbps=wrong))
        assert store.results(run) == []
        assert store.ceilings(run) == {}
        possible = with_possible_figures(replace(result, measurement=replace(measurement, hot_ns=wrong)))
        assert (possible.status, possible.measurement) == (Status.ERROR, None)
        assert "hot_ns: should be a positive number" in possible.reason
        store.add_result(run, possible)


def test_a_trial_measured_again_replaces_its_result(url: str) -> None:
    """One result per trial and block; the samples of the old one go with it."""
    with Store.open(url) as store:
        run = store.begin_run(ENVIRONMENT)
        store.add_result(run, a_result(samples=5))
        store.add_result(run, a_result(samples=7))
        (found,) = store.results(run, samples=True)
        assert found.measurement is not None
        assert len(found.measurement.samples_ns) == 7


def test_a_run_that_goes_on_names_all_its_hosts(url: str) -> None:
    """It is running again; each host that it was on is in its environment once, all else as it was."""
    begun = Environment(ENVIRONMENT.hard, {**ENVIRONMENT.soft, "host": "one"})
    with Store.open(url) as store:
        run = store.begin_run(begun)
        store.add_result(run, a_result())
        store.finish_run(run, "interrupted")
        for host in ("one", "two", "two"):
            store.resume_run(run, host)
        found = store.find_run(run)
    assert found.status == "running"
    assert found.environment.hard == begun.hard
    assert found.environment.soft.items() >= {**begun.soft, "host": "one, two"}.items()


def test_a_failure_needs_no_measurement(url: str) -> None:
    """A result without measurement or check is stored with its reason."""
    failed = replace(a_result(), status=Status.TIMEOUT, reason="too long", measurement=None, check=None)
    with Store.open(url) as store:
        run = store.begin_run(ENVIRONMENT)
        store.add_result(run, failed)
        assert store.results(run)[0] == failed


def test_runs_are_found_by_the_beginning_of_their_id(url: str) -> None:
    """The latest run with results by default; a beginning that fits several, or none, is an error that says so."""
    with Store.open(url) as store:
        with pytest.raises(NothingError, match="opgauge run"):
            store.find_run()
        first = store.begin_run(ENVIRONMENT, run_id="aaaa-1")
        store.begin_run(ENVIRONMENT, run_id="aaaa-2")
        store.add_result(first, a_result())
        assert store.find_run().id == "aaaa-1"
        assert store.find_run("aaaa-2").id == "aaaa-2"
        store.begin_run(ENVIRONMENT, run_id="b")
        store.begin_run(ENVIRONMENT, run_id="c234567")
        assert store.find_run("b").id == "b"
        assert store.find_run("c234").id == "c234567"
        with pytest.raises(NothingError, match="no run c23"):
            store.find_run("c23")
        with pytest.raises(NothingError, match="several runs"):
            store.find_run("aaaa")
        with pytest.raises(NothingError, match="no run zz"):
            store.find_run("zz")
        with pytest.raises(StoreError, match="stored already"):
            store.begin_run(ENVIRONMENT, run_id="aaaa-1")


def test_lists_never_load_samples(url: str) -> None:
    """Reading results without samples sends no query to the table of samples."""
    with Store.open(url) as store:
        run = store.begin_run(ENVIRONMENT)
        store.add_result(run, a_result())
        with store.engine.begin() as connection:
            connection.execute(text("DROP TABLE sample"))
        assert len(store.results(run)) == 1


def test_sqlite_waits_and_writes_ahead(tmp_path: Path) -> None:
    """WAL, foreign keys and a busy timeout are on."""
    with Store.open(f"sqlite:///{tmp_path}/x.db") as store, store._engine.connect() as connection:
        pragmas = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "foreign_keys")]
        assert pragmas == ["wal", 1]
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 10_000


def test_models_and_migrations_agree(tmp_path: Path) -> None:
    """Alembic finds nothing to change in a migrated database, nor in one made at once."""
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext

    made = f"sqlite:///{tmp_path}/made.db"
    Store.open(made).close()
    migrated = create_engine(f"sqlite:///{tmp_path}/migrated.db")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with migrated.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    for engine in (migrated, create_engine(made)):
        assert version(engine) == HEAD
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []
        engine.dispose()


def test_databases_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    """Foreign, corrupt, newer, in a missing folder, or no URL at all: one StoreError each."""
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE cat (name TEXT)")
    connection.close()
    corrupt = tmp_path / "corrupt.db"
    corrupt.write_bytes(b"not a database, but long enough to be read as one" * 50)
    newer = tmp_path / "newer.db"
    Store.open(f"sqlite:///{newer}").close()
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for url, message in (
        (f"sqlite:///{foreign}", "not an opgauge database"),
        (f"sqlite:///{corrupt}", "not a usable database"),
        (f"sqlite:///{newer}", "newer than this opgauge"),
        (f"sqlite:///{tmp_path}/missing/x.db", "no folder"),
        ("nonsense", "not a database that can be opened"),
    ):
        with pytest.raises(StoreError, match=message):
            Store.open(url)


def test_many_open_a_new_database_at_once(url: str) -> None:
    """One makes the tables, the others wait and find them."""
    code = "import sys; from opgauge.harness.store import Store; sys.stdin.read(); Store.open(sys.argv[1]).close()"
    command = [sys.executable, "-c", code, url]
    started = [subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for process in started:  # all of them have imported what takes long by then, or nearly
        assert process.stdin is not None
        process.stdin.close()
    for process in started:
        assert process.stderr is not None
        said = process.stderr.read().decode()
        process.stderr.close()
        assert process.wait() == 0, said
    with Store.open(url) as store:
        assert store.runs() == []


def test_a_run_without_a_sign_of_life_is_interrupted(url: str) -> None:
    """An hour after its last result it ended there; a run that goes on stays."""
    with Store.open(url) as store:
        dead, alive = (store.begin_run(ENVIRONMENT) for _ in range(2))
        assert end_lost_runs(store.engine) == 0
        later = datetime.now(UTC) + timedelta(hours=2)
        with store.engine.begin() as connection:
            connection.execute(update(RunRow).where(RunRow.uuid == alive).values(seen=later))
        assert end_lost_runs(store.engine, later) == 1
        found = store.find_run(dead)
        assert (found.status, store.find_run(alive).status) == ("interrupted", "running")
        assert found.finished is not None
        assert found.finished < later - timedelta(hours=1)


def test_a_database_that_cannot_be_written_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in a read-only folder is opened for reading, without a log beside it; writing is refused."""
    folder = tmp_path / "with space"
    folder.mkdir()
    path = folder / "x.db"
    with Store.open(f"sqlite:///{path}") as store:
        run = store.begin_run(ENVIRONMENT)
    monkeypatch.setattr("opgauge.harness.store.engine.os.access", lambda *_: False)
    with Store.open(f"sqlite:///{path}") as store:
        assert store.find_run(run).id == run
        with pytest.raises(OperationalError, match="readonly"):
            store.finish_run(run)
    assert [one.name for one in folder.iterdir()] == ["x.db"]
