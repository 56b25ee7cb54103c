"""Pages: every one with data and without, filters, escaping, headers, errors; acknowledging."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from opgauge.harness.gate.waiver import load_waivers
from opgauge.harness.report.export import as_csv, as_json, records, whole_run
from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import read_submission
from opgauge.harness.scope import Scope
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store, acknowledgements, self_tests
from opgauge.harness.store.tokens import create_token
from opgauge.web.app import create_app
from opgauge.web.reader import Reader
from opgauge.web.regression import known_regressions
from opgauge.web.table import written
from tests.web.dataset import HOSTILE

PLAIN = (
    "/",
    "/ops",
    "/devices",
    "/roofline",
    "/coverage",
    "/runs",
    "/compare",
    "/regressions",
    "/regressions.atom",
    "/trust",
)


def reader_of(client: TestClient) -> Reader:
    """What the app of a client reads through."""
    app = client.app
    assert isinstance(app, FastAPI)
    found: Reader = app.state.reader
    return found


def case_id(client: TestClient, name: str) -> str:
    """The id of the case called so."""
    return next(case.case_id for case in reader_of(client).recent().cases.values() if case.name == name)


def regression_key(client: TestClient, kind: str) -> str:
    """The key of an open regression."""
    return next(one.key for one in known_regressions(reader_of(client)) if one.kind == kind and one.state == "open")


def addresses(client: TestClient) -> list[str]:
    """A page of each kind, with data."""
    reader = reader_of(client)
    runs = reader.runs()
    return [
        *PLAIN,
        "/ops/p_norm",
        "/ops/flatten",
        *(f"/cases/{one.case_id}" for one in reader.recent().cases.values()),
        *(f"/regressions/{one.key}" for one in known_regressions(reader)),
        f"/runs/{runs[0].id}",
        f"/roofline?run={runs[1].id}",
        f"/compare?base={runs[1].id[:8]}&head={runs[0].id[:8]}",
        f"/compare?base={runs[9].id[:8]}&head={runs[1].id[:8]}&head={runs[0].id[:8]}",
        "/devices?op=lerp",
        f"/compare?base={runs[9].id[:8]}&head={runs[0].id[:8]}&base_device=cpu&head_device=cuda:0",
    ]


def text_of(html: str) -> str:
    """A page without its tags and scripts."""
    bare = re.sub(r"<script.*?</script>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def test_every_page_answers_with_data(client: TestClient) -> None:
    """200, and each says something of the runs."""
    for address in addresses(client):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert "Traceback" not in answer.text


@pytest.mark.parametrize("address", PLAIN)
def test_every_page_answers_without_data(empty: TestClient, address: str) -> None:
    """An empty store gives an empty state that says what to type."""
    answer = empty.get(address)
    assert answer.status_code == 200
    if not address.endswith(".atom"):
        assert "opgauge " in text_of(answer.text).replace("· opgauge", "")


def test_no_page_lets_hostile_text_through(client: TestClient) -> None:
    """Names, kernels, notes, tags, reasons and commands are shown as they are, nowhere as markup."""
    seen = 0
    for address in addresses(client):
        body = client.get(address).text
        assert "<script>alert" not in body, address
        assert "<b>%{x}" not in body, address
        seen += HOSTILE.split("alert")[0].replace("<", "&lt;").replace(">", "&gt;") in body
    assert seen >= 6


def test_figures_hold_hostile_text_as_entities(client: TestClient) -> None:
    """Plotly reads some HTML: what it gets has no tag, and the JSON cannot end its script element."""
    body = client.get(f"/cases/{case_id(client, HOSTILE)}").text
    figures = re.findall(r'<script type="application/json" id="[^"]+">(.*?)</script>', body, flags=re.DOTALL)
    assert len(figures) == 4
    for figure in figures:
        assert "<" not in figure
    assert any("\\u0026lt;script" in figure for figure in figures)


def test_headers_forbid_foreign_scripts(client: TestClient) -> None:
    """A strict policy on every answer, errors and static files included."""
    for address in ("/", "/nowhere", "/static/style.css", "/regressions.atom", "/cases/zz"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_no_page_has_inline_script_or_style(client: TestClient) -> None:
    """Scripts come from files, data stand in elements that are not run; nothing comes from elsewhere."""
    for address in addresses(client):
        body = client.get(address).text
        assert not re.search(r"<script(?![^>]*(src=|application/json))", body), address
        assert not re.search(r"<[^>]+\s(style|on\w+)=", body), address
        assert not re.search(r'(src|href)="(https?:)?//', body.replace('href="http://testserver', "")), address


def test_overview_says_where_ops_stand_and_what_got_slower(client: TestClient) -> None:
    """Ratios of every op on both devices; the step and the break are there, the repaired step is not."""
    text = text_of(client.get("/").text)
    for word in ("p_norm", "lerp", "flatten", "NVIDIA H200", "AMD EPYC 9454", "confirmed regressions", "1 failing"):
        assert word in text
    assert "seed-1[float32,porder=2] optimized on NVIDIA H200" in text
    worse, _, better = text.partition(" Faster ")
    assert "rows-256" not in worse
    assert "rows-256" in better


def test_overview_of_one_device(client: TestClient) -> None:
    """The filter leaves the other device's rows out."""
    cpu = next(slug for slug in reader_of(client).recent().devices if slug.startswith("cpu"))
    answer = client.get(f"/?device={cpu}").text
    assert 'class="lately"' not in answer
    assert f"device={cpu}" in answer


def test_op_filters(client: TestClient) -> None:
    """Dtype, tag, name, device and order change what the table has; hot times are the smaller ones."""
    everything = client.get("/ops/p_norm?device=all").text
    assert everything.count('<th scope="row">') == 8
    assert client.get("/ops/p_norm").text.count('<th scope="row">') == 4
    halves = client.get("/ops/p_norm?dtype=float16").text
    assert halves.count('<th scope="row">') == 2
    assert "float32,porder" not in text_of(halves)
    assert client.get("/ops/p_norm?q=porder%3Dinf").text.count('<th scope="row">') == 2
    assert client.get("/ops/p_norm?tag=smoke").text.count('<th scope="row">') == 0
    slowest = client.get("/ops/p_norm?sort=peer").text
    first = re.findall(r'<th scope="row">.*?>([^<]+)</a>', slowest, flags=re.DOTALL)[0]
    assert first == "seed-1[float32,porder=2]"
    assert client.get("/ops/p_norm?temperature=hot").text != client.get("/ops/p_norm").text


def test_op_of_an_earlier_run(client: TestClient) -> None:
    """`run` shows that run's numbers."""
    earlier = reader_of(client).runs()[-1]
    assert earlier.id[:8] in client.get(f"/ops/p_norm?run={earlier.id[:8]}").text


def test_case_page_tells_the_step_and_the_kernels(client: TestClient) -> None:
    """The change point with its commit, kernel names, host gap, environment, YAML and the command."""
    text = text_of(client.get(f"/cases/{case_id(client, 'seed-1[float32,porder=2]')}").text)
    for word in ("slower", "0d0d0d0d0d", "pow_kernel<float, 4>", "Host gap", "driver_major", "RFC table 1"):
        assert word in text
    assert "opgauge run --op p_norm --name 'seed-1[[]float32,porder=2]' --dtype float32" in text
    assert re.search(r"\+1[678]\.\d %", text)


def test_case_yaml_writes_infinities_as_yaml(client: TestClient) -> None:
    """What is copied from the page is a case file again."""
    text = text_of(client.get(f"/cases/{case_id(client, 'seed-1[float32,porder=inf]')}").text)
    assert "porder: .inf" in text


def test_runs_are_paged_and_filtered(client: TestClient) -> None:
    """By status and by the beginning of the commit."""
    assert client.get("/runs").text.count('<th scope="row">') == 22
    assert client.get("/runs?commit=0d0d").text.count('<th scope="row">') == 1
    assert "No runs match" in client.get("/runs?status=interrupted").text


def test_run_page_gives_reasons_and_files(client: TestClient) -> None:
    """The failure with its reason; JSON and CSV of the run."""
    run = reader_of(client).runs()[0]
    text = text_of(client.get(f"/runs/{run.id}").text)
    assert "y[3, 7] is 0.5, should be 0.25" in text
    assert "8 processes" in text
    exported = client.get(f"/runs/{run.id}/export.json")
    assert exported.json()["run"]["id"] == run.id
    assert "attachment" in exported.headers["content-disposition"]
    assert client.get(f"/runs/{run.id}/export.csv").text.startswith(
        "run,started,host,project,branch,commit,commit_time,op"
    )


def cells_of(table: str) -> list[list[str | float]]:
    """The cells of a table, numbers as such: 1e-6 and 1e-06 are the same."""

    def read(cell: str) -> str | float:
        try:
            return float(cell)
        except ValueError:
            return cell

    return [[read(cell) for cell in line] for line in csv.reader(io.StringIO(table))]


def test_a_table_is_that_of_the_results(client: TestClient) -> None:
    """Written past results, yet the same to the last cell: failures, profiles, hostile names."""
    reader = reader_of(client)
    with Store.open(str(reader.engine.url)) as store:
        for info in (reader.runs()[0], reader.runs()[-1]):
            found = as_csv(records(store.find_run(info.id), store.results(info.id), reader.ceilings(info)))
            table = client.get(f"/runs/{info.id}/export.csv").text
            assert cells_of(table) == cells_of(found)
            assert table.count('"') == found.count('"')


def test_numbers_of_a_table_are_those_of_csv() -> None:
    """Nothing for what is not known, truths and infinities as Python writes them, every number to the last digit."""
    rows = [(None, True, False, math.inf, math.nan, 1e-7, 0.1 + 0.2, 2**62), (1, None, None, 1e22, 5e-324, 0.5, -1, 0)]
    first, second = (next(csv.reader([line])) for line in written(rows))
    assert first[:5] == ["", "True", "False", "inf", "nan"]
    assert [float(cell) for cell in first[5:7]] == [1e-7, 0.1 + 0.2]
    assert first[7] == str(2**62)
    assert second[1:3] == ["", ""]
    assert [float(cell) for cell in second[3:5]] == [1e22, 5e-324]
    assert written([]) == []


def test_an_exported_run_is_what_the_store_gives(client: TestClient) -> None:
    """Written past results, yet the same: samples, checks, profiles, failures, and it is read again."""
    reader = reader_of(client)
    with Store.open(str(reader.engine.url)) as store:
        for info in (reader.runs()[0], reader.runs()[-1]):
            run, results = store.find_run(info.id), store.results(info.id, samples=True)
            exported = client.get(f"/runs/{info.id}/export.json").json()
            assert exported == json.loads(as_json(whole_run(run, results, store.ceilings(info.id))))
            assert len(read_submission(exported).results) == len(results)


def test_compare_takes_runs_commits_and_branches(client: TestClient) -> None:
    """Verdicts with reasons come before the environment; unknown names are reported."""
    newest, before = reader_of(client).runs()[:2]
    text = text_of(client.get(f"/compare?base={before.id[:8]}&head={newest.id[:8]}").text)
    assert "the interval lies within the threshold" in text
    assert "None: same hardware, versions and commit." in text
    by_commit = text_of(client.get("/compare?base=0101010101&head=main").text)
    assert "too few pairs" in by_commit
    assert by_commit.index("Verdicts") < by_commit.index("Differences of environment")
    assert "no run, commit or branch begins with 'nothing'" in text_of(
        client.get("/compare?base=nothing&head=main").text
    )


def test_compare_filters_by_verdict(client: TestClient) -> None:
    """Only the broken one is left."""
    newest, before = reader_of(client).runs()[:2]
    address = f"/compare?base={before.id[:8]}&head={newest.id[:8]}"
    assert client.get(f"{address}&verdict=broken").text.count('<th scope="row"><span class="op">') == 1


def test_regressions_by_state(client: TestClient) -> None:
    """Two open, one fixed, none acknowledged."""
    for state, count in (("open", 2), ("fixed", 1), ("acknowledged", 0)):
        found = client.get(f"/regressions?state={state}").text.count('<th scope="row">')
        assert (state, found) == (state, count)


def test_trust_shows_stored_self_tests(writable: TestClient) -> None:
    """Shares with their bounds, cases by name, and the change that the gate sees beside a case's own noise."""
    case = case_id(writable, "rows-256")
    row = {"case": HOSTILE, "case_id": case, "implementation": "optimized", "detectable_change": 0.0123, "ratio": None}
    data = {"runs": 20, "false_alarm_share": 0.001, "false_alarm_low": 0.0, "false_alarm_high": 0.004, "cases": [row]}
    now = datetime.now(UTC)
    engine = reader_of(writable).engine
    self_tests.add_self_test(engine, self_tests.SelfTest("aa", now, "ab" * 20, "cuda:0", data))
    self_tests.add_self_test(
        engine, self_tests.SelfTest("agree", now, "", "cuda:0", {"cases": ["odd", {"ours_ns": 1500.0}]})
    )
    text = text_of(writable.get("/trust").text)
    assert "false alarm 0.1 % (0 % – 0.4 %)" in text
    assert "1.5 µs" in text
    assert text.count("1.2 %") >= 1
    assert "opgauge aa" not in text


def test_the_feed_is_atom(client: TestClient) -> None:
    """Well-formed, an entry per regression."""
    feed = ET.fromstring(client.get("/regressions.atom").content)  # noqa: S314  our own
    assert len(feed.findall("{http://www.w3.org/2005/Atom}entry")) == 3


def acknowledgement(**changed: str) -> str:
    """A filled form."""
    until = (datetime.now(UTC).date() + timedelta(days=9)).isoformat()
    form = {"owner": "Ada", "reason": f"wider: {HOSTILE}", "until": until, "expected": "1.25", "token": ""}
    return urlencode({**form, **changed})


def post(client: TestClient, key: str, body: str) -> tuple[int, str]:
    """Send the form."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post(f"/regressions/{key}", content=body, headers=headers)
    return answer.status_code, answer.text


def test_acknowledging_without_a_token_only_writes_the_waiver(
    writable: TestClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The YAML is one that the gate reads; nothing is stored."""
    key = regression_key(writable, "slower")
    status, body = post(writable, key, acknowledgement())
    assert status == 200
    found = re.search(r'<pre[^>]*id="waiver"><code>(.*?)</code>', body, flags=re.DOTALL)
    assert found is not None
    path = tmp_path_factory.mktemp("waivers") / "waivers.yaml"
    path.write_text("waivers:\n" + unescape(found.group(1)), encoding="utf-8")
    (waiver,) = load_waivers(path)
    assert (waiver.owner, waiver.reason, waiver.expected_ratio) == ("Ada", f"wider: {HOSTILE}", 1.25)
    assert acknowledgements.list_acknowledgements(reader_of(writable).engine) == []


def test_acknowledging_with_a_token_is_seen_by_all(writable: TestClient) -> None:
    """The regression is acknowledged, with name, reason and day; a second look says so."""
    key = regression_key(writable, "slower")
    secret = create_token(reader_of(writable).engine, "ada", Scope.ACK)
    status, body = post(writable, key, acknowledgement(token=secret))
    assert status == 200
    assert "acknowledged" in text_of(body)
    assert writable.get("/regressions?state=acknowledged").text.count('<th scope="row">') == 1
    assert "confirmed regression" in text_of(writable.get("/").text)


WAIVERS = """
waivers:
  - {cases: "p_norm/*", device: "cuda*", owner: Grace, until: 2999-12-31, expected_ratio: 1.3,
     reason: "wider <b>sums</b>"}
  - {cases: lerp, owner: Ada, reason: long ago, until: 2020-01-01, verdicts: [slower, broken]}
"""


def test_the_waiver_file_counts_and_is_shown(filled_file: Path, tmp_path: Path) -> None:
    """What it excuses is acknowledged, by its owner; what has expired says so and excuses nothing; a change is seen."""
    path = tmp_path / "waivers.yaml"
    path.write_text(WAIVERS, encoding="utf-8")
    with TestClient(create_app(Settings(database=f"sqlite:///{filled_file}"), waivers=path)) as client:
        found = {one.kind: one.state for one in known_regressions(reader_of(client)) if one.state != "fixed"}
        assert found == {"slower": "acknowledged", "broken": "open"}
        page = client.get("/regressions").text
        assert "wider &lt;b&gt;sums" in page
        for word in ("Grace, until 2999-12-31", "waiver file", "expired", "+30.0 %"):
            assert word in text_of(page)
        key = next(one.key for one in known_regressions(reader_of(client)) if one.state == "acknowledged")
        assert "Grace" in text_of(client.get(f"/regressions/{key}").text)
        path.write_text("waivers: [{cases: x}]", encoding="utf-8")
        assert "has no owner" in text_of(client.get("/regressions").text)
        assert {one.state for one in known_regressions(reader_of(client))} == {"open", "fixed"}


def test_a_run_of_one_case_hides_no_other(writable: TestClient) -> None:
    """Overview and op page have each case by the latest run that has it."""
    from tests.web.dataset import HARD, results

    with Store.open(str(reader_of(writable).engine.url)) as store:
        run = store.begin_run(Environment(HARD, {}))
        alone = next(one for one in results(0, np.random.default_rng(1)) if one.trial.device == "cuda:0")
        store.add_result(run, alone)
        store.finish_run(run)
    assert alone.trial.case.op == "p_norm"
    assert writable.get("/ops/p_norm?device=all").text.count('<th scope="row">') == 8
    assert run[:8] in writable.get("/ops/p_norm").text
    assert "14 cases in the latest runs" in text_of(writable.get("/").text)


def test_acknowledging_needs_a_good_token_and_a_good_form(writable: TestClient) -> None:
    """Wrong tokens, tokens of another scope, days that have passed, odd ratios and other bodies change nothing."""
    key = regression_key(writable, "slower")
    engine = reader_of(writable).engine
    submit = create_token(engine, "ci", Scope.SUBMIT)
    assert post(writable, key, acknowledgement(token="opg_wrong"))[0] == 401  # noqa: S106
    assert post(writable, key, acknowledgement(token=submit))[0] == 403
    for changed in (
        {"until": "2020-01-01"},
        {"until": "soon"},
        {"owner": " "},
        {"expected": "-1"},
        {"expected": "inf"},
    ):
        assert post(writable, key, acknowledgement(**changed))[0] == 422
    assert writable.post(f"/regressions/{key}", json={}).status_code == 415
    assert post(writable, key, "owner=" + "x" * 20_000)[0] == 413
    assert acknowledgements.list_acknowledgements(engine) == []


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/nowhere", 404),
        ("/ops/nothing", 404),
        ("/ops/p_norm?run=zzzz", 404),
        ("/cases/0000000000000000", 404),
        ("/cases/..%2F..%2Fetc", 404),
        ("/cases/zz", 422),
        ("/runs/zzzz", 404),
        ("/roofline?run=zzzz", 404),
        ("/roofline?device=%3Cscript%3E", 422),
        ("/runs?number=0", 422),
        ("/runs?number=abc", 422),
        ("/runs?number=999999", 200),
        ("/ops/p_norm?sort=drop+table", 422),
        ("/?device=%3Cscript%3E", 422),
        ("/static/..%2fapp.py", 404),
        ("/static/app.py", 404),
        ("/regressions/nothing", 404),
    ],
)
def test_bad_addresses_are_answered_with_a_page(client: TestClient, address: str, status: int) -> None:
    """An error page of the right status, without a traceback."""
    answer = client.get(address)
    assert answer.status_code == status
    assert "<html" in answer.text
    assert "Traceback" not in answer.text


def test_a_fault_of_ours_shows_no_traceback(filled_file: object) -> None:
    """500 with the headers of any page."""
    app = create_app(Settings(database=f"sqlite:///{filled_file}"))

    def fail() -> None:
        msg = "secret detail"
        raise RuntimeError(msg)

    app.add_api_route("/fail", fail)
    answer = TestClient(app, raise_server_exceptions=False).get("/fail")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers


def test_pages_are_not_sent_twice(client: TestClient) -> None:
    """An unchanged page is answered with 304."""
    first = client.get("/")
    assert client.get("/", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_pages_follow_the_data(writable: TestClient) -> None:
    """A new run is on the page that was asked for before."""
    before = writable.get("/runs").text
    with Store.open(str(reader_of(writable).engine.url)) as store:
        run = store.begin_run(Environment({"cpu.model": "x"}, {}))
    assert run[:8] not in before
    assert run[:8] in writable.get("/runs").text


def test_static_files_are_named_by_content(client: TestClient) -> None:
    """The address in the page may be kept for ever; another mark may not; plotly.js comes compressed."""
    style = re.search(r"/static/style\.css\?v=[0-9a-f]+", client.get("/").text)
    assert style is not None
    assert "immutable" in client.get(style.group()).headers["cache-control"]
    assert client.get("/static/style.css?v=0").headers["cache-control"] == "no-cache"
    plotly = client.get("/static/plotly.min.js", headers={"Accept-Encoding": "gzip"})
    assert plotly.headers["content-encoding"] == "gzip"
    assert b"plotly.js" in plotly.content[:200]


def test_lists_load_no_samples(writable: TestClient) -> None:
    """Every page but a case's and a run's export does without the table of samples."""
    from sqlalchemy import text

    with reader_of(writable).engine.begin() as connection:
        connection.execute(text("DROP TABLE sample"))
    for address in addresses(writable):
        if not address.startswith("/cases"):
            assert writable.get(address).status_code == 200, address


def test_the_number_of_queries_does_not_grow_with_the_rows(client: TestClient) -> None:
    """No page asks more than thirty times, whatever it shows."""
    from sqlalchemy import event

    reader = reader_of(client)
    counted: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        counted.append(statement)

    event.listen(reader.engine, "before_cursor_execute", count)
    try:
        for address in addresses(client):
            reader.cache.forget()
            counted.clear()
            client.get(address)
            assert len(counted) <= 60, (address, len(counted))
    finally:
        event.remove(reader.engine, "before_cursor_execute", count)
