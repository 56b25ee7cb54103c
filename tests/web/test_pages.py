"""Pages: every one with data and without, filters, escaping, headers, errors."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.result import Environment
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store, self_tests
from opgauge.web.app import create_app
from tests.web.dataset import HOSTILE
from tests.web.reading_pages import PLAIN, addresses, case_id, reader_of, text_of


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
    assert "was as fast before" in better


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
    data: dict[str, object] = {"caught_from_10_us_total": 6, "runs": 20, "cases": [row]}
    data |= {"false_alarm_share": 0.001, "false_alarm_low": 0.0, "false_alarm_high": 0.004}
    now = datetime.now(UTC)
    engine = reader_of(writable).engine
    self_tests.add_self_test(engine, self_tests.SelfTest("aa", now, "ab" * 20, "cuda:0", data))
    self_tests.add_self_test(
        engine, self_tests.SelfTest("agree", now, "", "cuda:0", {"cases": ["odd", {"ours_ns": 1500.0}]})
    )
    text = text_of(writable.get("/trust").text)
    assert "false alarm 0.1 % (0 % – 0.4 %)" in text
    assert "caught from 10 µs total 6" in text
    assert "1.5 µs" in text
    assert text.count("1.2 %") >= 1
    assert "opgauge aa" not in text


def test_the_feed_is_atom(client: TestClient) -> None:
    """Well-formed, an entry per regression."""
    feed = ET.fromstring(client.get("/regressions.atom").content)  # noqa: S314  our own
    assert len(feed.findall("{http://www.w3.org/2005/Atom}entry")) == 3


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
    assert "14 cases, each by its latest run" in text_of(writable.get("/").text)


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
    """No page asks more often, whatever it shows; half of these look for a newer version of the data."""
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
            assert len(counted) <= 70, (address, len(counted))
    finally:
        event.remove(reader.engine, "before_cursor_execute", count)


def test_a_case_has_the_same_marks_however_few_runs_are_drawn(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is sought in all runs, whether the figure has them all or leaves most out."""
    cases = [f"/cases/{one}" for one in reader_of(client).recent().cases]

    def marks(most: int) -> list[list[str]]:
        monkeypatch.setattr("opgauge.web.pages.case.DRAWN_RUNS", most)
        reader_of(client).cache.forget()
        return [re.findall("<li><span.*?</li>", client.get(address).text) for address in cases]

    assert any(marks(120))
    assert marks(5) == marks(120)
