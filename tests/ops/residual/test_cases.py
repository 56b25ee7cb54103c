"""The shipped cases cover ResNet-50's residual additions: every distinct shape, both layouts, and nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.ops.residual.resnet50 import sites

CASES = Path(__file__).parents[3] / "cases"
BATCH = 32
DTYPES = ("float16", "float32")
Shape = tuple[int, ...]


@cache
def site_cases() -> tuple[Case, ...]:
    """The cases tagged `sites`."""
    return tuple(load_cases([CASES], tags=["sites"]))


def both(channels: int, size: int) -> set[Shape]:
    """Images of `channels`, channels first and last."""
    return {(BATCH, channels, size, size), (BATCH, size, size, channels)}


def shapes(op: str, name: str, dtype: str, *, add: bool | None = None) -> set[Shape]:
    """The shapes of an input in an op's cases; with an addend, without, or either."""
    return {
        case.shapes[name]
        for case in site_cases()
        if case.op == op and case.dtype == dtype and add in (None, "add_to_output" in case.shapes)
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
def test_normalization_sites(dtype: str, add: bool) -> None:
    """normalization is measured at the shapes of the 16 forward additions, alone and with add_to_output."""
    expected = set().union(*(both(site.channels, site.size) for site in sites(224)))
    assert shapes("normalization", "x", dtype, add=add) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("add", [False, True])
def test_conv_data_grad_sites(dtype: str, add: bool) -> None:
    """conv_data_grad is measured at the 16 backward additions, by shape of dx and width, alone and with the addend."""
    found = {
        (case.shapes["x_like"], case.shapes["filter"])
        for case in site_cases()
        if case.op == "conv_data_grad" and case.dtype == dtype and ("add_to_output" in case.shapes) == add
    }
    expected = set()
    for site in sites(224):
        c, s, w = site.into_channels, site.into_size, site.width
        expected |= {((BATCH, c, s, s), (w, c, 1, 1)), ((BATCH, s, s, c), (w, 1, 1, c))}
    assert found == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_n_sites(dtype: str) -> None:
    """add_n is measured at the shape of every addition, so that op then add can be summed."""
    expected: set[Shape] = set()
    for site in sites(224):
        expected |= both(site.channels, site.size) | both(site.into_channels, site.into_size)
    assert shapes("add_n", "in_0", dtype) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_blocks(dtype: str) -> None:
    """residual_block is measured at every identity block's shape."""
    expected = set().union(*(both(site.channels, site.size) for site in sites(224) if not site.downsamples))
    assert shapes("residual_block", "x", dtype) == expected


def test_layouts_agree_with_their_parameters() -> None:
    """A shape with channels last has the axis or data format that says so."""
    for case in site_cases():
        if case.op == "normalization":
            last = case.params.axis == 3
        elif case.op in ("conv_data_grad", "residual_block"):
            last = case.params.data_format == "channels_last"
        else:
            continue
        x = case.shapes["x_like" if case.op == "conv_data_grad" else "x"]
        assert x[1] == x[2] if last else x[2] == x[3], case.name
