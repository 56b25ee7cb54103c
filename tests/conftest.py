"""What every test shares: GPU tests are skipped without a GPU, those of experimental kernels where not asked for."""

from __future__ import annotations

import pytest

from ops import available


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a CUDA device, and those marked `experimental` unless `-m` names that."""
    if "cuda" not in available():
        _skip(items, "gpu", "no CUDA device")
    if "experimental" not in (config.getoption("markexpr") or ""):
        _skip(items, "experimental", "experimental: pytest -m experimental")


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))
