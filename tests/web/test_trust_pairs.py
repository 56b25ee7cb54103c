"""Trust: neighbouring runs of one commit, compared."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from fastapi.testclient import TestClient

from opgauge.harness.store.run_queries import RunInfo
from opgauge.web import comparison
from opgauge.web.pages import trust
from opgauge.web.reader import Reader
from tests.web.reading_pages import reader_of


def test_only_the_latest_pairs_of_one_commit_are_compared(client: TestClient) -> None:
    """As many as the table has rows, in their order; a dirty tree has none."""
    reader = reader_of(client)
    recent = reader.recent()
    assert len(recent.runs) > trust.PAIRED + 1
    compared: list[tuple[str, str]] = []

    def compare(reader: Reader, base: RunInfo, head: RunInfo) -> list[comparison.Compared]:
        compared.append((base.id, head.id))
        return comparison.compare_runs(reader, base, head)

    def pairs(commit: str) -> list[tuple[str, str]]:
        runs = tuple(replace(run, commit=commit) for run in recent.runs)
        found = trust._same_commit(reader, replace(recent, runs=runs))
        assert all(row["decisions"] for row in found)
        return [(row["base"].id, row["head"].id) for row in found]

    with patch.object(trust, "compare_runs", compare):
        shown = pairs("ab" * 20)
        assert not pairs("ab-dirty")
    assert len(shown) == trust.PAIRED
    assert compared == shown[::-1]
