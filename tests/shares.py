"""Which tests one process should run after another, so that it compiles or sets up once, and in which order."""

from __future__ import annotations

import re

_KERNEL = re.compile(
    r"tests/(?:test_contract\.py::\w+\[|ops/(?:core/test_tuning\.py::test_every_candidate\w+\[)?)(\w+)"
)
_NODES = {"normalization", "conv_data", "resnet50_adds", "residual_block"}
"""What `residual` is made of, whose kernels it compiles."""
_LONGEST = (
    "kernels of residual",
    "kernels of deformable_conv",
    "kernels of p_norm",
    "tests/web/browser/test_browser.py",
    "tests/harness/test_cluster.py",
    "tests/harness/test_gate_project.py",
    "tests/harness/test_gate_trees.py",
    "kernels of core",
    "tests/test_emulated.py",
    "tests/cheats/test_cheats.py",
)
"""Shares that take minutes, longest first: run last, one of them would leave other workers idle."""


def share_of(nodeid: str) -> str:
    """What a test is to be run with: tests that compile the same Numba kernels, else those of its file.

    Sources compiled by NVRTC have nothing in common, so each is free to fill a worker that has nothing left.
    """
    kernel = _KERNEL.match(nodeid)
    if kernel is not None:
        op = kernel[1].removesuffix("_grad")
        return f"kernels of {'residual' if op in _NODES else op}"
    return nodeid if nodeid.startswith("tests/test_cuda_sources.py") else nodeid.partition("::")[0]


def order_of(nodeid: str) -> tuple[int, bool]:
    """Sort key of a test: the longest shares come first, those of one test last, and in a share the contract.

    The contract compiles kernels one at a time, where another test, with drawn dtypes and sizes, would compile all of
    an op, and on a busy machine run out of time.
    """
    share = share_of(nodeid)
    rank = _LONGEST.index(share) if share in _LONGEST else len(_LONGEST) + (share == nodeid)
    return rank, not nodeid.startswith("tests/test_contract.py")
