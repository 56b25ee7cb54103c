"""Kernels in CUDA give what the reference says where they are emulated: CI has no GPU, and sees their bugs here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import pytest

from opgauge.harness.case.case import Case, InputSpec
from opgauge.harness.worker.inputs import Inputs, make_inputs, with_derived
from opgauge.ops import dtype_info
from opgauge.ops._cuda import pointwise
from opgauge.ops._cuda.reduction import elements, problem, rows
from opgauge.ops.lerp import cuda as lerp
from opgauge.ops.lerp import sums
from opgauge.ops.p_norm import cuda_grad as p_norm
from tests.emulation.emulator import Emulator, complaint, emulated
from tests.ops.attempts import case_of

Shape = tuple[int, ...]
Chosen = tuple[dict[str, Shape], dict[str, Any]]
"""Shapes by input, and parameters."""


class Trial(NamedTuple):
    """A case and how it is run: whether arrays begin one element late, how many blocks are under way at once.

    ties: of a norm of porder +-inf. vectors: even a small sum is taken in vectors, by large blocks, a gradient by
    threads of two, one whose ties are counted by blocks that share none, mixing of weight tensors by large blocks, and
    pointwise ops at odd addresses by several elements per thread.
    """

    case: Case
    offset: bool
    mixed: int
    seed: int
    ties: str
    vectors: bool

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, shape)) for shape in self.case.shapes.values())
        given = {name: getattr(self.case.params, name, None) for name in ("weight", "axis", "porder")}
        params = [f"{name}={value}" for name, value in given.items() if value is not None]
        params += [f"ties={self.ties}"] * (abs(given["porder"] or 0) == inf)
        offset = "x-" * bool(self.case.inputs) + "offset" * (self.offset or bool(self.case.inputs))
        run = (offset, f"mixed{self.mixed}", *(("vectors",) if self.vectors else ()))
        return "-".join([self.case.op, self.case.dtype, shapes, *params, *run])

    @contextmanager
    def tuned(self) -> Iterator[None]:
        """The launch parameters that it is run with."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(p_norm, "PAIRED", range(1 << 40) if self.vectors else p_norm.PAIRED)
            patch.setattr(p_norm, "_SPLIT", self.seed % 2 << 18)
            patch.setattr(rows, "WARP_COLLECTS", self.seed % 200)
            if self.vectors:
                for limit in ("INF_RESIDENT", "_FEW", "_FEW_IN_ROWS", "_FEW_TIED"):
                    patch.setattr(p_norm, limit, 0)
                for module in (problem, sums):
                    patch.setattr(module, "FEW_ELEMENTS", 0)
                patch.setattr(elements, "FEW_IN_COLUMNS", (0, 0))
                patch.setattr(rows, "ONCE_BYTES", 0)
                for name in ("LARGE_BYTES", "FEW_ELEMENTS", "FEW_APART"):
                    patch.setattr(lerp, name, 0)
                patch.setattr(pointwise, "FEW", 0)
                patch.setattr(pointwise, "APART_FROM", 0)
            yield


BOTH_SUMMED: tuple[tuple[Shape, Shape], ...] = (
    ((8, 1), (1, 9000)),
    ((1, 9000), (8, 1)),
    ((70, 1, 40), (9, 40)),
    ((3, 1), (1, 5)),
    ((1, 17, 1), (33, 1, 2)),
    ((140, 1, 17, 8), (140, 20, 1, 8)),
    ((134, 64, 1, 8), (134, 1, 65, 8)),
    ((67, 1, 21, 264), (67, 18, 1, 264)),
    ((133, 18, 1, 4), (133, 1, 18, 4)),
)
"""Shapes of x and y, neither of which is that of the result."""
ONE_SUMMED: tuple[tuple[Shape, Shape], ...] = (
    ((40,), (300, 40)),
    ((5,), (401, 5)),
    ((5, 1, 33), (5, 301, 33)),
    ((3, 1, 8), (3, 9, 8)),
    ((3, 1), (3, 9000)),
    ((1,), (20_001,)),
    ((2, 1, 5, 1), (2, 7, 5, 9)),
    ((27,), (1100, 27)),
)
WALKED: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((37, 11), (37, 1), ()),
    ((37, 16), (16,), ()),
    ((9, 3), (3,), ()),
    ((33, 1), (1, 29), ()),
    ((5, 1, 7), (1, 6, 1), (5, 6, 7)),
    ((2, 3, 8), (2, 1, 8), (3, 1)),
    ((2, 3, 9), (2, 3, 9), (9,)),
)
"""Shapes of x, y and perhaps weight, which broadcast."""
WEIGHTED: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((40,), (300, 40), (300, 40)),
    ((300, 1), (300, 40), (40,)),
    ((8, 1), (1, 9000), (8, 9000)),
    ((5, 1, 24, 1), (5, 7, 24, 16), (7, 1, 16)),
    ((2, 1, 24, 1), (2, 30, 24, 3), (2, 30, 24, 1)),
    ((1, 33), (1, 33), (700, 33)),
    ((1,), (1,), (20_001,)),
    ((16,), (1, 16), (5000, 16)),
    ((3, 1, 5, 1, 8, 1), (1, 4, 1, 6, 1, 3), (3, 4, 5, 6, 8, 1)),
    ((1,), (40_000,), (1,)),
)
"""Shapes of x, y and a tensor of weights."""
ROWS: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((1,), (0,)),
    ((37, 5), (1,)),
    ((9, 250), (1,)),
    ((3, 1030), (1,)),
    ((2, 9001), (1,)),
    ((1, 40_000), (1,)),
    ((9, 256), (1,)),
    ((1, 33_001), (1,)),
    ((37, 12), (1,)),
    ((3, 2304), (1,)),
    ((20, 1020), (1,)),
    ((130, 515), (1,)),
    ((500, 3), (1,)),
    ((3, 8192), (1,)),
    ((5, 6161), (1,)),
    ((6, 4000), (1,)),
)
"""Shapes and axes that are the last."""
COLUMNS: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((300, 36), (0,)),
    ((65, 7), (0,)),
    ((3, 80, 64), (1,)),
    ((3, 9, 132), (1,)),
    ((4, 5, 6, 33), (0, 2)),
    ((4, 50, 6), (0, 2)),
    ((2, 3000, 3), (1,)),
    ((1100, 256), (0,)),
    ((3, 5, 2, 3, 8), (1, 3, 4)),
    ((1500, 256), (0,)),
    ((9, 64, 16), (1,)),
    ((70, 1000), (0,)),
    ((264, 2, 264), (1,)),
    ((180, 2, 264), (1,)),
    ((3, 160, 9, 33), (0, 2)),
    ((2, 2, 136, 300), (1, 3)),
    ((11, 133, 4, 64), (0, 2)),
    ((528, 515, 4), (1,)),
    ((2, 530, 36), (1,)),
    ((1021, 32), (0,)),
    ((48, 264), (0,)),
    ((3, 21, 2, 132), (1,)),
    ((3, 4, 5, 2, 7), (0, 2, 4)),
    ((2, 3, 4, 2, 5, 3), (1, 3, 5)),
)


def drawn(op: str, count: int) -> list[Chosen]:
    """Shapes and parameters at random, the same every time."""
    random = np.random.default_rng(sum(op.encode()))
    found: list[Chosen] = []
    while len(found) < count:
        shape = tuple(
            int(length) for length in random.choice((1, 2, 3, 7, 16, 33, 64, 130, 257, 1000), random.integers(1, 5))
        )
        axes = tuple({int(axis) for axis in random.integers(0, len(shape), 2)})
        if not 1 < prod(shape) < 30_000:
            continue
        cut = tuple(1 if axis in axes else length for axis, length in enumerate(shape))
        other = tuple(1 if random.integers(0, 2) else length for length in shape)
        if op == "lerp_grad":
            found.append(({"x": cut, "y": other}, {"weight": 0.3}))
        elif op == "lerp":
            found.append(({"x": shape, "y": shape, "weight": shape}, {}))
        elif op == "dot":
            found.append(({"x": (shape[0], prod(shape[1:])), "y": (shape[0], prod(shape[1:]))}, {}))
        else:
            order = (2, inf)[random.integers(0, 2)]
            found.append(({"x": shape}, {"axis": axes, **({} if op == "mean" else {"porder": order})}))
    return found


def chosen(op: str) -> list[Chosen]:
    """Shapes and parameters that want each kernel, in each way that it is launched."""
    if op == "lerp_grad":
        pairs = [*BOTH_SUMMED, *ONE_SUMMED, *((y, x) for x, y in ONE_SUMMED)]
        near_one: Chosen = ({"x": (1, 17, 1), "y": (33, 1, 2)}, {"weight": 0.9999995})
        weighted: list[Chosen] = [({"x": x, "y": y, "weight": weight}, {}) for x, y, weight in WEIGHTED]
        unsummed: list[Chosen] = [
            ({"x": (7, 5, 11), "y": (7, 5, 11), "weight": weight}, {})
            for weight in ((7, 1, 11), (5, 1), (11,), (1, 1, 1))
        ]
        return [near_one, *(({"x": x, "y": y}, {"weight": 0.3}) for x, y in pairs), *weighted, *unsummed]
    if op == "lerp":
        shapes: tuple[Shape, ...] = ((1,), (5, 8), (9, 250), (3, 1030), (2, 9001))
        number = cycle((0.3, 0.7))  # from 1/2 on, x and y are exchanged
        by_number: list[Chosen] = [({"x": shape, "y": shape}, {"weight": next(number)}) for shape in shapes]
        walked: list[Chosen] = [
            ({"x": x, "y": y, **({"weight": weight} if weight else {})}, {} if weight else {"weight": next(number)})
            for x, y, weight in WALKED
        ]
        return [*by_number, *(({**same, "weight": same["x"]}, {}) for same, _ in by_number), *walked]
    if op == "dot":
        return [({"x": shape, "y": shape}, {}) for shape, _ in ROWS]
    if op == "mean":
        return [({"x": shape}, {"axis": axis}) for shape, axis in (*ROWS, *COLUMNS)]
    orders = (2, inf) if op == "p_norm" else (2, inf, -inf, inf)
    return [({"x": shape}, {"axis": axis, "porder": order}) for shape, axis in (*ROWS, *COLUMNS) for order in orders]


TIES = ("many", "all", "few", "zeros", "NaN")


def powers_of_doubles() -> list[Trial]:
    """Orders without a call, and some with."""
    chosen = [("p_norm", order) for order in (-1, 0.5, 4, 3.5, -1.75, 7, 9)]
    chosen += [("p_norm_grad", order) for order in (-1, 0.5, 4, 3.1, 0.25, 6.75, 9)]
    cases = (case_of(op, {"x": (37, 31)}, "float64", axis=1, porder=order) for op, order in chosen)
    return [Trial(case, offset=False, mixed=2, seed=1, ties="few", vectors=False) for case in cases]


def tied_gradients() -> list[Trial]:
    """Gradients at infinity: along rows and columns, with few ties and many."""
    found: list[Trial] = []
    for number, (dtype, length, order) in enumerate(product(("float16", "bfloat16"), (31, 250), (2, inf, -inf))):
        case = case_of("p_norm_grad", {"x": (37, length)}, dtype, porder=order)
        counts, kind = (1, 2, 5)[number % 3], TIES[number % len(TIES)]
        found.append(Trial(case, number % 4 == 1, counts, number, kind, vectors=number % 2 == 0))
    for number, (dtype, ties) in enumerate(product(("float16", "bfloat16", "float64"), TIES)):
        case = case_of("p_norm_grad", {"x": (48, 264)}, dtype, axis=0, porder=(inf, -inf)[number % 2])
        found.append(Trial(case, offset=False, mixed=(1, 2, 5)[number % 3], seed=number, ties=ties, vectors=False))
    for length in (255, 256):  # the most ties that a byte counts, and one more
        case = case_of("p_norm_grad", {"x": (3, length, 4)}, "float32", axis=1, porder=inf)
        found.append(Trial(case, offset=False, mixed=2, seed=length, ties="all", vectors=False))
    return found


def trials(op: str) -> list[Trial]:
    """All of an op: most in float32, some beginning at an odd address, with one, two or five blocks at once.

    Of some, x alone begins there, and no access of several elements suits both x and dx. Gradients along rows have code
    of their own in 16 bits: some more in those. So do columns that are held in what is not float32.
    """
    found = []
    for number, (shapes, params) in enumerate([*chosen(op), *drawn(op, 10)]):
        dtype = {3: "float64", 7: "float16"}.get(number % 11, "float32")
        case = case_of(op, shapes, dtype, **params)
        if op == "p_norm_grad" and number % 8 == 1:
            case = replace(case, inputs={"x": InputSpec(layout="offset")})
        offset, mixed, ties = number % 4 == 3, (1, 2, 5)[number % 3], TIES[number % len(TIES)]
        found.append(Trial(case, offset, mixed, 100 * number, ties, vectors=False))
        if op in SMALL and prod(shapes["x"]) <= SMALL_ELEMENTS:
            found.append(found[-1]._replace(vectors=True))
    if op == "dot":  # of two elements a vector
        for number, dtype in enumerate(("float64", "complex64", "int64")):
            case = case_of(op, {"x": (1, 9000), "y": (1, 9000)}, dtype)
            found.append(Trial(case, number == 1, (2, 5, 1)[number], number, "many", vectors=True))
    if op == "p_norm":
        found += powers_of_doubles()
    if op == "p_norm_grad":
        found += tied_gradients()
    return found


SMALL, SMALL_ELEMENTS = ("lerp", "lerp_grad", "mean", "dot", "p_norm", "p_norm_grad"), 1 << 16
"""Ops of which what is small is taken otherwise than what is large, and the most elements that are small."""
REDUCE = {"reduce_elements_lanes", *(f"reduce_rows_{scope}" for scope in ("lanes", "block", "grid", "once"))}
KERNELS = {
    "lerp": {
        *(f"lerp_{kind}" for kind in ("flat", "broadcast", "split")),
        *(f"reduce_{kind}" for kind in ("rows_grid", "rows_lanes", "columns_grid", "elements_lanes")),
        "grad_crossed",
        "reduce_any",
    },
    "mean": REDUCE | {"reduce_columns_grid", "reduce_slabs_block"},
    "dot": REDUCE,
    "p_norm": REDUCE
    | {"reduce_columns_grid", "reduce_slabs_block", "grad_rows", "grad_rows_16bit", "grad_rows_aligned"}
    | {"grad_inf_few", "grad_short_columns", "grad_columns"}
    | {f"grad_inf_{kind}" for kind in ("short_rows", "rows", "columns_grid", "columns_block")},
}
"""What is emulated, by the folder of its source."""
TRIALS = {op: trials(op) for op in ("lerp", "lerp_grad", "mean", "dot", "p_norm", "p_norm_grad")}


def inputs_with_ties(trial: Trial) -> Inputs:
    """Generated inputs; where ties for the largest or smallest are counted there are as many as the trial says."""
    case, porder = trial.case, getattr(trial.case.params, "porder", 2)
    drawn = make_inputs(case)
    if abs(porder) != inf:
        return drawn
    x, kind = drawn.wide["x"], trial.ties
    near = np.minimum(np.abs(x), 1) if porder > 0 else np.maximum(np.abs(x), 1)
    if kind == "few":
        place = np.arange(x.size).reshape(x.shape)
        picked = (place % 97 == 0) | (place % 1024 == 3)
        x = np.where(picked, np.copysign(9.0 if porder > 0 else 2e-5, x), x)
    else:
        x = np.copysign(np.ones_like(x) if kind == "all" else near, x)
    if kind == "zeros":
        x = np.where(drawn.wide["x"] > 0.5, 0, x)
    if kind == "NaN":
        x = np.where(np.arange(x.size).reshape(x.shape) % 1009 == 5, np.nan, x)
    return with_derived(case, {**drawn.values, "x": x.astype(drawn.values["x"].dtype)})


def no_inputs(case: Case) -> Inputs:
    """Zeros: kernels are bound while inputs have other values than they get."""
    specs = case.resolved.inputs.items()
    return Inputs({name: np.zeros(spec.shape, dtype_info(spec.dtype).numpy) for name, spec in specs})


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that was asked for the kernels of all trials, so that those of a source are compiled at once."""
    with emulated(tmp_path_factory.mktemp("emulated")) as made:
        for trial in (trial for found in TRIALS.values() for trial in found):
            with trial.tuned():
                made.attempt(trial.case, no_inputs(trial.case), offset=trial.offset).bind()
        made.compile()
        yield made


@pytest.mark.parametrize("trial", [trial for op in TRIALS for trial in TRIALS[op]], ids=str)
def test_a_kernel_gives_what_the_reference_says(emulator: Emulator, trial: Trial) -> None:
    """Whatever the order of its blocks, it is right, repeats itself, and writes nothing but its outputs."""
    inputs = inputs_with_ties(trial)
    with trial.tuned():
        found = complaint(emulator, trial.case, inputs, offset=trial.offset, mixed=trial.mixed, seed=trial.seed)
    assert found == ""


@pytest.mark.parametrize("folder", KERNELS)
def test_the_trials_want_each_kernel(emulator: Emulator, folder: str) -> None:
    """As kernels are chosen now, every one that is meant to be emulated is."""
    asked = (name for source, names in emulator.asked.items() if source.path.parent.name == folder for name in names)
    assert {re.sub("<.*", "", name) for name in asked} >= KERNELS[folder]
