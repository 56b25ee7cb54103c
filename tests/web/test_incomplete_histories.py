"""Histories as teams have them: devices are replaced, runs are partial, series drift."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from opgauge.harness.gate.stored import runs_of_branch
from opgauge.harness.store.queries import data_version
from opgauge.web.comparison import compare_runs
from opgauge.web.known_regressions import known_regressions
from opgauge.web.look_back import look_back
from opgauge.web.reader import RECENT
from opgauge.web.steady import series_half_widths
from tests.commandline import run_here
from tests.web.dataset import START
from tests.web.histories import History, add_history
from tests.web.reading_pages import reader_of, text_of
from tests.web.submissions import store_of

OTHER = {"cuda:0.model": "NVIDIA B200"}


def chosen_device(page: str) -> str:
    """The text of the chosen device of a page."""
    device = page.partition('<select name="device">')[2].partition("</select>")[0]
    return str(re.findall(r"<option [^>]*selected>([^<]*)<", device)[0])


def test_a_replaced_device_is_no_default(empty_copy: TestClient) -> None:
    """The old one measured more cases; one that still runs beside a newer one stays the default."""
    store = store_of(empty_copy)
    add_history(store, {name: [100.0] * 3 for name in "abc"})
    add_history(store, {"a": [100.0] * 3}, hard=OTHER, first=START + timedelta(days=1, hours=1))
    assert "H200" in chosen_device(empty_copy.get("/ops/lerp").text.replace("B200", "-"))
    (after,) = add_history(store, {"a": [100.0]}, hard={"cuda:0.model": "NVIDIA B300"}, first=START + timedelta(days=9))
    for page in ("/ops/lerp", "/roofline", "/coverage"):
        assert "B300" in chosen_device(empty_copy.get(page).text), page
    assert "over the baseline on NVIDIA B300" in text_of(empty_copy.get("/").text)
    assert after[:8] in empty_copy.get("/ops/lerp").text


def test_a_run_without_the_baseline_leaves_the_ratio_of_the_one_before(empty_copy: TestClient) -> None:
    """The ratio is of the newest run that measured both, which the page names."""
    store = store_of(empty_copy)
    add_history(store, {"a": [100.0] * 2}, baseline=200.0)
    add_history(store, {"a": [50.0]}, first=START + timedelta(days=5))
    page = empty_copy.get("/ops/lerp").text
    ratio = text_of(page.partition('class="num strong">')[2].partition("</td>")[0])
    assert re.match(r"(2|1\.99|2\.01)× of 2026-01-06", ratio)


def test_a_kernel_that_is_broken_now_has_no_earlier_ratio(empty_copy: TestClient) -> None:
    """A speedup beside a failure would mislead."""
    store = store_of(empty_copy)
    add_history(store, {"a": [100.0] * 2}, baseline=200.0)
    add_history(store, {"a": ["wrong"]}, first=START + timedelta(days=5))
    assert '<td class="num strong">–</td>' in empty_copy.get("/ops/lerp").text


def test_a_drift_is_no_variation_between_runs(empty_copy: TestClient) -> None:
    """A series that drifts is as quiet as one that does not, and its drift is told by its ends."""
    drift = [100 * 1.01**number for number in range(30)]
    runs = add_history(store_of(empty_copy), {"drift": drift, "level": [100.0] * 30})
    reader = reader_of(empty_copy)
    keys = sorted(reader.recent().series, key=lambda key: reader.recent().cases[key[0]].name)
    drifting, level = series_half_widths(reader, keys, ())
    assert drifting < 1.3 * level
    infos = {one.id: one for one in reader.runs()}
    words = {one.case.name: one.word for one in compare_runs(reader, infos[runs[0]], infos[runs[-1]])}
    assert words == {"drift": "slower", "level": "undecided"}


def git(tree: Path, *given: str, **variables: str) -> str:
    """What git prints."""
    command = ["git", "-C", str(tree), "-c", "user.name=Ada", "-c", "user.email=ada@example", *given]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **variables})
    return done.stdout.strip()


def commit(tree: Path, text: str, day: int) -> str:
    """Commit a file on a day; gives the SHA."""
    (tree / text).write_text(text)
    when = f"2026-01-{day:02} 12:00:00 +0000"
    git(tree, "add", ".")
    git(tree, "commit", "-qm", text, GIT_COMMITTER_DATE=when, GIT_AUTHOR_DATE=when)
    return git(tree, "rev-parse", "HEAD")


def opgauge(client: TestClient, folder: Path, *given: str) -> None:
    """Run a command over the database of a service."""
    app = client.app
    assert isinstance(app, FastAPI)
    done = run_here(*given, "--db", app.state.settings.database, cwd=folder, variables={})
    assert done.returncode == 0, done.stderr


def test_a_rebased_commit_leaves_the_history(empty_copy: TestClient, tmp_path: Path) -> None:
    """As soon as the commits were read again; the running service and the command line both know."""
    tree, clone = tmp_path / "tree", tmp_path / "clone"
    tree.mkdir()
    git(tree, "init", "-qb", "main")
    shas = [commit(tree, name, day) for day, name in enumerate("abc", 5)]
    git(tmp_path, "clone", "-q", str(tree), str(clone))
    read = ["project", "commits", "kernels", "--tree", str(clone)]
    opgauge(empty_copy, tmp_path, *read)
    store = store_of(empty_copy)
    for place, sha in enumerate(shas):
        add_history(store, {"a": [100.0]}, first=START + timedelta(days=place), commit=sha, project="kernels")
    assert len(reader_of(empty_copy).history().runs) == 3
    git(tree, "reset", "-q", "--hard", shas[0])
    new = commit(tree, "d", 20)
    add_history(store, {"a": [100.0]}, first=START + timedelta(days=20), commit=new, project="kernels")
    git(clone, "fetch", "-q")
    opgauge(empty_copy, tmp_path, *read)
    history = reader_of(empty_copy).history()
    assert [run.sha for run in history.runs] == [shas[0], new]
    assert [run.sha for run in history.beside] == shas[1:]
    assert [run.sha for run in runs_of_branch(store.engine, "main")] == [new, shas[0]]


def test_settings_of_a_project_count_at_once(empty_copy: TestClient, tmp_path: Path) -> None:
    """Without a restart of the service or a new run."""
    store = store_of(empty_copy)
    add_history(store, {"a": [100.0] * 2}, project="kernels")
    add_history(store, {"a": [100.0]}, first=START + timedelta(days=9), branch="next", project="kernels")
    for branch, runs in (("main", 2), ("next", 1), ("main", 2)):
        opgauge(empty_copy, tmp_path, "project", "set", "kernels", "--default-branch", branch)
        assert len(reader_of(empty_copy).history().runs) == runs


@pytest.mark.parametrize("devices", [1, 2])
def test_a_regression_in_a_long_history_that_came_at_once_is_found(empty_copy: TestClient, devices: int) -> None:
    """It began long before the latest runs; one that was repaired there is history."""
    store, runs, bad = store_of(empty_copy), 3 * RECENT, RECENT // 2
    step = [100.0] * bad + [130.0] * (runs - bad)
    repaired = [100.0] * bad + [130.0] * RECENT + [100.0] * (runs - bad - RECENT)
    late = [100.0] * (runs - 10) + [130.0] * 10
    broken: list[float | str | None] = [*[100.0] * bad, *["wrong"] * (runs - bad)]
    outcomes: History = {"step": step, "repaired": repaired, "late": late, "broken": broken}
    for hard in ({"cuda:0.model": "A"}, {"cuda:0.model": "B"})[:devices]:
        ids = add_history(store, outcomes, hard=hard)
    reader = reader_of(empty_copy)

    def open_now() -> list[tuple[str, str]]:
        return sorted((one.case.name, one.run.id) for one in known_regressions(reader) if one.state == "open")

    assert {name for name, _ in open_now()} == {"late"}
    for _ in range(2):
        look_back(reader)
        assert {name for name, _ in open_now()} == {"broken", "late", "step"}
        assert len(open_now()) == 3 * devices
    assert ("step", ids[bad]) in open_now()
    state = data_version(store.engine)
    add_history(store, {"step": [130.0]}, hard={"cuda:0.model": "A"}, first=START + timedelta(days=runs))
    before = data_version(store.engine)
    look_back(reader)
    assert data_version(store.engine) == before != state
