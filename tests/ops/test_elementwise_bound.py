"""The default bound of a project's op: that of an elementwise op does not grow with the length of its axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._function.error_bound import perturbation_bound

LENGTH = 200_000
Function = Callable[..., Any]
SOFT = np.float32(np.log2(np.e))
"""Factor of the argument of `exp2`, by which fast-math computes `exp`."""


def worst(reference: Function, kernel: Function, *inputs: Any, dtype: str = "float32") -> float:
    """Largest error of a kernel over the allowed error."""
    info = dtype_info(dtype)
    low = {f"x{index}": np.asarray(value, info.numpy) for index, value in enumerate(inputs)}
    wide = {name: value.astype(np.float64) for name, value in low.items()}

    def call(arrays: Any) -> dict[str, Any]:
        return {"out": reference(*arrays.values())}

    want = call(wide)
    bound = np.asarray(perturbation_bound(call, wide, want, dtype)["out"])
    allowed = bound + info.epsilon / 2 * np.abs(want["out"])
    # kernels compute in float32 and round their output
    got = kernel(*(value.astype(info.accumulate) for value in low.values())).astype(info.numpy).astype(np.float64)
    return float(np.max(np.abs(got - want["out"]) / allowed))


def drawn(*shapes: tuple[int, ...]) -> list[Any]:
    """Normally distributed inputs."""
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape) for shape in shapes]


def softmax(x: Any) -> Any:
    """A reference whose elements depend on their row."""
    grown = np.exp(x - x.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def fast_exp(x: Any) -> Any:
    """`exp` of fast-math: the argument's rounding grows with it."""
    return np.exp2(x * SOFT)


def one_off(result: Any) -> Any:
    """A result with one element that is 3e-5 too large."""
    result[-1] *= np.float32(1 + 3e-5)
    return result


WRONG: dict[str, tuple[Function, Function, int]] = {
    "scaled": (lambda x: 2 * x + 1, lambda x: (2 * x + 1) * np.float32(1 + 3e-5), 1),
    "one element": (lambda x: 2 * x + 1, lambda x: one_off(2 * x + 1), 1),
    "exp by a short polynomial": (np.exp, lambda x: np.exp(x) * np.float32(1 + 6e-5), 1),
    "a quotient by an estimate": (lambda x, y: x / (1 + y * y), lambda x, y: x / (1 + y * y) * np.float32(1.00005), 2),
    "TF32": (lambda x, y: x * y, lambda x, y: (x * np.float32(1 + 2**-11)) * y, 2),
}
"""Reference, wrong kernel and number of inputs."""
SOUND: dict[str, tuple[Function, Function, int]] = {
    "fast exp": (np.exp, fast_exp, 1),
    "fast sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: 1 / (1 + fast_exp(-x)), 1),
    "tanh by exp": (np.tanh, lambda x: 1 - 2 / (1 + fast_exp(2 * x)), 1),
    "softplus by log": (lambda x: np.log1p(np.exp(x)), lambda x: np.log(1 + fast_exp(x)), 1),
    "unfused": (lambda x, y, z: x * y + z, lambda x, y, z: x * y + z, 3),
    "fused": (lambda x, y, z: x * y + z, lambda x, y, z: (x * np.float64(1) * y + z).astype(x.dtype), 3),
    "lerp from the other side": (lambda x, y, z: x + z * (y - x), lambda x, y, z: (1 - z) * x + z * y, 3),
    "a polynomial of erf": (lambda x: x, lambda x: x + np.float32(1e-6), 1),
    "large values in between": (lambda x: (x + 100) ** 2 - 10000, lambda x: (x + 100) * (x + 100) - 10000, 1),
    "a difference of squares": (lambda x, y: x * x - y * y, lambda x, y: (x - y) * (x + y), 2),
    "where": (lambda x, y: np.where(x > 0, x, 0.1 * y), lambda x, y: np.where(x > 0, x, np.float32(0.1) * y), 2),
}
"""Reference, correct kernel and number of inputs."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_elementwise_kernel_is_wrong_on_long_axes(name: str) -> None:
    """Errors of 3e-5 and more, less than a sum of as many elements may have."""
    reference, kernel, count = WRONG[name]
    assert worst(reference, kernel, *drawn(*[(LENGTH,)] * count)) > 1.5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_elementwise_kernel_is_right(name: str, dtype: str) -> None:
    """Other formulas, fused or fast ones, and rounded outputs."""
    reference, kernel, count = SOUND[name]
    assert worst(reference, kernel, *drawn(*[(LENGTH,)] * count), dtype=dtype) <= 0.9


@pytest.mark.parametrize(
    "name", ["unfused", "lerp from the other side", "large values in between", "a difference of squares"]
)
def test_a_sound_elementwise_kernel_is_right_in_float64(name: str) -> None:
    """The reference is evaluated in the kernel's own precision; its rounding is allowed nevertheless."""
    reference, kernel, count = SOUND[name]
    assert worst(reference, kernel, *drawn(*[(LENGTH,)] * count), dtype="float64") <= 0.9


@pytest.mark.parametrize(
    ("reference", "shapes"),
    [
        (softmax, [(64, 4096)]),
        (softmax, [(LENGTH,)]),
        (lambda x: x.sum(-1), [(64, 4096)]),
        (np.cumsum, [(LENGTH,)]),
        (lambda x, y: x @ y, [(256, 256), (256, 256)]),
        (lambda x: x - x.mean(-1, keepdims=True), [(50_000, 2)]),
        (lambda x: x / np.sqrt((x * x).mean(0)), [(4096, 64)]),
        (lambda x, y: x * y.sum(), [(LENGTH,), (LENGTH,)]),
        (lambda x, y: x + y.sum(), [(300, 4096), (4096,)]),
        (lambda x: x + x[::-1], [(LENGTH,)]),
        (lambda x: 0 * x + 0.1 * np.sign(x).sum(), [(LENGTH,)]),
        (lambda x: np.concatenate([x[:-10], np.cumsum(x[-10:])]), [(LENGTH,)]),
    ],
)
def test_sums_keep_their_allowance(reference: Function, shapes: list[tuple[int, ...]]) -> None:
    """It grows with the square root of the axis, also where a reference hides its sums from changed inputs."""
    wide = {f"x{index}": value for index, value in enumerate(drawn(*shapes))}

    def call(arrays: Any) -> dict[str, Any]:
        return {"out": np.asarray(reference(*arrays.values()))}

    want = call(wide)
    bound = np.asarray(perturbation_bound(call, wide, want, "float32")["out"])
    longest = max(length for shape in shapes for length in shape)
    assert np.all(bound >= np.sqrt(longest) * dtype_info("float32").epsilon * np.abs(want["out"]))


def test_broadcast_inputs_and_several_outputs_are_told_apart() -> None:
    """One output is a sum and the other is not; integers and a reference that refuses changed values keep the sum's."""
    x, scale = drawn((300, 4096), (4096,))
    wide = {"x": x, "scale": scale}

    def call(arrays: Any) -> dict[str, Any]:
        product = arrays["x"] * arrays["scale"] + 1
        return {"out": product, "centred": product - product.mean(-1, keepdims=True)}

    def particular(arrays: Any) -> dict[str, Any]:
        if np.abs(arrays["x"] / x - 1).max() > 1e-3:
            raise ValueError("other values")
        return call(arrays)

    def growth(function: Any, arrays: Any) -> list[float]:
        bounds = perturbation_bound(function, arrays, call(wide), "float32")
        size = dtype_info("float32").epsilon * np.mean(np.abs(call(wide)["out"]))
        return [float(np.mean(bounds[name])) / float(size) for name in ("out", "centred")]

    alone, summed = growth(call, wide)
    assert alone < 100 < summed
    refused, _ = growth(particular, wide)
    with_index, _ = growth(call, {**wide, "index": np.arange(5)})
    assert min(refused, with_index) > 100
