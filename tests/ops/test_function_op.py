"""Ops that are defined by a reference function, and functions as their implementations."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import opgauge
from opgauge.harness.cli.list import details
from opgauge.ops import DefinitionError, ShapeError, dtype_info, find_kernel, find_op
from opgauge.ops._core import registry
from opgauge.ops._function.error_bound import perturbation_bound
from opgauge.ops._function.trace import trace


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that a test registers are forgotten after it."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))


def rms(x: Any, weight: Any, *, eps: float = 1e-6) -> Any:
    """Root mean square normalization."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def test_an_op_follows_from_its_reference() -> None:
    """Inputs are positional arguments, parameters keyword-only; shapes, dtype and bytes are seen from it."""
    opgauge.op(rms)
    found = find_op("rms")
    assert details(found)[0] == "parameter eps: a number; default 1e-06"
    assert [item.name for item in found.inputs] == ["x", "weight"]
    assert found.params().eps == 1e-6
    assert found.summary == "Root mean square normalization."
    shapes = found.infer({"x": (4, 8), "weight": (8,)}, "float16", found.params())
    assert (shapes.outputs["out"].shape, shapes.outputs["out"].dtype) == ((4, 8), "float16")
    work = found.work(shapes, found.params())
    assert (work.bytes_read, work.bytes_written) == (2 * (32 + 8), 2 * 32)


def test_large_shapes_are_traced_small() -> None:
    """The reference of a large case is called with small tensors, and at full size where lengths do not translate."""
    seen: list[int] = []

    def product(arrays: Any) -> dict[str, Any]:
        seen.append(arrays["x"].size)
        return {"out": arrays["x"] @ arrays["y"]}

    found = trace(product, {"x": (4000, 3000), "y": (3000, 5000)}, {"x": "float32", "y": "float32"})
    assert found["out"].shape == (4000, 5000)
    assert max(seen) < 10000
    halves = trace(lambda arrays: {"out": arrays["x"][:, ::2]}, {"x": (300, 500)}, {"x": "float32"})
    assert halves["out"].shape == (300, 250)
    sums = trace(lambda arrays: {"out": arrays["x"].sum(0)}, {"x": (300, 500)}, {"x": "float32"})
    assert sums["out"].shape == (500,)


class Moments(NamedTuple):
    """Two outputs."""

    mean: Any
    index: Any


def moments(x: Any) -> Moments:
    """Mean and index of the largest element of each row."""
    return Moments(x.mean(-1), x.argmax(-1))


def test_several_outputs_have_names_and_dtypes() -> None:
    """A NamedTuple names outputs; integers keep the reference's dtype and are exact; `outputs` may say another."""
    found = opgauge.op(moments).op
    shapes = found.infer({"x": (3, 5)}, "bfloat16", found.params())
    assert {name: spec.dtype for name, spec in shapes.outputs.items()} == {"mean": "bfloat16", "index": "int64"}
    arrays = {"x": np.arange(15.0).reshape(3, 5)}
    outputs = found.reference(arrays, found.params())
    bounds = found.bound(arrays, outputs, found.params(), "float32")
    assert np.all(bounds["index"] == 0)
    assert np.all(np.asarray(bounds["mean"]) > 0)
    narrow = opgauge.op(name="narrow", outputs={"mean": "float32", "index": "int32"})(moments).op
    given = narrow.infer({"x": (3, 5)}, "float16", narrow.params()).outputs
    assert (given["mean"].dtype, given["index"].dtype) == ("float32", "int32")


@pytest.mark.parametrize("returned", [lambda x: (x, None), lambda x: [x, None], lambda x: {"low": x, "high": None}])
def test_an_output_of_none_is_named(returned: Any) -> None:
    """A reference returns an array for each output, in a tuple, a list or a mapping."""
    found = opgauge.op(name="bounds", outputs=("low", "high"))(returned).op
    with pytest.raises(DefinitionError, match="op bounds: the reference returned None for high"):
        found.infer({"x": (3,)}, "float32", found.params())


def test_inputs_may_be_optional_exact_and_derived() -> None:
    """`= None` is optional, `"int64"` names a dtype, and `derive` makes indices valid."""

    @opgauge.op(inputs={"index": opgauge.Input("index", kind="integers", low=0, high=1000)})
    def gather(x: Any, index: int64, bias: Any = None) -> Any:  # type: ignore[name-defined]  # noqa: F821
        taken = x[index]
        return taken if bias is None else taken + bias

    @gather.derive
    def _(x: Any, index: Any, bias: Any) -> dict[str, Any]:
        del bias
        return {"index": index % len(x)}

    found = gather.op
    shapes = found.infer({"x": (7, 3), "index": (5,)}, "float32", found.params())
    assert shapes.inputs["index"].dtype == "int64"
    assert shapes.outputs["out"].shape == (5, 3)
    assert not found.input("bias").required
    assert found.derive is not None
    derived = found.derive({"x": np.zeros((7, 3)), "index": np.array([8, 3])}, found.params())
    assert derived["index"].tolist() == [1, 3]


def bind(op: str, implementation: str, inputs: dict[str, Any], out: dict[str, Any]) -> Any:
    """The kernel on the CPU in float32, bound."""
    return find_kernel(op, implementation, "cpu", "float32").bind(inputs, find_op(op).params(), out)


def test_implementations_return_or_fill_or_overwrite() -> None:
    """A returned array is an output, `out` is filled, an input is overwritten from a copy; parameters go by name."""
    made = opgauge.op(rms)

    @made.implementation("returns", device="cpu")
    def _(x: Any, weight: Any, *, eps: float) -> Any:
        return rms(x, weight, eps=eps)

    @made.implementation("fills", device="cpu")
    def _(x: Any, weight: Any, out: Any, *, eps: float) -> None:
        out[...] = rms(x, weight, eps=eps)

    @made.implementation("overwrites", device="cpu", inplace="x")
    def _(x: Any, weight: Any, *, eps: float) -> None:
        x[...] = rms(x, weight, eps=eps)

    @made.implementation("prepares", device="cpu", prepare=True, arrays="torch", variant=True)
    def _(x: Any, weight: Any, *, eps: float) -> Any:
        return lambda: rms(x, weight, eps=eps)

    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    inputs, before = {"x": x, "weight": np.ones(4, np.float32)}, x.copy()
    want = rms(x, inputs["weight"])
    for name in ("fills", "overwrites"):
        out = np.zeros_like(x)
        call = bind("rms", name, inputs, {"out": out})
        for _turn in range(2):
            assert call() is None
            np.testing.assert_allclose(out, want, rtol=1e-6)
        np.testing.assert_array_equal(x, before)
    for name in ("returns", "prepares"):
        (returned,) = bind("rms", name, inputs, {"out": out})()
        np.testing.assert_array_equal(returned, want)
    assert find_kernel("rms", "prepares", "cpu", "float32").variant
    assert find_kernel("rms", "prepares", "cpu", "float32").arrays == "torch"
    assert find_kernel("rms", "fills", "cpu", "float32").path == __file__


def no_default(x: Any, *, eps: float) -> Any:
    """A parameter without a default."""
    return x * eps


def unplain(x: Any, *, table: dict[str, int] | None = None) -> Any:
    """A parameter that YAML cannot give to a dataclass of plain values."""
    return x if table is None else x + len(table)


def variadic(*xs: Any) -> Any:
    """Inputs without names."""
    return sum(xs)


def positional_default(x: Any, y: float = 2.0) -> Any:
    """A parameter among the inputs."""
    return x * y


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_default, "parameter eps has no default"),
        (unplain, "parameter table is annotated"),
        (lambda x, *, table=frozenset(): x, "parameter table is by default a frozenset; a case file can give"),
        (variadic, r"\*xs cannot be given in a case"),
        (positional_default, "input y has the default 2.0; write parameters after a `\\*`"),
    ],
)
def test_what_is_missing_is_one_error(function: Any, said: str) -> None:
    """Whatever a case could not give is refused by name where the op is defined."""
    with pytest.raises(DefinitionError, match=said):
        opgauge.op(function)


def test_implementations_that_do_not_fit_are_refused() -> None:
    """A missing parameter, an unknown argument, a wrong device and arrays of another device are named."""
    made = opgauge.op(rms)
    with pytest.raises(DefinitionError, match="does not take eps"):
        made.implementation("a", device="cpu")(lambda x, weight: x)
    with pytest.raises(DefinitionError, match="requires block"):
        made.implementation("a", device="cpu")(lambda x, weight, block, *, eps: x)
    with pytest.raises(DefinitionError, match="device= should be cpu, cuda or both, not 'gpu'"):
        made.implementation("a", device="gpu")
    with pytest.raises(DefinitionError, match="arrays='cupy' is not for cpu"):
        made.implementation("a", device="cpu", arrays="cupy")(lambda x, weight, *, eps: x)
    two = opgauge.op(name="two", outputs=("y", "total"))(lambda x: (2 * x, x.sum()))
    with pytest.raises(DefinitionError, match="overwrites inputs, so it should take out and fill total"):
        two.implementation("a", device="cpu", inplace={"y": "x"})(lambda x: x.sum())

    @made.implementation("nothing", device="cpu")
    def _(x: Any, weight: Any, *, eps: float) -> None:
        return

    x = np.ones((2, 2), np.float32)
    with pytest.raises(DefinitionError, match="returned None"):
        bind("rms", "nothing", {"x": x, "weight": x[0]}, {"out": x})()


@pytest.mark.parametrize(("device", "order"), [("cuda", ["wait", "call", "ready"]), ("cpu", ["call", "ready"])])
def test_jax_begins_when_the_timed_stream_has(monkeypatch: pytest.MonkeyPatch, device: str, order: list[str]) -> None:
    """JAX runs on other streams: on a GPU its work would be done before the timed stream begins."""
    log: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: log.append("wait"))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(block_until_ready=lambda _: log.append("ready")))
    monkeypatch.setitem(sys.modules, "jax.dlpack", SimpleNamespace(from_dlpack=lambda array: array))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream)))
    made = opgauge.op(rms)

    @made.implementation("jax", device=device, arrays="jax")
    def _(x: Any, weight: Any, *, eps: float) -> Any:
        log.append("call")
        return x

    array = np.ones((3, 4), np.float32)
    out = SimpleNamespace(__cuda_array_interface__={}) if device == "cuda" else array
    kernel = find_kernel("rms", "jax", device, "float32")
    kernel.bind({"x": array, "weight": array}, find_op("rms").params(), {"out": out})()
    assert log == order


def test_jax_gets_a_copy_of_what_numpy_does_not_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy refuses DLPack of bfloat16."""
    copied: list[str] = []

    def asarray(array: Any) -> Any:
        copied.append(array.dtype.name)
        return array.copy()

    jax = SimpleNamespace(block_until_ready=lambda _: None, numpy=SimpleNamespace(asarray=asarray))
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.dlpack", SimpleNamespace(from_dlpack=np.from_dlpack))
    made = opgauge.op(rms)
    made.implementation("jax", device="cpu", arrays="jax")(lambda x, weight, *, eps: x)
    for dtype in ("float32", "bfloat16"):
        array = np.ones((3, 4), dtype_info(dtype).numpy)
        inputs, params = {"x": array, "weight": array[0]}, find_op("rms").params()
        find_kernel("rms", "jax", "cpu", dtype).bind(inputs, params, {"out": array})()
    assert copied == ["bfloat16", "bfloat16"]


def test_shapes_that_the_reference_refuses_are_an_error_of_the_case() -> None:
    """NumPy's own message stands in a ShapeError with the shapes."""
    found = opgauge.op(rms).op
    with pytest.raises(ShapeError, match=r"the reference refuses x \[4, 8\], weight \[5\]"):
        found.infer({"x": (4, 8), "weight": (5,)}, "float32", found.params())


def test_any_failure_of_the_reference_is_an_error_of_the_case() -> None:
    """A user's function may raise anything; a traceback through opgauge would hide where."""

    def failing(x: Any) -> Any:
        raise KeyError(len(x))

    found = opgauge.op(failing).op
    with pytest.raises(ShapeError, match=r"the reference refuses x \[4\]: KeyError: 4"):
        found.infer({"x": (4,)}, "float32", found.params())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_bound_lets_honest_sums_pass_and_no_shortcut(dtype: str) -> None:
    """A sum in sequence in the accumulator's precision is right; one rounded at each step, or TF32, is not."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 64, 512)).astype(dtype)
    wide = {"x": x.astype(np.float64), "y": y.astype(np.float64)}

    def call(arrays: Any) -> dict[str, Any]:
        return {"out": (arrays["x"] * arrays["y"]).sum(-1)}

    want = call(wide)
    bound = np.asarray(perturbation_bound(call, wide, want, dtype)["out"])
    in_sequence = np.cumsum(x.astype(np.float32) * y.astype(np.float32), -1, dtype=np.float32)[:, -1].astype(dtype)
    assert np.all(np.abs(in_sequence - want["out"]) <= bound)
    coarse = np.float32(2**-9 if dtype == "float16" else 2**-11)
    shortened = (x.astype(np.float32) * (1 + coarse) * y.astype(np.float32)).sum(-1)
    wrong = shortened if dtype == "float32" else np.cumsum(x * y, -1, dtype=np.float16)[:, -1]
    assert np.mean(np.abs(wrong - want["out"]) > bound) > (0.3 if dtype == "float32" else 0.03)


def test_chance_leaves_no_element_without_a_bound() -> None:
    """A running mean in float32 is right everywhere, also where few perturbations cancel."""
    x = np.random.default_rng(2).normal(size=(128, 4096)).astype(np.float32)

    def call(arrays: Any) -> dict[str, Any]:
        return {"out": np.lib.stride_tricks.sliding_window_view(arrays["x"], 10, -1).mean(-1)}

    wide = {"x": x.astype(np.float64)}
    want = call(wide)
    bound = np.asarray(perturbation_bound(call, wide, want, "float32")["out"])
    total = x[:, :10].sum(-1)
    running = [total, *(total := total + x[:, last] - x[:, last - 10] for last in range(10, x.shape[1]))]
    found = np.stack(running, -1) / np.float32(10)
    assert np.all(np.abs(found - want["out"]) <= bound)


def test_a_stated_tolerance_goes_before() -> None:
    """Relative with a least size, relative and absolute, or by dtype: the op has those then."""
    arrays = {"x": np.array([1.0, 100.0]), "weight": np.ones(2)}
    for tolerance, want in ((0.1, [0.1 * 0.1 * np.sqrt(5000.5), 10.0]), ((0.1, 1.0), [1.1, 11.0])):
        found = opgauge.op(name=f"with_{len(str(tolerance))}", tolerance=tolerance)(lambda x, weight: x * weight).op
        bound = found.bound(arrays, {"out": arrays["x"]}, found.params(), "float32")
        np.testing.assert_allclose(np.asarray(bound["out"]), [max(want[0], 0.1 if tolerance == 0.1 else 0), want[1]])
    partial = opgauge.op(name="partial", tolerance={"float16": 0.1})(lambda x, weight: x * weight).op
    assert partial.dtypes == ("float16",)
    allowed = partial.bound(arrays, {"out": arrays["weight"]}, partial.params(), "float16")
    np.testing.assert_array_equal(np.asarray(allowed["out"]), [0.1, 0.1])


@pytest.mark.parametrize(
    "tolerance", [{"float16": 0.1}, {"float16": 0.1, "float32": "0.1"}, -0.1, (0.1, np.nan), [1, 2]]
)
def test_a_tolerance_that_cannot_be_used_is_found_at_once(tolerance: Any) -> None:
    """A dtype that it lacks, or what is no error bound, is an error of the definition and not of a run."""
    with pytest.raises(
        DefinitionError, match=r"tolerance= (has no entry for float32, only for float16|takes a relative)"
    ):
        opgauge.op(name="other", tolerance=tolerance, dtypes=("float16", "float32"))(lambda x: x)
