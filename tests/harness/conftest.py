"""Fixtures of the harness' tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def busy_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a `Bench` in this process, in which threads of other tests may work: they are not its kernel's."""
    monkeypatch.setattr("opgauge.harness.worker.bench.check_idle", lambda audit, attempt: None)
