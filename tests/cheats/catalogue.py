"""How a cheat is written down: a kernel of one of a few cases, and the family that it belongs to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.result.result import Trial
from opgauge.ops import find_op, kernel

Run = Callable[[], Any]
Bind = Callable[[dict[str, Any], dict[str, Any]], Run]


@dataclass(frozen=True)
class Cheat:
    """A kernel that must be flagged. case: name of its case below. harmless: why it need not be, if so."""

    name: str
    family: str
    case: str
    device: str = "cpu"
    harmless: str = ""


LATE = "later rounds"
"""Family of cheats that begin when samples are interleaved."""
IS_WORKER = getattr(sys.modules["__main__"].__spec__, "name", "") == "opgauge.harness.worker.serve"
CHEATS: dict[str, Cheat] = {}
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "rows": ("p_norm", {"x": (64, 97)}, {"porder": 2.0, "axis": -1}),
    "one-row": ("p_norm", {"x": (1, 4099)}, {"porder": 2.0, "axis": -1}),
    "long-rows": ("p_norm", {"x": (512, 4096)}, {"porder": 2.0, "axis": -1}),
    "middle-rows": ("p_norm", {"x": (512, 1024)}, {"porder": 2.0, "axis": -1}),
    "whole": ("mean", {"x": (768, 1024)}, {"axis": None}),
    "sum": ("add_n", {"in_0": (129, 257), "in_1": (129, 257)}, {}),
    "middle-sum": ("add_n", {"in_0": (700, 700), "in_1": (700, 700)}, {}),
    "large-sum": ("add_n", {"in_0": (1024, 1024), "in_1": (1024, 1024)}, {}),
    "huge-sum": ("add_n", {"in_0": (2048, 1024), "in_1": (2048, 1024)}, {}),
    "two-rows": ("p_norm", {"x": (2, 1 << 20)}, {"porder": 2.0, "axis": -1}),
    "small-rows": ("p_norm", {"x": (16, 513)}, {"porder": 2.0, "axis": -1}),
    "signs": ("sign", {"x": (300, 500)}, {}),
    "shared-weight": ("lerp", {"x": (256, 1024), "y": (256, 1024), "weight": (1024,)}, {}),
    "huge-row": ("mean", {"x": (3 << 20,)}, {"axis": None}),
    "gradient": ("p_norm_grad", {"x": (512, 1024)}, {"porder": 3.0, "axis": -1}),
    "integers": ("sign", {"x": (16, 2053)}, {}),
    "few-integers": ("sign", {"x": (8, 65)}, {}),
    "unchanged": ("scale", {"x": (100, 30)}, {}),
    "negated": ("scale", {"x": (1000, 300)}, {"scale": -1.0}),
    "unchanged-large": ("scale", {"x": (1000, 300)}, {}),
    "filled": ("fill_any_like", {"x": (100, 30)}, {"value": 2.5}),
    "equal-outputs": ("lerp_grad", {"x": (650, 330), "y": (650, 330)}, {"weight": 0.5}),
    "two-outputs": ("lerp_grad", {"x": (65, 33), "y": (65, 33)}, {"weight": 0.3}),
}
"""Op, shapes and parameters by name."""
DTYPES = {"integers": "int32", "few-integers": "int32"}
"""Dtypes of cases other than float32."""


def trial(cheat: Cheat, implementation: str = "") -> Trial:
    """The trial of a cheat; of another implementation of the same case where that is named."""
    op, shapes, params = CASES[cheat.case]
    case = Case(op, cheat.case, shapes, dtype_of(cheat.case), find_op(op).params(**params))
    backend = cheat.device.partition(":")[0]
    return Trial(case, implementation or cheat.name, backend, cheat.device)


def cheat(
    family: str, case: str, device: str = "cpu", *, captures_inputs: bool = False, harmless: str = ""
) -> Callable[[Bind], Bind]:
    """Note `bind(inputs, out)`, which returns the call, as the cheat of its name.

    harmless: why it need not be flagged, for honest kernels that do the same as a cheat. Only workers register it as
    a kernel: tests in this process go over all kernels that there are.
    """

    def register(bind: Bind) -> Bind:
        op, shapes, _ = CASES[case]
        names = tuple(find_op(op).infer(shapes, dtype_of(case), trial_params(case)).inputs)

        def prepare(*, out: dict[str, Any], **given: Any) -> Run:
            return bind({name: given[name] for name in names}, out)

        name = bind.__name__
        CHEATS[name] = Cheat(name, family, case, device, harmless)
        if IS_WORKER:
            backend = device.partition(":")[0]
            kernel(op, name, backend, (dtype_of(case),), prepare=True, captures_inputs=captures_inputs)(prepare)
        return bind

    return register


def dtype_of(case: str) -> str:
    """Dtype of a case."""
    return DTYPES.get(case, "float32")


def trial_params(case: str) -> Any:
    """Parameters of a case."""
    op, _, params = CASES[case]
    return find_op(op).params(**params)


def compute(case: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The right outputs of a case, by plain array functions of NumPy or CuPy."""
    xp = _module(next(iter(inputs.values())))
    match CASES[case][0]:
        case "p_norm":
            return {"y": xp.sqrt(xp.sum(xp.square(inputs["x"], dtype=np.float64), axis=-1)).astype(np.float32)}
        case "mean":
            return {"out": xp.asarray(xp.mean(inputs["x"], dtype=np.float64)).astype(np.float32)}
        case "sign":
            return {"out": xp.sign(inputs["x"])}
        case "lerp":
            return {"out": inputs["x"] + inputs["weight"] * (inputs["y"] - inputs["x"])}
        case "add_n":
            return {"out": inputs["in_0"] + inputs["in_1"]}
        case _:
            weight = np.float32(0.3)
            return {"dx": inputs["dout"] * (np.float32(1) - weight), "dy": inputs["dout"] * weight}


def write(case: str, inputs: dict[str, Any], out: dict[str, Any]) -> None:
    """The right outputs, written."""
    for name, value in compute(case, inputs).items():
        out[name][...] = value


def _module(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy
