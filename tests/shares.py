"""Which tests one worker of pytest-xdist should run after another, so that it compiles or sets up once."""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

_KERNEL = re.compile(
    r"tests/(?:test_contract\.py::\w+\[|ops/(?:core/test_tuning\.py::test_every_candidate\w+\[)?)(\w+)"
)
_NODES = {"normalization", "conv_data", "resnet50_adds", "residual_block"}
"""What `residual` is made of, whose kernels it compiles."""


def share_of(nodeid: str) -> str:
    """What a test is to be run with: tests that compile the same Numba kernels, else those of its file.

    Sources compiled by NVRTC have nothing in common, so each is free to fill a worker that has nothing left.
    """
    kernel = _KERNEL.match(nodeid)
    if kernel is not None:
        op = kernel[1].removesuffix("_grad")
        return f"kernels of {'residual' if op in _NODES else op}"
    return nodeid if nodeid.startswith("tests/test_cuda_sources.py") else nodeid.partition("::")[0]


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist is untyped
    """Hands out whole shares, those of most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
