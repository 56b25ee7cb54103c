"""Operands of lerp that broadcast on CUDA: the widest vectors that all rows allow, and every element once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest

from opgauge.harness.case.case import Case, InputSpec
from opgauge.ops import FLOATS, dtype_info
from opgauge.ops._cuda import pointwise
from opgauge.ops.lerp import cuda as lerp
from opgauge.ops.lerp import cuda_grad
from tests.emulation.emulator import Emulator, emulated
from tests.emulation.emulator import complaint as emulated_complaint
from tests.ops.attempts import case_of, complaint, inputs_of
from tests.ops.core.test_pointwise import Buffer

Shape = tuple[int, ...]


class Launched(NamedTuple):
    """A kernel with its grid and block."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def per_block(self) -> int:
        """Elements of a block: V for each thread, or V times E."""
        numbers = [int(text) for text in self.name.rstrip(">").split(", ")[1:] if text.isdecimal()]
        return self.block[0] * prod(numbers[: 1 if "_split<" in self.name else 2])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """What is launched, of the declared kernels."""
    found: list[Launched] = []
    declared = lerp.SOURCE.expressions

    def bind_launch(_source: Any, expression: str, grid: Any, block: Any, _arguments: Any) -> Any:
        assert expression in declared
        return lambda: found.append(Launched(expression, grid, block))

    for module in (lerp, cuda_grad):
        monkeypatch.setattr(module, "bind_launch", bind_launch)
    return found


def buffers(dtype: str, offsets: dict[str, int], **shapes: Shape) -> dict[str, Any]:
    """What a launch is planned from; offsets: bytes from an aligned address to the first element."""
    return {name: Buffer(*shape, ptr=4096 + offsets.get(name, 0), dtype=dtype) for name, shape in shapes.items()}


def dtype_of(kernel: str) -> str:
    """The dtype that a kernel is compiled for."""
    ctype = kernel.rpartition("<")[2].partition(",")[0]
    return next(name for name in FLOATS if dtype_info(name).ctype == ctype)


@pytest.mark.parametrize(
    ("x", "y", "weight", "offsets", "kernel"),
    [
        # vectors by the length of rows, in each dtype
        ((400, 2056), (400, 1), None, {}, "lerp_broadcast<Blend<__half, false>, 8, 1, 2>"),
        ((400, 2052), (400, 1), None, {}, "lerp_broadcast<Blend<__half, false>, 4, 2, 2>"),
        ((400, 2050), (400, 1), None, {}, "lerp_broadcast<Blend<__half, false>, 2, 4, 2>"),
        ((400, 2051), (400, 1), None, {}, "lerp_split<Blend<__half, false>, 8>"),
        ((400, 2052), (400, 1), None, {}, "lerp_broadcast<Blend<float, false>, 4, 1, 2>"),
        ((400, 2050), (400, 1), None, {}, "lerp_broadcast<Blend<float, false>, 2, 2, 2>"),
        ((400, 2051), (400, 1), None, {}, "lerp_split<Blend<float, false>, 4>"),
        ((400, 2050), (400, 1), None, {}, "lerp_broadcast<Blend<double, false>, 2, 1, 2>"),
        ((400, 2051), (400, 1), None, {}, "lerp_split<Blend<double, false>, 2>"),
        # by addresses, but those of operands that are repeated along rows
        ((400, 2056), (400, 1), None, {"x": 8}, "lerp_broadcast<Blend<__half, false>, 4, 2, 2>"),
        ((400, 2056), (400, 1), None, {"out": 4}, "lerp_broadcast<Blend<__half, false>, 2, 4, 2>"),
        ((400, 2056), (400, 1), None, {"x": 2}, "lerp_broadcast<Blend<__half, false>, 1, 8, 2>"),
        ((400, 2056), (400, 1), None, {"y": 2}, "lerp_broadcast<Blend<__half, false>, 8, 1, 2>"),
        ((400, 2052), (2052,), None, {"y": 8}, "lerp_broadcast<Blend<float, false>, 2, 2, 2>"),
        ((400, 2052), (2052,), (400, 1), {"weight": 4}, "lerp_broadcast<Blend<float, true>, 4, 1, 2>"),
        ((400, 2052), (400, 1), (2052,), {"weight": 8}, "lerp_broadcast<Blend<float, true>, 2, 2, 2>"),
        ((400, 2052), (400, 1), (2052,), {"weight": 4}, "lerp_split<Blend<float, true>, 4>"),
        ((400, 2051), (400, 1), None, {"x": 4}, "lerp_broadcast<Blend<float, false>, 1, 4, 2>"),
        ((400, 2051), (400, 1), None, {"x": 8}, "lerp_broadcast<Blend<float, false>, 1, 4, 2>"),
        ((400, 2051), (400, 1), None, {"out": 8}, "lerp_broadcast<Blend<float, false>, 1, 4, 2>"),
        ((400, 2051), (2051,), None, {"y": 4}, "lerp_split<Blend<float, false>, 4>"),
        ((400, 2050), (400, 1), None, {"x": 8}, "lerp_broadcast<Blend<double, false>, 1, 2, 2>"),
        # by the number of axes
        ((16, 1, 1, 1), (16, 3, 224, 224), None, {}, "lerp_broadcast<Blend<float, false>, 4, 1, 2>"),
        ((400_000,), (1, 400_000), (1,), {}, "lerp_broadcast<Blend<float, true>, 4, 1, 1>"),
        ((30, 1, 2048), (30, 20, 2048), None, {}, "lerp_broadcast<Blend<float, false>, 4, 1, 3>"),
        ((30, 1, 8, 1), (1, 20, 1, 2048), None, {}, "lerp_broadcast<Blend<float, false>, 4, 1, 6>"),
        ((70_000, 1), (70_000, 6), (6,), {}, "lerp_broadcast<Blend<float, true>, 2, 2, 2>"),
        ((70_000, 1), (1, 7), (7,), {}, "lerp_broadcast<Blend<float, true>, 1, 4, 2>"),
        ((70_000, 1), (1, 7), (7,), {}, "lerp_split<Blend<__half, true>, 8>"),
        ((70_000, 1), (70_000, 7), (7,), {}, "lerp_split<Blend<float, true>, 4>"),
        # by groups of axes of at least a warp's elements
        ((33, 5, 1, 77, 9), (33, 1, 6, 77, 1), None, {}, "lerp_grouped<Blend<float, false>, 1, 4, 2>"),
        ((33, 5, 1, 7, 9), (33, 1, 60, 7, 1), None, {}, "lerp_grouped<Blend<float, false>, 1, 4, 3>"),
        ((33, 5, 1, 7, 10), (33, 1, 60, 7, 1), (60, 7, 1), {}, "lerp_grouped<Blend<float, true>, 2, 2, 3>"),
        ((30, 1, 2051), (30, 20, 2051), None, {}, "lerp_grouped<Blend<float, false>, 1, 4, 1>"),
        ((30, 1, 2051), (30, 20, 2051), None, {"x": 4}, "lerp_grouped<Blend<float, false>, 1, 4, 1>"),
        ((30, 1, 2050), (30, 20, 2050), None, {}, "lerp_broadcast<Blend<float, false>, 2, 2, 3>"),
        ((33, 5, 1, 77, 12), (33, 1, 6, 77, 1), None, {}, "lerp_broadcast<Blend<float, false>, 4, 1, 6>"),
        ((33, 5, 1, 77, 12), (33, 1, 6, 77, 1), None, {}, "lerp_grouped<Blend<__half, false>, 4, 2, 2>"),
        ((50_000, 1, 3, 1), (1, 3, 1, 3), None, {}, "lerp_broadcast<Blend<float, false>, 1, 4, 6>"),
        ((50_000, 1, 3, 1), (1, 3, 1, 4), None, {}, "lerp_broadcast<Blend<__half, false>, 4, 2, 6>"),
        # one element or two beyond 400 blocks
        ((3, 1), (3, 136_534), None, {}, "lerp_broadcast<Blend<float, false>, 2, 2, 2>"),
        ((1,), (409_601,), None, {}, "lerp_split<Blend<float, false>, 4>"),
        # few elements
        ((2, 1), (2, 1 << 14), None, {}, "lerp_broadcast<Blend<float, false>, 1, 1, 2>"),
        ((2, 1), (2, (1 << 14) + 4), None, {}, "lerp_broadcast<Blend<float, false>, 4, 1, 2>"),
        ((2, 1), (2, (1 << 14) + 2), None, {}, "lerp_broadcast<Blend<float, false>, 1, 1, 2>"),
        ((2, 1), (2, (1 << 16) + 1), None, {}, "lerp_split<Blend<float, false>, 4>"),
        ((2, 1), (2, 4104), None, {}, "lerp_broadcast<Blend<__nv_bfloat16, false>, 1, 1, 2>"),
        ((3, 1), (3, 1), (3, 2052), {}, "lerp_broadcast<Blend<float, true>, 1, 1, 2>"),
        ((1,), (1,), (2048,), {}, "lerp_broadcast<Blend<float, true>, 1, 1, 1>"),
        ((5, 1, 7), (1, 3, 7), None, {}, "lerp_broadcast<Blend<float, false>, 1, 1, 3>"),
        ((5, 1, 7, 1), (1, 3, 1, 9), None, {}, "lerp_broadcast<Blend<float, false>, 1, 1, 6>"),
        # equal shapes do not broadcast
        ((5,), (1, 5), (1, 5), {}, "lerp_flat<Blend<float, true>, 1, ANY>"),
        ((40_000,), (1, 40_000), (1, 40_000), {}, "lerp_flat<Blend<float, true>, 4, VECTORS>"),
        ((40_001,), (1, 40_001), None, {}, "lerp_flat<Blend<float, false>, 4, ANY>"),
    ],
)
def test_vectors_are_the_widest_that_all_rows_allow(
    launched: list[Launched], x: Shape, y: Shape, weight: Shape | None, offsets: dict[str, int], kernel: str
) -> None:
    """Rows and addresses decide over V, and over E as many as make 16 bytes; blocks cover the result, none to spare."""
    full = np.broadcast_shapes(x, y, weight or ())
    given = buffers(dtype_of(kernel), offsets, x=x, y=y, out=full, **({"weight": weight} if weight else {}))
    out = {"out": given.pop("out")}
    lerp.lerp(**{"weight": 0.5, **given}, out=out)()
    (found,) = launched
    assert found.name == kernel
    if "flat" not in kernel:
        assert (found.grid[0] - 1) * found.per_block < prod(full) <= found.grid[0] * found.per_block
        assert found.block == ((256,) if found.per_block > found.block[0] else (min(prod(full), 512),))


@pytest.mark.parametrize(
    ("weight", "absent", "offsets", "kernel"),
    [
        ((400, 1), "", {}, "lerp_broadcast<Gradients<float, true, false>, 4, 1, 2>"),
        ((2052,), "dx", {"weight": 8}, "lerp_broadcast<Gradients<float, true, false>, 2, 2, 2>"),
        ((2052,), "dy", {"weight": 4}, "lerp_split<Gradients<float, true, false>, 4>"),
        ((400, 1), "", {"weight": 4}, "lerp_broadcast<Gradients<float, true, false>, 4, 1, 2>"),
        ((400, 1), "", {"dout": 8}, "lerp_broadcast<Gradients<float, true, false>, 2, 2, 2>"),
        ((400, 1), "dy", {"dx": 8}, "lerp_broadcast<Gradients<float, true, false>, 2, 2, 2>"),
        ((400, 1), "", {"dy": 4}, "lerp_broadcast<Gradients<float, true, false>, 1, 4, 2>"),
        ((400, 1), "dy", {"dy": 4}, "lerp_broadcast<Gradients<float, true, false>, 4, 1, 2>"),
        ((1,), "", {}, "lerp_broadcast<Gradients<float, true, false>, 4, 1, 1>"),
    ],
)
def test_vectors_of_gradients(
    launched: list[Launched], weight: Shape, absent: str, offsets: dict[str, int], kernel: str
) -> None:
    """Gradients without sums take the same vectors; the address of one that is not wanted decides nothing."""
    shape = (400, 2052)
    given = buffers("float32", offsets, dout=shape, weight=weight, dx=shape, dy=shape)
    out = {name: given.pop(name) for name in ("dx", "dy")} | ({absent: None} if absent else {})
    cuda_grad._unsummed(**given, out=out, subtract=False)()
    (found,) = launched
    assert found.name == kernel
    assert (found.grid[0] - 1) * found.per_block < prod(shape) <= found.grid[0] * found.per_block


class Walk(NamedTuple):
    """A case that is emulated.

    offset: all arrays begin one element past an aligned address, or x alone. few: elements up to which a thread
    computes one. largest: elements from which there are several launches.
    """

    case: Case
    offset: bool
    few: int = 0
    largest: int = pointwise.LARGEST

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, shape)) for shape in self.case.shapes.values())
        wanted = [name for name in ("need_x", "need_y") if not getattr(self.case.params, name, True)]
        offset = "all" if self.offset else "x" if self.case.inputs else "none"
        tuned = (f"few{self.few}", *(("launches",) if self.largest < pointwise.LARGEST else ()))
        return "-".join([self.case.op, self.case.dtype, shapes, *wanted, f"offset_{offset}", *tuned])

    @contextmanager
    def tuned(self) -> Iterator[None]:
        """The launch parameters that it is run with."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lerp, "FEW_ELEMENTS", self.few)
            patch.setattr(lerp, "FEW_APART", self.few)
            for module in (pointwise, lerp, cuda_grad):
                patch.setattr(module, "LARGEST", self.largest)
            yield


def patterns(rows: int, length: int) -> list[tuple[Shape, Shape, Shape]]:
    """Shapes of x, y and perhaps weight, of all numbers of axes."""
    column, row, full = (rows, 1), (length,), (rows, length)
    return [
        (full, column, ()),
        (row, full, ()),
        (column, row, ()),
        (full, full, column),
        (column, full, row),
        (row, column, full),
        ((1,), full, ()),
        ((3, 1, length), (3, rows, 1), ()),
        ((2, 1, 3, length), (1, 3, 1, length), ()),
        ((2, 1, 3, length), (1, 3, 1, 1), (2, 1, 1, length)),
        ((2, 3, 1, 7, length), (2, 1, 2, 7, 1), ()),
    ]


def forms(width: int) -> list[tuple[Shape, Shape]]:
    """A shape and one that broadcasts to it, for each number of axes and of a group's, in vectors of `width`."""
    short, middle, long = width if width > 1 else 3, 8 + width, 256 + width
    return [
        ((1001 * width,), (1,)),
        ((300, short), (300, 1)),
        ((40, 5, short), (40, 1, short)),
        ((9, 5, 3, short), (9, 1, 3, 1)),
        ((2, 3, 3, long), (2, 1, 3, 1)),
        ((2, 3, 77, middle), (2, 1, 77, 1)),
        ((5, 5, 7, middle), (5, 1, 7, 1)),
    ]


MANY: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((2, 3, 1, 77, 9), (2, 1, 2, 77, 1), ()),
    ((2, 3, 1, 77, 1), (2, 1, 2, 1, 9), (2, 77, 9)),
    ((5, 1, 7, 1), (1, 4, 1, 9), (5, 1, 7, 9)),
    ((2, 3, 1, 5, 1, 30), (2, 1, 4, 1, 3, 30), ()),
    ((2, 3, 1, 5, 1, 30), (2, 1, 4, 1, 3, 1), (3, 1, 1, 3, 1)),
    ((3, 1, 2, 1, 2, 1), (1, 5, 1, 3, 1, 50), ()),
    ((7, 1, 259), (7, 5, 1), ()),
    ((7, 1, 259), (1, 5, 1), (7, 5, 259)),
    ((5, 1, 3, 1), (1, 3, 1, 3), ()),
)
"""Shapes of x, y and perhaps weight along many axes."""


def blend_of(dtype: str, x: Shape, y: Shape, weight: Shape) -> Case:
    """A lerp by a tensor of weights, or by a number for no shape."""
    shapes = {"x": x, "y": y, **({"weight": weight} if weight else {})}
    return case_of("lerp", shapes, dtype, **({} if weight else {"weight": 0.3}))


def gradient_of(dtype: str, full: Shape, weight: Shape, **wanted: bool) -> Case:
    """Gradients without sums by a tensor of weights."""
    return case_of("lerp_grad", {"x": full, "y": full, "weight": weight}, dtype, **wanted)


def walks() -> list[Walk]:
    """Each dtype in vectors of each width, rows of no whole vectors, and odd addresses; blocks that are not full."""
    found = []
    lengths = {
        "float16": (264, 260, 258, 257, 3),
        "bfloat16": (264,),
        "float32": (260, 258, 257),
        "float64": (258, 257),
    }
    for dtype, length in ((dtype, length) for dtype, some in lengths.items() for length in some):
        for shapes in patterns(13, length):
            case = blend_of(dtype, *shapes)
            found += [Walk(case, offset=False), Walk(case, offset=True)]
            found.append(Walk(replace(case, inputs={"x": InputSpec(layout="offset")}), offset=False))
    for case in (
        gradient_of("float32", (13, 258), (258,), need_x=False),
        gradient_of("float32", (258,), (1,), need_y=False),
    ):
        found += [Walk(case, offset=False), Walk(case, offset=True)]
    found += [Walk(blend_of("float32", *shapes), offset) for shapes in MANY for offset in (False, True)]
    widths = {"float16": (1, 2, 4, 8), "float32": (1, 2, 4), "float64": (1, 2)}
    for dtype, width in ((dtype, width) for dtype, some in widths.items() for width in some):
        for full, part in forms(width):
            cases = [blend_of(dtype, full, part, ()), blend_of(dtype, full, full, part), gradient_of(dtype, full, part)]
            found += [Walk(case, offset) for case in cases for offset in ((False, True) if width == 1 else (False,))]
    few = [blend_of("float32", *shapes) for shapes in patterns(13, 33)]
    gradients = (((5, 6, 7), (6, 1)), ((3, 2, 5, 7), (3, 1, 5, 1)), ((1, 1000), (1, 1)), ((1000,), (1,)))
    few += [gradient_of("float32", full, weight) for full, weight in gradients]
    found += [Walk(case, offset=False, few=lerp.FEW_ELEMENTS) for case in few]
    return found + [Walk(case, offset=False, largest=100) for case in few]


WALKS = walks()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Compiles the kernels of all walks at once."""
    with emulated(tmp_path_factory.mktemp("emulated")) as made:
        for walk in WALKS:
            with walk.tuned():
                made.attempt(walk.case, inputs_of(walk.case), offset=walk.offset).bind()
        made.compile()
        yield made


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_broadcasts_are_right(emulator: Emulator, walk: Walk) -> None:
    """Each element is that of the reference, accesses are aligned, and nothing beyond the arrays is written."""
    with walk.tuned():
        assert emulated_complaint(emulator, walk.case, inputs_of(walk.case), offset=walk.offset, mixed=2, seed=1) == ""


def test_every_form_is_emulated(emulator: Emulator) -> None:
    """Each V and E, each number of axes and of a group's axes, with weights as a tensor and as a number."""
    (asked,) = emulator.asked.values()
    missing = []
    for ctype, widths in (("__half", (1, 2, 4, 8)), ("float", (1, 2, 4)), ("double", (1, 2))):
        whole = max(widths)
        for functor in (lerp.gradients(ctype), *(lerp.blend(ctype, tensor) for tensor in lerp.FLAGS)):
            each = [(width, whole // width) for width in widths]
            wanted = [f"lerp_split<{functor}, {whole}>"]
            wanted += [f"lerp_broadcast<{functor}, {v}, {e}, {axes}>" for v, e in each for axes in (1, 2, 3, 6)]
            wanted += [f"lerp_grouped<{functor}, {v}, {e}, {k}>" for v, e in each[:-1] for k in lerp.GROUPED]
            missing += [name for name in wanted if name not in asked]
    assert missing == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [2048, 2052, 2050, 2051])
@pytest.mark.parametrize("layout", [None, "offset"])
def test_broadcasts_on_a_gpu(length: int, dtype: str, layout: str | None) -> None:
    """Rows of each width and of no whole vectors, and gradients by weights that broadcast."""
    cases = [blend_of(dtype, *shapes) for shapes in patterns(400, length)]
    cases += [gradient_of(dtype, (400, length), weight) for weight in ((400, 1), (length,), (1,))]
    for case in cases:
        assert complaint(case, inputs_of(case), "optimized", layout, "cuda") == "", case.shapes
