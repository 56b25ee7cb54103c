"""What every test shares: GPU tests are skipped where there is no GPU."""

from __future__ import annotations

import pytest

from ops import available


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a CUDA device."""
    if "cuda" in available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
