"""Commits on pages: author, subject, links to the forge, the commits between two runs, and marks in histories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from opgauge.harness.result.result import Environment
from opgauge.harness.result.submission import Submission
from opgauge.harness.settings import Settings
from opgauge.harness.store import Store
from opgauge.harness.store.acknowledgements import Acknowledgement, add_acknowledgement
from opgauge.harness.store.bulk import add_run
from opgauge.harness.store.history import corrected_dates
from opgauge.harness.store.projects import Commit, ProjectSettings, add_commits, save_project
from opgauge.web.app import create_app
from opgauge.web.commits import MOST_BETWEEN, CommitBook
from opgauge.web.known_regressions import known_regressions
from tests.databases import database
from tests.web.dataset import HARD, HOSTILE, RUNS, START, STEP_AT
from tests.web.reading_pages import case_id, reader_of

FORGE = "https://forge.example/kernels/commit/{sha}"
STEPPED = "seed-1[float32,porder=2]"


def sha_of(run: int) -> str:
    """Commit of a run of the dataset."""
    return f"{min(run, RUNS - 2) + 1:02x}" * 20


def history(edges: dict[str, str], dates: dict[str, int] | None = None) -> CommitBook:
    """Commits by name, each with the names of its parents; dated in their order or as given, in hours."""
    made = {
        name: Commit(name, tuple(parents), START + timedelta(hours=(dates or {}).get(name, place)), "", name)
        for place, (name, parents) in enumerate(edges.items())
    }
    return CommitBook(made, dates=corrected_dates(made, {}))


def between(book: CommitBook, base: str, head: str) -> str:
    """Names of the commits between two."""
    return "".join(one.sha for one in book.between(base, head))


@pytest.fixture(scope="module")
def described(filled: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The service over the filled store with known commits, a forge and one acknowledgement; only to be read."""
    with database(tmp_path_factory.mktemp("described"), filled) as url:
        shas = list(dict.fromkeys(map(sha_of, range(RUNS))))
        made = [
            Commit(sha, (shas[place - 1],) if place else (), START + timedelta(days=place), "Ada", f"{HOSTILE} {place}")
            for place, sha in enumerate(shas)
        ]
        with Store.open(url) as store:
            add_commits(store.engine, "", made)
            save_project(store.engine, ProjectSettings("", forge=FORGE))
        with TestClient(create_app(Settings(database=url))) as client:
            case = case_id(client, STEPPED)
            until = datetime.now(UTC).date() + timedelta(days=9)
            given = Acknowledgement(
                case, "optimized", "cuda:0", "slower", "Grace", HOSTILE, until, None, datetime.now(UTC)
            )
            add_acknowledgement(reader_of(client).engine, given)
            reader_of(client).cache._cache.forget()
            yield client


def figure(client: TestClient, name: str) -> dict[str, Any]:
    """The history figure of a case on the GPU."""
    slug = next(one.slug for one in reader_of(client).recent().devices.values() if one.name != "cpu")
    page = client.get(f"/cases/{case_id(client, name)}", params={"device": slug}).text
    source = page.partition('id="chart-history">')[2].partition("</script>")[0]
    found: dict[str, Any] = json.loads(source)
    return found


def test_the_commits_between_two_are_those_that_only_the_later_has() -> None:
    """A branch that was merged is listed, what the base has is not, whatever the clocks say."""
    edges = {"a": "", "b": "a", "x": "a", "c": "b", "m": "cx", "d": "m"}
    assert between(history(edges), "c", "d") == "dmx"
    assert between(history(edges, {"a": 9, "b": 1}), "c", "d") == "dmx"
    assert between(history(edges, {"x": -5}), "c", "d") == "dmx"
    assert between(history(edges), "d", "c") == ""
    assert between(history(edges), "d", "d-dirty") == ""
    assert between(history(edges), "b", "x") == "x"


def test_commits_found_too_early_are_left_out_once_the_base_has_them() -> None:
    """A clock far ahead shows an ancestor of the base before the base itself."""
    edges = {"a": "", "b": "a", "c": "b", "d": "a"}
    assert between(history(edges, {"a": 50, "b": 1, "c": 2, "d": 60}), "c", "d") == "d"


def test_nothing_is_said_between_commits_with_a_gap() -> None:
    """Where parents are not known, as in a shallow clone, a list would be too short."""
    assert between(history({"a": "", "c": "b"}), "a", "c") == ""
    assert between(history({"a": ""}), "a", "unknown") == ""
    many = {chr(0x4E00 + place): chr(0x4E00 + place - 1) if place else "" for place in range(90)}
    assert len(history(many).between(chr(0x4E00), chr(0x4E00 + 89))) == MOST_BETWEEN


@pytest.mark.parametrize(
    ("forge", "address"),
    [
        (FORGE, "https://forge.example/kernels/compare/{base}...{head}"),
        ("https://forge.example/a/b/-/commit/{sha}", "https://forge.example/a/b/-/compare/{base}...{head}"),
        ("https://forge.example/a.git/commit/?id={sha}", "https://forge.example/a.git/diff/?id={head}&id2={base}"),
        ("https://forge.example/show/{sha}", ""),
        ("", ""),
    ],
)
def test_differences_have_an_address_on_known_forges(forge: str, address: str) -> None:
    """It follows from the address of a commit; unknown forges have none."""
    base, head = "a" * 40, "b" * 40
    book = CommitBook({}, {}, dict.fromkeys((base, head), forge))
    assert book.diff(base, f"{head}-dirty") == address.format(base=base, head=head)
    assert book.diff(base, base) == ""


def test_what_is_no_hash_is_never_an_address() -> None:
    """Commits come from runs that anybody with a token sends."""
    commit = "javascript:alert(1)"
    book = CommitBook({}, {}, {commit: FORGE, "abcdef1": FORGE})
    assert book.facts(commit).link == book.diff("abcdef1", commit) == book.diff(commit, "abcdef1") == ""
    assert book.facts("abcdef1-dirty").link == FORGE.replace("{sha}", "abcdef1")


def test_pages_link_commits_with_author_and_subject(described: TestClient) -> None:
    """From the overview a regression is one click away, and the difference of its code one more."""
    broken = known_regressions(reader_of(described))[0]
    assert f'href="/regressions/{broken.key}"' in described.get("/").text
    acknowledged = next(one for one in known_regressions(reader_of(described)) if one.kind == "slower")
    page = described.get(f"/regressions/{acknowledged.key}").text
    base, head = sha_of(STEP_AT - 1), sha_of(STEP_AT)
    assert f'href="https://forge.example/kernels/compare/{base}...{head}"' in page
    assert f'href="{FORGE.replace("{sha}", head)}"' in page
    assert "by Ada" in page
    assert HOSTILE not in page
    assert "1 commit in between" in page
    assert f'href="{FORGE.replace("{sha}", head)}"' in described.get("/runs").text


def test_the_history_labels_changes_and_who_acknowledged_them(described: TestClient) -> None:
    """A step has a ring, a line and a label; the label says who acknowledged it, the points name author and subject."""
    found = figure(described, STEPPED)
    (label,) = found["layout"]["annotations"]
    assert label["text"].endswith("% optimized, acknowledged")
    assert "Grace" in label["hovertext"]
    assert "<script" not in json.dumps(found)
    (line,) = found["layout"]["shapes"]
    ring = next(one for one in found["data"] if one["name"] == "optimized: changes")
    assert ring["x"] == [line["x0"]] == [label["x"]]
    assert "Ada: " in found["data"][0]["text"][0]
    assert found["layout"]["xaxis"]["rangeslider"]["visible"]


def test_broken_and_fixed_series_are_labelled_too(described: TestClient) -> None:
    """A break has no time, so it has a line and a label without a ring; a step that was regained is called fixed."""
    (broken,) = figure(described, "rows-64")["layout"]["annotations"]
    assert (broken["text"], broken["name"]) == ("wrong optimized", "v-broken")
    slower, faster = figure(described, "rows-256")["layout"]["annotations"]
    assert slower["text"].endswith("optimized, fixed")
    assert (slower["name"], faster["name"]) == ("v-same", "v-faster")


def test_runs_describe_their_commit_without_a_list_of_commits(empty_copy: TestClient) -> None:
    """Author and subject that a run recorded appear on its page."""
    soft = {"commit": "ab" * 20, "commit_author": "Ada", "commit_subject": "Reduce rows"}
    run = Submission(str(uuid4()), START, START, "finished", "", Environment(HARD, soft), (), ())
    add_run(reader_of(empty_copy).engine, run)
    page = empty_copy.get(f"/runs/{run.id}").text
    assert "Reduce rows" in page
    assert "by Ada" in page
