"""deformable_conv on CUDA without a column buffer: samples go through shared memory to the tensor cores.

Columns of all images and a product are used if they are faster, or if these kernels do not support the shape.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Shapes
from opgauge.ops._core.plans import announce
from opgauge.ops._core.registry import kernel
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.gemm.problem import EXACT, TF32
from opgauge.ops._cuda.source import CudaSource, Gpu, current_gpu
from opgauge.ops.deformable_conv.cuda import (
    by_tensor_cores,
    ctype,
    split_bytes,
    unfold_then,
)
from opgauge.ops.deformable_conv.cuda_direct import DirectLayout, direct_config, sample_directly
from opgauge.ops.deformable_conv.fused_layout import PREPARE_THREADS, SHAPES, SMALLER, STRUCTS, FusedLayout, layout_of
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

ARCHITECTURE = 90
"""The only supported compute capability: later ones lack these instructions, earlier ones are slower."""
THREADS = 512
EXACT_HALVES, SHORT_HALVES = 2, 1
"""11-bit halves per float32, for float32 accuracy and for TF32 accuracy. 16-bit elements are one half."""
HALVES = {"float16": (SHORT_HALVES,), "bfloat16": (SHORT_HALVES,), "float32": (SHORT_HALVES, EXACT_HALVES)}
DTYPES = tuple(HALVES)
RANGE = "float32 is exact to 22 bits within 2^-17 of the largest of a filter's row, or of 32 channels at a sample"
TF32_NOTE = "11 bits of each factor, as TF32 has"
"""Accuracy of the kernels."""
COLUMNS_PAY = {2: (512, 32, 1 << 17), 4: (64, 256, 1 << 19)}
"""By bytes of an element: most pixels of all images, fewest output channels and entries of the filter for columns."""


_MOST_PLACES = declare(
    "deformable_conv.fused_places",
    4,
    (1, 2, 4, 8),
    backend="cuda",
    ops=("deformable_conv",),
    why="deformable groups per stage from which a column buffer is faster",
)


def _expressions() -> tuple[str, ...]:
    found = []
    for dtype, halves in ((dtype, halves) for dtype, each in HALVES.items() for halves in each):
        kind = f"{dtype_info(dtype).ctype}, {halves}"
        found.append(f"prepare<{kind}>")
        found += [f"convolve<{kind}, {', '.join(map(str, shape))}>" for shape in (*SHAPES, *SMALLER.values())]
    return tuple(found)


SOURCE = CudaSource(__file__, "fused.cu", _expressions(), structs=STRUCTS)
"""Declared instances of fused.cu."""


def plan_forward(found: SamplingGeometry, dtype: str, gpu: Gpu, *, exact: bool) -> DirectLayout | FusedLayout | None:
    """Configuration of one launch or two on `gpu`; None for columns. Halves as `exact` requires, or fewer."""
    direct = direct_config(found, dtype, gpu) if exact else None
    if direct is not None or (exact and _columns_pay(found, dtype_info(dtype).itemsize)):
        return direct
    return _fused(found, dtype, gpu, exact=exact)


def _columns_pay(found: SamplingGeometry, itemsize: int) -> bool:
    """Whether so few pixels read a large filter that repacking it takes longest.

    On an H200 float16 takes 20 us, not 39, for 7 x 7 pixels of 512 channels, and 29, not 39, for 20 x 20; float32 takes
    17, not 28, for two images of 4 x 4 pixels and 256 channels, but 52, not 40, for 14 x 14 of 512.
    """
    pixels, entries = found.batch * found.pixels, found.out_channels * found.depth
    most_pixels, fewest_rows, fewest_entries = COLUMNS_PAY.get(itemsize, COLUMNS_PAY[4])
    is_large = found.out_channels >= fewest_rows and entries >= fewest_entries
    return found.groups == 1 and pixels <= most_pixels and is_large


def _fused(found: SamplingGeometry, dtype: str, gpu: Gpu, *, exact: bool) -> FusedLayout | None:
    if dtype not in HALVES or gpu.architecture != ARCHITECTURE or found.samples == 0 or found.out_channels == 0:
        return None
    for halves in HALVES[dtype][-1:] if exact else HALVES[dtype]:
        layout = layout_of(found, dtype_info(dtype).itemsize, halves, gpu.shared_memory_bytes, gpu.multiprocessors)
        if layout is not None and _MOST_PLACES.covers(layout.channels.places):
            return layout
    return None


def _forward(name: str, dtypes: tuple[str, ...], *, exact: bool, **options: Any) -> None:
    """Register a kernel of two launches, the first of which repacks x and the filter; or by columns."""
    by_columns = unfold_then(by_tensor_cores(EXACT if exact else TF32))

    def workspace_bytes(shapes: Shapes, params: DeformableConvParams) -> int:
        x = shapes.inputs["x"]
        found = geometry(x.shape, shapes.inputs["filter"].shape, params)
        layout = plan_forward(found, x.dtype, current_gpu(), exact=exact)
        return split_bytes(shapes, params) if layout is None else layout.workspace_bytes

    @kernel("deformable_conv", name, "cuda", dtypes, prepare=True, workspace=workspace_bytes, **options)
    def forward(
        *,
        x: Any,
        offset: Any,
        filter: Any,
        out: dict[str, Any],
        workspace: Any,
        mask: Any = None,
        **options: Any,
    ) -> Bound:
        found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
        layout = plan_forward(found, x.dtype.name, current_gpu(), exact=exact)
        if layout is not None:
            announce(layout)
        if isinstance(layout, DirectLayout):
            return sample_directly(layout, x, offset, mask, filter, out["out"])
        if layout is None:
            return by_columns(x=x, offset=offset, filter=filter, out=out, workspace=workspace, mask=mask, **options)
        lines, packed, scales, places, partial, counters = _cut(workspace, layout.sizes)
        zeros = lines[layout.pixels * layout.line_bytes :]
        plan, shared, variant = layout.struct(), layout.shared_bytes, f"{ctype(x)}, {layout.channels.halves}"
        prepare = SOURCE.function(f"prepare<{variant}>")
        convolve = SOURCE.function(f"convolve<{variant}, {', '.join(map(str, layout.shape))}>")
        convolve.max_dynamic_shared_size_bytes = shared
        counts = (np.int32(layout.filter_rows), np.int32(layout.pieces), np.int32(layout.tile[0]))
        first = (x, filter, offset, mask, lines, zeros, packed, scales, places, *counts, plan)
        second = (lines, zeros, packed, scales, places, out["out"], partial, counters, plan)
        blocks, grid = layout.prepare_blocks, (layout.blocks, found.groups, layout.splits)

        def run() -> None:
            prepare((blocks,), (PREPARE_THREADS,), first)
            convolve(grid, (THREADS,), second, shared_mem=shared)

        return run


_forward("optimized", FLOATS, exact=True, note=RANGE)
_forward("tf32", ("float32",), exact=False, relaxed=2.0**8, note=TF32_NOTE)


def _cut(workspace: Any, sizes: tuple[int, ...]) -> list[Any]:
    """Consecutive parts of the workspace."""
    ends = accumulate(sizes, initial=0)
    return [workspace[start:end] for start, end in pairwise(ends)]
