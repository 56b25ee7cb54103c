"""Functions and other callables of projects, as references and implementations."""

from __future__ import annotations

import ctypes
import inspect
from functools import lru_cache, partial
from typing import Any

import numba
import numpy as np
import pytest

import opgauge
from opgauge.ops import DefinitionError, DuplicateError, KernelNotFoundError, call, find_kernel
from opgauge.ops._core import registry


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that a test registers are forgotten after it."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    monkeypatch.setattr(registry, "_KERNELS", dict(registry._KERNELS))


def _add(x: Any, y: Any, out: Any) -> None:
    for at in range(len(x)):
        out[at] = x[at] + y[at]


def _scaled(x: Any, *, factor: float = 2.0) -> Any:
    return x * factor


class CallableObject:
    """An object that can be called."""

    def __call__(self, x: Any) -> Any:
        """Twice x."""
        return x + x


@pytest.mark.parametrize(
    "made", [CallableObject(), partial(lambda k, x: k * x, 2), lru_cache(lambda x: x + x), numba.njit(lambda x: x + x)]
)
def test_what_has_no_code_of_python_can_be_an_implementation(made: Any) -> None:
    """Objects, partial functions and compiled ones are registered from the line that does so."""
    doubled = opgauge.op(name="doubled", dtypes=("float32",))(made)
    doubled.implementation("same", device="cpu")(made)
    kernel = find_kernel("doubled", "same", "cpu", "float32")
    assert kernel.path == __file__
    with pytest.raises(DuplicateError, match=r"twice: at .*test_definitions.py:\d+ and at .*test_definitions.py:\d+$"):
        doubled.implementation("same", device="cpu")(made)
    with pytest.raises(DefinitionError, match="give one by name="):
        opgauge.op(CallableObject())


def test_arguments_that_take_no_names_are_refused() -> None:
    """Implementations get their arguments by name: a `/` would fail in the call."""
    doubled = opgauge.op(name="doubled")(lambda x: x + x)
    for function in (abs, lambda x, /: x + x):
        with pytest.raises(DefinitionError, match="does not take x, which it would get by name"):
            doubled.implementation("positional", device="cpu")(function)


def test_annotations_need_not_be_code() -> None:
    """Text beside an input says something to readers alone."""

    def function(x: Any) -> Any:
        return x

    function.__annotations__["x"] = "two axes"  # as in a module that evaluates annotations
    assert opgauge.op(function).op.outputs == ("out",)


def test_the_only_implementation_is_called() -> None:
    """A project's op has no `optimized`; of several, one has to be chosen."""
    doubled = opgauge.op(name="doubled", dtypes=("float32",))(lambda x: 2 * x)
    doubled.implementation("mine", device="cpu")(lambda x: x + x)
    assert call("doubled", x=np.ones(2, np.float32)).tolist() == [2, 2]
    doubled.implementation("other", device="cpu")(lambda x: x + x)
    with pytest.raises(KernelNotFoundError, match="choose one by implementation=, of mine, other"):
        call("doubled", x=np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("returned", "prepare", "said"),
    [
        ({"y": 1.0, "z": 2.0}, False, "'faulty' of doubled returned a mapping without out; it has y, z"),
        (np.ones(2), True, "'faulty' of doubled has prepare=True and returned no callable but ndarray"),
    ],
)
def test_what_an_implementation_may_not_return_is_told(returned: Any, prepare: bool, said: str) -> None:
    """The error names the implementation, and what it should return."""
    doubled = opgauge.op(name="doubled", dtypes=("float32",))(lambda x: 2 * x)
    doubled.implementation("faulty", device="cpu", prepare=prepare)(lambda x: returned)
    with pytest.raises(DefinitionError, match=said):
        call("doubled", x=np.ones(2, np.float32))


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_new_array_in_place_of_a_filled_one_is_told(arrays: str) -> None:
    """With `out`, or an input that is overwritten, what is returned counts for nothing; the filled array may be."""
    ones: Any = pytest.importorskip(arrays).ones
    doubled = opgauge.op(name="doubled", dtypes=("float32",))(lambda x: 2 * x)
    doubled.implementation("new", device="cpu", arrays=arrays)(lambda x, out: 2 * x)
    doubled.implementation("changed", device="cpu", arrays=arrays, inplace="x")(lambda x: 2 * x)
    doubled.implementation("filled", device="cpu", arrays=arrays)(lambda x, out: out.__setitem__(slice(None), x) or out)
    doubled.implementation("status", device="cpu", arrays=arrays)(lambda x, out: np.zeros(1))
    for name in ("new", "changed"):
        with pytest.raises(DefinitionError, match=f"'{name}' of doubled returned a new array, but out"):
            find_kernel("doubled", name, "cpu", "float32").function(x=ones(3), out={"out": ones(3)})()
    for name in ("filled", "status"):
        find_kernel("doubled", name, "cpu", "float32").function(x=ones(3), out={"out": ones(3)})()


@pytest.mark.parametrize(
    "add",
    [np.add, numba.vectorize(lambda x, y: x + y), numba.guvectorize("(f4[:],f4[:],f4[:])", "(n),(n)->(n)")(_add)],
    ids=["numpy", "vectorize", "guvectorize"],
)
def test_ufuncs_are_implementations(add: Any) -> None:
    """They take inputs by position; parameters, and other numbers of inputs, they cannot have."""
    total = opgauge.op(name="total", dtypes=("float32",))(lambda x, y: x + y)
    total.implementation("ufunc", device="cpu")(add)
    ones = np.ones(2, np.float32)
    assert call("total", x=ones, y=ones).tolist() == [2, 2]
    scaled = opgauge.op(name="scaled", dtypes=("float32",))(_scaled)
    with pytest.raises(DefinitionError, match="is a ufunc of 2 arrays, scaled takes x, factor: wrap it"):
        scaled.implementation("ufunc", device="cpu")(add)


def test_functions_without_a_signature_are_implementations() -> None:
    """Those of pybind11, nanobind, cffi and ctypes: they take inputs, then parameters, by position."""
    made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)(lambda x, factor: x * factor)
    with pytest.raises(ValueError, match="not supported by signature"):
        inspect.signature(made)
    opgauge.op(name="scaled", dtypes=("float32",))(_scaled).implementation("c", device="cpu")(made)
    assert call("scaled", x=np.ones(2, np.float32), factor=3.0).tolist() == [3, 3]


def test_what_a_reference_prints_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """It is called to find shapes while a command prints JSON."""

    def function(x: Any) -> Any:
        print("called")  # noqa: T201
        return x

    found = opgauge.op(function).op
    found.infer({"x": (2,)}, "float32", found.params())
    assert capsys.readouterr() == ("", "called\n")
