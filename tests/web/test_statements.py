"""Statements of pages that would mislead: nothing found for a wrong address, verdicts on other hardware."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import numpy as np
import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.result import Environment
from opgauge.harness.store import Store
from opgauge.harness.store.deleting import delete_runs
from opgauge.harness.store.open_regressions import list_open, replace_open
from opgauge.web.comparison import compare_runs, sort_compared
from opgauge.web.known_regressions import known_regressions
from opgauge.web.pages.overview import known_standings
from opgauge.web.reader import RECENT
from tests.web.dataset import HARD, START, results
from tests.web.histories import add_history, case_of
from tests.web.reading_pages import reader_of, text_of
from tests.web.submissions import a_run, bearer, put, store_of


def add(store: Store, factors: tuple[float, float, float], model: str = "a GPU") -> str:
    """A run of the dataset in which every third trial has another factor."""
    name = store.begin_run(Environment({"cuda:0.model": model}, {"commit": "c" * 40}))
    for place, result in enumerate(results(0, np.random.default_rng(0))):
        found = result
        if found.measurement is not None:
            samples = tuple(factors[place % 3] * time for time in found.measurement.samples_ns)
            found = replace(found, measurement=replace(found.measurement, samples_ns=samples))
        store.add_result(name, found)
    store.finish_run(name)
    return name


def test_a_device_that_is_unknown_is_not_all_right(client: TestClient) -> None:
    """An address that was noted before a driver changed: nothing is found there, which is said, with what there is."""
    answer = client.get("/?device=cuda0-000000")
    assert answer.status_code == 404
    text = text_of(answer.text)
    assert "no device cuda0-000000 in the latest runs; there are: " in text
    for slug, device in reader_of(client).recent().devices.items():
        assert f"{slug} ({device.model})" in text
        assert client.get(f"/?device={slug}").status_code == 200


def test_a_long_reason_is_folded_and_whole(empty_copy: TestClient) -> None:
    """The row of a failure stays low on a phone; nothing of the reason is lost."""
    reason = f"y[3, 7] is 0.5: {'a_long_path/' * 60}end"
    run = a_run(2)
    run["results"][0] |= {"status": "error", "reason": reason, "measurement": None, "check": None}
    put(empty_copy, run, bearer(empty_copy))
    page = empty_copy.get(f"/runs/{run['run']['id']}").text
    summary, rest = page.partition("<summary>y[3, 7]")[2].partition("</details>")[0].split("…</summary>…")
    assert f"y[3, 7]{summary}{rest}" == reason
    assert len(summary) < 160


@pytest.mark.parametrize("address", ["/projects", "/runs/x/y/z", "/api/v1/nothing"])
def test_an_unknown_address_is_named(client: TestClient, address: str) -> None:
    """In words, on pages and by the API."""
    answer = client.get(address)
    assert answer.status_code == 404
    assert f"There is nothing at {address}" in answer.text


def test_comparisons_begin_with_what_changed(empty_copy: TestClient) -> None:
    """Slower before faster before the rest, whatever the ratios."""
    store, reader = store_of(empty_copy), reader_of(empty_copy)
    add(store, (1.0, 1.0, 1.0))
    add(store, (1.01, 3.0, 0.3))
    head, base = reader.runs()
    found = sort_compared(compare_runs(reader, base, head))
    words = [word for word, _ in groupby(one.word for one in found if one.ratio)]
    assert words == ["slower", "faster", "undecided"]
    ratios = [one.ratio for one in found if one.word == "slower" and one.ratio]
    assert ratios == sorted(ratios, reverse=True)
    assert all(one.detail.startswith("by chance two of its runs differ by up to ") for one in found if one.half_width)


def test_runs_of_other_hardware_are_marked_among_several(empty_copy: TestClient) -> None:
    """The run on another GPU, not the one on the same; with the words of a comparison of two."""
    store = store_of(empty_copy)
    base, same, other = add(store, (1.0,) * 3), add(store, (1.0,) * 3), add(store, (3.0,) * 3, "another GPU")
    page = text_of(empty_copy.get(f"/compare?base={base}&head={same}&head={other}").text)
    assert page.count("other hardware or drivers than the base") == 1
    assert page.count("other hardware or drivers") == 2
    alike = text_of(empty_copy.get(f"/compare?base={base}&head={same}&head={same}").text)
    assert "other hardware or drivers" not in alike


def test_the_last_run_of_a_device_is_the_latest_whatever_it_measured(empty_copy: TestClient) -> None:
    """An old commit and another branch, measured last, count; a device that was only described does not."""
    headers, sent = bearer(empty_copy), []
    for place, (commit, branch, day) in enumerate((("b" * 40, "main", 3), ("a" * 40, "main", 5), ("c" * 40, "x", 7))):
        run = a_run(24)
        run["results"] = [one for one in run["results"] if one["trial"]["device"] == "cuda:0"]
        run["run"] |= {"started": f"2026-02-0{day}T09:00:00+00:00", "finished": f"2026-02-0{day}T10:00:00+00:00"}
        run["run"]["environment"]["soft"] |= {"commit": commit, "branch": branch}
        run["run"]["environment"]["soft"]["commit_time"] = f"2026-01-{9 - place:02}T09:00:00+00:00"
        put(empty_copy, run, headers)
        sent.append(run["run"]["id"])
        found = re.findall(r"opgauge_last_run_timestamp_seconds{(.*)} (\S+)", empty_copy.get("/metrics").text)
        assert [('device="cuda:0"' in labels, float(when)) for labels, when in found] == [
            (True, datetime(2026, 2, day, 9, tzinfo=UTC).timestamp())
        ]
        for page in ("/", "/devices"):
            assert f"2026-02-0{day} 09:00" in empty_copy.get(page).text


def test_what_cannot_run_is_neither_ok_nor_wrong(empty_copy: TestClient) -> None:
    """An unsupported implementation has no sample of its correctness, and no tick on the page of the op."""
    run = a_run(1)
    (result,) = run["results"]
    result |= {"status": "unsupported", "reason": "no kernel here", "measurement": None, "check": None}
    put(empty_copy, run, bearer(empty_copy))
    assert "opgauge_ok{" not in empty_copy.get("/metrics").text
    op = result["trial"]["case"]["op"]
    assert "badge ok" not in empty_copy.get(f"/ops/{op}").text


def test_all_is_well_only_where_it_is(empty_copy: TestClient) -> None:
    """Cases that never were right, slow drifts and acknowledged regressions are named beside that nothing is open."""
    add_history(store_of(empty_copy), {"still": [100] * 24})
    good = '<p class="good">No open regression in 1 series'
    assert good in empty_copy.get("/").text
    drift = [100 * 1.01**number for number in range(24)]
    add_history(store_of(empty_copy), {"never": ["wrong"] * 24, "drift": drift, "alone": [None] * 23 + [100]})
    page = empty_copy.get("/").text
    text = text_of(page)
    assert good not in page
    assert "No open regression in 2 series with several runs" in text
    assert "1 case fails all the same" in text
    assert "lerp drift optimized" in text.partition("Slower little by little")[2].partition("A slow trend")[0]


def test_a_history_of_one_run_says_nothing_of_regressions(empty_copy: TestClient) -> None:
    """Nothing can have got slower: that is no good news."""
    add_history(store_of(empty_copy), {"alone": [100]})
    assert "No series has several runs yet" in text_of(empty_copy.get("/").text)


def test_devices_that_differ_have_different_names(empty_copy: TestClient) -> None:
    """A new driver, or fewer threads, makes another device of the same model: every choice and table tells which."""
    for facts in ({}, {"cuda:0.driver_major": "590"}, {"cuda:0.mig": "on"}):
        add_history(store_of(empty_copy), {"x": [100, 200]}, hard={**HARD, **facts})
    slugs = reader_of(empty_copy).recent().devices
    assert len(slugs) == 3
    for address in ("/", "/ops/lerp?device=all", f"/cases/{case_of('x').id}", "/regressions", "/roofline"):
        page = empty_copy.get(address).text
        names = [re.search(rf'<option value="{slug}"[^>]*>([^<]*)', page) for slug in slugs]
        found = {name[1] for name in names if name}
        assert found == {f"NVIDIA H200 (cuda:0, {one})" for one in ("driver 580", "driver 590", "driver 580, MIG on")}
    text = text_of(empty_copy.get("/ops/lerp?device=all").text).partition("Correct, error")[2]
    assert {"driver 580 ", "driver 590 ", "driver 580, MIG on"} <= set(re.findall(r"driver 5\d0(?: |, MIG on)", text))


def test_a_regression_that_nothing_measures_any_more_says_so(empty_copy: TestClient) -> None:
    """A case that was removed, or renamed, after it got slower stays open: with the day of its last run."""
    step = [100] * 10 + [120] * 10
    add_history(store_of(empty_copy), {"gone": [*step, None, None], "still": [*step, 120, 120]})
    key = {one.case.name: one.key for one in known_regressions(reader_of(empty_copy))}
    for address in ("/", "/regressions"):
        text = text_of(empty_copy.get(address).text)
        assert text.count("not measured after") == 1
        assert "not measured after 2026-01-24 09:00" in text
    assert "Last measured" in empty_copy.get(f"/regressions/{key['gone']}").text
    assert "Last measured" not in empty_copy.get(f"/regressions/{key['still']}").text


def test_counts_are_those_of_the_list_that_they_link(empty_copy: TestClient) -> None:
    """With a device chosen too, on the overview and among the states."""
    store, step = store_of(empty_copy), [100] * 10 + [120] * 10
    add_history(store, {"a": step, "b": step})
    add_history(store, {"a": step}, hard={**HARD, "cuda:0.model": "Tesla V100"})
    (slug,) = [key for key, one in reader_of(empty_copy).recent().devices.items() if one.model == "Tesla V100"]
    for page, count in (("/", 3), (f"/?device={slug}", 1)):
        text = empty_copy.get(page).text
        assert f"<b>{count}</b>" in text
        target = re.search(r'href="(/regressions\?state=open[^"]*)"', text)
        assert target is not None
        listed = empty_copy.get(target[1].replace("&amp;", "&")).text
        assert listed.count('<th scope="row">') == count
        assert f"open {count} " in text_of(listed)


def test_a_badge_says_what_the_overview_says(empty_copy: TestClient) -> None:
    """A later run of one case hides neither the broken ones nor the ratios of the others."""
    store, later = store_of(empty_copy), START + timedelta(days=3)
    add_history(store, {"a": [100] * 3, "b": [200] * 3}, 400)
    add_history(store, {"a": [100]}, 400, first=later)
    badge = empty_copy.get("/api/v1/ops/lerp/badge.svg").text
    (standing,) = known_standings(reader_of(empty_copy))
    assert f"{standing.speedup or 0:.3g}× baseline" in badge
    assert 2.7 < (standing.speedup or 0) < 2.9
    add_history(store, {"b": ["wrong"]}, first=later)
    add_history(store, {"a": [100]}, first=later + timedelta(days=1))
    assert "1 of 2 broken" in empty_copy.get("/api/v1/ops/lerp/badge.svg").text


def test_the_headline_is_of_the_device_in_use(empty_copy: TestClient) -> None:
    """After a new driver the figures of the old one, which has the same ops, are no headline."""
    for number in range(6):
        hard, first = {**HARD, "cuda:0.driver_major": str(580 + number)}, START + timedelta(days=number)
        add_history(store_of(empty_copy), {"x": [100]}, 200 + 100 * number, hard=hard, first=first)
        tiles = text_of(empty_copy.get("/").text).partition("Standing")[0]
        (ratio,) = re.findall(r"([\d.]+)× over the baseline", tiles)
        assert abs(float(ratio) - 2 - number) < 0.2


@pytest.mark.parametrize(("bad", "said"), [(150, "slower"), ("wrong", "broken")])
def test_what_is_not_repaired_stays_open(empty_copy: TestClient, bad: float | str, said: str) -> None:
    """However many runs follow; fixed once the series is as before; and history when the runs before that are gone."""
    store, day, key = store_of(empty_copy), 0, ""

    def add(outcome: float | str, count: int) -> str:
        nonlocal day
        add_history(store, {"x": [outcome] * count, "y": [100] * count}, first=START + timedelta(days=day))
        day += count
        text = text_of(empty_copy.get("/regressions").text)
        found = [one.key for one in known_regressions(reader_of(empty_copy))]
        assert found in ([key], []) or not key
        return found[0] if found and f"open {len(found)}" in text else text

    add(100, 14)
    key = add(bad, 5)
    assert len(key) == 16
    (first,) = known_regressions(reader_of(empty_copy))
    for _ in range(3):
        assert add(bad, RECENT // 2) == key
    (still,) = known_regressions(reader_of(empty_copy))
    assert (still.kind, still.key, still.run, still.state) == (said, first.key, first.run, "open")
    assert empty_copy.get(f"/regressions/{key}").status_code == 200
    assert "No open regression" not in text_of(empty_copy.get("/").text)
    assert "fixed 1" in add(100, 4)
    assert "open 0" in add(100, RECENT)
    assert not known_regressions(reader_of(empty_copy))


@pytest.mark.parametrize("are_deleted", [False, True])
def test_steps_that_are_refuted_or_deleted_are_forgotten(empty_copy: TestClient, *, are_deleted: bool) -> None:
    """A step whose beginning is still looked at, and that is found no more, was none; nor is one of deleted runs."""
    store = store_of(empty_copy)
    add_history(store, {"x": [100] * 14 + [150] * 5})
    (found,) = known_regressions(reader_of(empty_copy))
    (kept,) = list_open(store.engine)
    assert (found.state, found.key) == ("open", kept.key)
    if are_deleted:
        delete_runs(store.engine, [run.id for run in reader_of(empty_copy).runs()[:5]])
    else:  # as if it had been found in runs that others deny by now
        runs = reader_of(empty_copy).runs()
        replace_open(store.engine, [replace(kept, key="0" * 16, before=runs[7].id, run=runs[6].id)], [])
        assert len(list_open(store.engine)) == 2
    add_history(store, {"x": [100 if are_deleted else 150] * 5}, first=START + timedelta(days=25))
    assert "0" * 16 not in {one.key for one in known_regressions(reader_of(empty_copy))}
    assert [one.key for one in list_open(store.engine)] == ([] if are_deleted else [kept.key])
