"""CUDA source of p_norm and p_norm_grad: its instances, and the numbers that it shares with host code."""

from __future__ import annotations

from math import inf

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._cuda.pointwise import SINGLE_THREADS
from opgauge.ops._cuda.reduction.columns import MOST_LANES
from opgauge.ops._cuda.reduction.launch import COLUMNS_LAYOUT, expressions
from opgauge.ops._cuda.reduction.plan import CONSTANTS, STRUCTS
from opgauge.ops._cuda.source import CudaSource

THREADS = 256
ROW_THREADS = 128
SHORT_EACH, PART_EACH = 2, 4
"""Vectors per thread: of 128 threads for short rows, of 256 for a row or a part of one."""
COLUMNS_EACH, MINIMUM_EACH, MOST_COUNTED = 8, 4, 255
"""Column blocks: vectors per thread, minimum for vectors of other than four elements, as fewer blocks are resident
then; maximum rows, whose ties are counted in bytes."""
APART_EACH = 4
"""Elements per thread of a gradient at addresses that allow no vectors."""
INF_RESIDENT = 4
"""Resident blocks per multiprocessor on every device, for blocks that wait for others."""
WIDTHS = {name: 16 // dtype_info(name).itemsize for name in FLOATS}
CTYPES = {name: dtype_info(name).ctype for name in FLOATS}
MODES = {
    0.0: "COUNT",
    1.0: "ABS",
    1.5: "ROOT_3",
    2.0: "SQUARE",
    2.5: "ROOT_5",
    3.0: "CUBE",
    inf: "LARGEST",
    -inf: "SMALLEST",
}
LIGHT = ("ABS", "SQUARE", "CUBE", "LARGEST", "SMALLEST")
"""Modes that cost two or three instructions per element."""
GRAD_MODES = {0.0: "FLAT", 1.0: "SIGN", 2.0: "LINEAR", 3.0: "QUADRATIC", 1.5: "ROOT", 2.5: "ROOT_CUBED"}
"""Gradient modes by porder."""

NORMS = ("NEIGHBOURS", "EACH_ITS_OWN", "THE_SAME")
"""Norms that the elements of a vector of `grad_short_columns` have."""


def rows_kernel(width: int) -> str:
    """Name of the kernel for rows that begin at any element, by elements of a vector."""
    return "grad_rows_16bit" if width == 8 else "grad_rows"


def _expressions() -> tuple[str, ...]:
    found: list[str] = []
    for dtype, width in WIDTHS.items():
        ctype = CTYPES[dtype]
        for mode in (*MODES.values(), "POWER"):
            found += expressions(f"Norm<{ctype}, {mode}>", width, light=mode in LIGHT)
        for mode in (*GRAD_MODES.values(), "GENERAL", "BELOW_ONE"):
            for name in (rows_kernel(width), "grad_rows_aligned"):
                found += [f"{name}<{ctype}, {width}, {mode}, {vectors}>" for vectors in (1, 2)[: min(width // 2, 2)]]
            found.append(f"grad_rows<{ctype}, 1, {mode}, {APART_EACH}>")
            found.append(f"grad_any_axes<{ctype}, {mode}>")
            kinds = ((1, "EACH_ITS_OWN"), *((width, norms) for norms in NORMS))
            found += [f"grad_short_columns<{ctype}, {wide}, {mode}, {norms}>" for wide, norms in kinds]
            found += [f"grad_columns<{ctype}, {wide}, {mode}>" for wide in (1, width)]
        for wide in (1, width):
            found += [f"grad_inf_{kind}<{ctype}, {wide}>" for kind in ("short_rows", "columns_grid")]
            found += [f"grad_inf_rows<{ctype}, {wide}, {scope}, false>" for scope in ("BLOCK", "LOOP", "GRID")]
            found.append(f"grad_inf_rows<{ctype}, {wide}, GRID, true>")
        found.append(f"grad_inf_columns_block<{ctype}, {width}>")
        found.append(f"grad_inf_few<{ctype}>")
        found += [f"{name}<{ctype}>" for name in ("grad_part", "grad_spread", "grad_fuse")]
    return tuple(found)


SOURCE = CudaSource(
    __file__,
    "kernels.cu",
    _expressions(),
    constants={
        **CONSTANTS,
        "GRAD_THREADS": THREADS,
        "SINGLE_THREADS": SINGLE_THREADS,
        "ROW_THREADS": ROW_THREADS,
        "SHORT_EACH": SHORT_EACH,
        "PART_EACH": PART_EACH,
        "COLUMNS_EACH": COLUMNS_EACH,
        "MOST_LANES": MOST_LANES,
        "INF_RESIDENT": INF_RESIDENT,
    },
    structs={**STRUCTS, "Layout": COLUMNS_LAYOUT},
)
"""Declared instances of kernels.cu."""
