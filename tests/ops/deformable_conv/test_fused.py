"""deformable_conv without a column buffer: how a convolution is laid out, and on a GPU every tile, ring and regime."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import expect
from opgauge.ops import dtype_info, find_kernel
from opgauge.ops._core.tuning import override
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.deformable_conv import cuda_direct, cuda_fused, fused_layout
from opgauge.ops.deformable_conv.cuda_fused import DTYPES, HALVES
from opgauge.ops.deformable_conv.fused_layout import FusedLayout, best_splits, layout_of
from opgauge.ops.deformable_conv.op import geometry
from tests.launches import H200
from tests.ops.attempts import inputs_of
from tests.ops.deformable_conv.scalar import NOWHERE
from tests.ops.deformable_conv.shapes import convolution, grouped

CASES = Path(__file__).parents[3] / "cases"
HOPPER, SMALL = 227 * 1024, 99 * 1024
"""Bytes of shared memory to a block: of an H200, and of the smallest device from sm_80 on."""
Shape = tuple[int, ...]


def shipped() -> list[Case]:
    """Every shipped case in a dtype that the kernels take."""
    return [case for case in load_cases([CASES]) if case.op == "deformable_conv" and case.dtype in DTYPES]


def laid_out(case: Case, halves: int, shared: int = HOPPER, processors: int = 132) -> FusedLayout:
    """The layout of a case, which must have one."""
    found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
    layout = layout_of(found, dtype_info(case.dtype).itemsize, halves, shared, processors)
    assert layout is not None, case.id
    return layout


@pytest.mark.parametrize(("shared", "processors"), [(HOPPER, 132), (SMALL, 16), (HOPPER, 1)])
def test_shipped_cases_are_laid_out(shared: int, processors: int) -> None:
    """Each within the shared memory, its depth cut into splits of which none is empty, every channel in a stage."""
    for case, halves in ((one, halves) for one in shipped() for halves in HALVES[one.dtype]):
        layout = laid_out(case, halves, shared, processors)
        channels, found = layout.channels, layout.found
        assert layout.shared_bytes < shared
        assert layout.blocks == layout.tiles or layout.blocks * layout.splits * found.groups <= processors
        assert (layout.splits - 1) * layout.share < layout.depth_stages <= layout.splits * layout.share
        assert channels.segments * channels.segment == found.channels // found.groups
        assert channels.chunks * channels.chunk >= channels.depth
        assert channels.chunks % channels.span == 0
        assert layout.row_tiles * layout.tile[0] >= layout.rows
        assert layout.tiles // layout.row_tiles * layout.tile[1] >= found.batch * found.pixels


def test_hopper_spills_nothing() -> None:
    """Every kernel compiles for the one architecture that runs it, within its registers."""
    compiled = cuda_fused.SOURCE.compile("sm_90a")
    assert set(compiled.names) == set(cuda_fused.SOURCE.expressions)
    assert not any(used.spill_bytes for used in compiled.resources.values())


def test_places_suffice() -> None:
    """No stage touches more segments of channels than it has room for, and a visit stays in one where there is one."""
    for halves, groups, parts, each in product((1, 2), (1, 2), (1, 2, 4, 8, 16), (1, 3, 4, 5, 12, 16, 33, 64)):
        case = convolution(
            "deformable_conv",
            "float32",
            (1, max(groups, parts) * each, 3, 3),
            (groups, max(parts // groups, 1) * each, 1, 1),
            mask=False,
            groups=groups,
            deformable_groups=parts,
        )
        channels = laid_out(case, halves).channels
        for chunk in range(channels.chunks):
            last = min((chunk + 1) * channels.chunk, channels.depth) - 1
            assert last // channels.padded - chunk * channels.chunk // channels.padded < channels.places
        assert channels.span == 1 or channels.places == 1
        assert channels.segments == 1 or channels.span == 1 or channels.padded % (channels.span * channels.chunk) == 0


def test_groups_across_each_other_are_not_covered() -> None:
    """Where a group and a deformable group share some of their channels only, columns are the way."""
    case = convolution(
        "deformable_conv", "float32", (1, 6, 4, 4), (2, 3, 3, 3), mask=True, groups=2, deformable_groups=3
    )
    found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
    assert layout_of(found, 4, 2, HOPPER, 132) is None


def test_index_limits_are_kept() -> None:
    """An image whose pixels 32 bits cannot count is not covered."""
    case = convolution("deformable_conv", "float16", (1, 1, 2**16, 2**15), (1, 1, 1, 1), mask=False)
    found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
    assert layout_of(found, 2, 1, HOPPER, 132) is None


@pytest.mark.parametrize(
    ("tiles", "stages", "slots", "expected"), [(61, 144, 132, 2), (200, 144, 132, 3), (4, 6, 264, 1), (16, 9, 132, 3)]
)
def test_splits_fill_the_device(tiles: int, stages: int, slots: int, expected: int) -> None:
    """As many splits as make the waves shortest, partial results included."""
    assert best_splits(tiles, stages, slots, 256 * 64) == expected


SIZES: tuple[tuple[Shape, Shape], ...] = (
    ((2, 5, 9, 7), (7, 5, 3, 3)),
    ((1, 33, 6, 11), (65, 33, 2, 3)),
    ((1, 130, 5, 13), (129, 130, 3, 3)),
    ((1, 64, 17, 9), (300, 64, 3, 1)),
    ((3, 256, 4, 5), (40, 256, 3, 3)),
)
ANY_PLACES = {"deformable_conv.fused_places": 8}
"""No columns where these kernels have a way."""
GROUPED: tuple[tuple[int, int], ...] = ((2, 1), (1, 2), (2, 4), (1, 8))


def regime(case: Case, name: str) -> Inputs:
    """Inputs with offsets within a pixel, of some pixels, of many, or that lead nowhere."""
    rng = np.random.default_rng(len(name))
    shape = case.resolved.inputs["offset"].shape
    normal = rng.standard_normal(shape)
    nowhere = np.where(rng.random(shape) < 0.2, rng.choice(NOWHERE, shape), normal)
    offset = {"pixel": rng.random(shape), "normal": 2 * normal, "wild": 10 * rng.random(shape), "nowhere": nowhere}[
        name
    ]
    return inputs_of(case, **{**inputs_of(case).values, "offset": offset})


def complaints(case: Case, inputs: Inputs, **parameters: int) -> list[str]:
    """What the checker has against the kernels, with tensor cores and without; nothing where they are right."""
    timer, expected, found = timer_for("cuda"), expect(case, inputs), []
    given = {**ANY_PLACES, **{f"deformable_conv.{name}": value for name, value in parameters.items()}}
    with timer.session("numpy"), override(given), pytest.MonkeyPatch.context() as patch:
        for implementation in ("optimized", "direct", "tf32") if case.dtype == "float32" else ("optimized", "direct"):
            patch.setattr(cuda_direct, "pays", lambda *_, direct=implementation == "direct": direct)
            name = "tf32" if implementation == "tf32" else "optimized"
            kernel = find_kernel("deformable_conv", name, "cuda", case.dtype)
            found.append(Attempt(case, kernel, inputs.values, timer).judge(expected).reason)
    return [reason for reason in found if reason]


def test_many_places_go_by_columns() -> None:
    """A stage of more deformable groups than `fused_places` is left to columns: so are small float16 models."""
    shapes = ((4, 64, 16, 16), (64, 64, 3, 3))
    for dtype, fused in (("float32", True), ("float16", False), ("float64", False)):
        case = convolution("deformable_conv", dtype, *shapes, mask=True, paddings=1, deformable_groups=8)
        found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
        layout = cuda_fused.plan_forward(found, dtype, H200, exact=True)
        assert (layout is not None) == fused
        assert (
            cuda_fused.plan_forward(found, dtype, H200, exact=False) == layout
        )  # of twice the channels a stage has too many


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["pixel", "normal", "wild", "nowhere"])
def test_regimes(dtype: str, name: str) -> None:
    """Every tile is right wherever the samples lie."""
    for x, weight in SIZES:
        case = convolution("deformable_conv", dtype, x, weight, mask=True, paddings=1)
        assert complaints(case, regime(case, name)) == []


@pytest.mark.gpu
@pytest.mark.parametrize(("groups", "parts"), GROUPED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups(dtype: str, groups: int, parts: int) -> None:
    """Groups and deformable groups of one, of few and of many channels, with and without a mask."""
    for each, mask in product((1, 4, 12, 40), (True, False)):
        case = grouped("deformable_conv", dtype, groups, parts, each, mask=mask)
        assert complaints(case, regime(case, "normal")) == []


@pytest.mark.gpu
@pytest.mark.parametrize("processors", [1, 132, 1000])
@pytest.mark.parametrize("shared", [SMALL, 163 * 1024])
@pytest.mark.parametrize("span", [1, 2, 4])
def test_rings_and_splits(processors: int, shared: int, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right with as few stages as the smallest device has, with one split and many, in any order of taps."""
    monkeypatch.setattr(cuda_fused, "current_gpu", lambda: Gpu(processors, 90, shared))
    monkeypatch.setattr(fused_layout, "_SPAN", span)
    for x, weight in SIZES:
        case = convolution("deformable_conv", "float32", x, weight, mask=True, paddings=1)
        assert complaints(case, regime(case, "normal"), fused_strip=4 * span) == []


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [3, 512])
def test_positive_sums_keep_their_accuracy(channels: int) -> None:
    """Thousands of positive products, which tensor cores would sum too small if left alone, pass for float32."""
    case = convolution("deformable_conv", "float32", (1, channels, 9, 10), (64, channels, 3, 3), mask=True, paddings=1)
    rng = np.random.default_rng(0)
    values = {name: rng.random(value.shape) for name, value in inputs_of(case).values.items()}
    assert complaints(case, inputs_of(case, **values)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1e-36, 1e-20, 1e15, 1e30])
def test_scaling_reaches_far(scale: float) -> None:
    """Images and filters far from 1 are brought within the range of halves and back."""
    case = convolution("deformable_conv", "float32", (1, 40, 5, 6), (9, 40, 3, 3), mask=True, paddings=1)
    values = inputs_of(case).values
    scaled = {**values, "x": values["x"] * scale, "filter": values["filter"] / min(scale, 1e20)}
    assert complaints(case, inputs_of(case, **scaled)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unread_pixels_do_not_matter(dtype: str, number: float) -> None:
    """A pixel that is no number reaches nothing where no sample reads it."""
    case = convolution("deformable_conv", dtype, (1, 2, 4, 5), (2, 2, 2, 2), mask=True)
    values = inputs_of(case).values
    x, offset = values["x"].copy(), np.zeros_like(values["offset"])
    x[..., :2, :2] = number
    offset[..., ::2, :, :] = np.where(np.arange(3)[:, None] == 1, 1.25, 100)
    assert complaints(case, inputs_of(case, **{**values, "x": x, "offset": offset})) == []
