"""Bits of arrays compared and summed up."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgauge.harness.worker import bits
from opgauge.harness.worker.bits import digest, in_place, is_array, laziness, mixed, same_bits
from opgauge.ops._core.backend import to_backend


def test_same_bits_tells_nan_from_nan() -> None:
    """NaN equals the same NaN; 0 is not -0; a shape is part of it, an order in memory is not."""
    assert same_bits(np.array([nan, 1.0]), np.array([nan, 1.0]))
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert not same_bits(np.array([1.0]), np.array([[1.0]]))
    assert same_bits(np.zeros((2, 3)).T, np.zeros((3, 2)))


@given(st.lists(st.integers(0, 255), min_size=2, max_size=40), st.data())
def test_every_bit_and_its_place_tell(values: list[int], data: st.DataObject) -> None:
    """A flipped bit, and two different words that change places, give other numbers."""
    words = np.array(values, np.uint8)
    before = mixed(words)
    place, bit = data.draw(st.integers(0, len(values) - 1)), data.draw(st.integers(0, 7))
    flipped = words.copy()
    flipped[place] ^= 1 << bit
    assert mixed(flipped) != before
    other = data.draw(st.integers(0, len(values) - 1))
    swapped = words.copy()
    swapped[[place, other]] = words[[other, place]]
    assert (mixed(swapped) == before) == (words[place] == words[other])


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
def test_parts_make_no_difference(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array mixed in parts gives what it gives whole."""
    array = np.arange(57).astype(dtype)
    whole = mixed(array)
    monkeypatch.setattr(bits, "PART", 10)
    assert mixed(array) == whole


def test_a_digest_holds_names_shapes_and_dtypes() -> None:
    """The same bytes under another name, shape or dtype have another digest."""
    array = np.zeros(4, np.float32)
    others: list[dict[str, np.ndarray]] = [
        {"y": array},
        {"x": array.reshape(2, 2)},
        {"x": array.view(np.int32)},
        {"x": array + 1},
    ]
    assert len({digest(one) for one in [{"x": array}, *others]}) == 5
    assert digest({"x": array.copy()}) == digest({"x": array})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "c16"])
def test_a_gpu_mixes_as_the_host_does(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same 64 bits, in one part and in several; a device's digest is its own, and the same each time."""
    monkeypatch.setattr(bits, "PART", 1000)
    array = np.random.default_rng(0).integers(0, 255, 1603 * 16, np.uint8).view(dtype)
    there = to_backend(array, "cuda")
    assert mixed(there) == mixed(array)
    assert digest({"x": there}) == digest({"x": there.copy()})


class Exporting:
    """An array of another library on the CPU, as JAX's are."""

    def __init__(self, values: Any) -> None:
        self._values, self.dtype, self.shape = values, values.dtype, values.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self._values


def test_arrays_of_other_libraries_are_compared_where_they_lie() -> None:
    """What offers DLPack becomes a NumPy array that shares its memory, so that its bits can be compared."""
    values = np.arange(6, dtype=np.float32)
    found = in_place(Exporting(values))
    assert isinstance(found, np.ndarray)
    assert np.shares_memory(found, values)
    assert same_bits(found, values)


class Pretender:
    """An object whose class names NumPy as its module."""


Pretender.__module__, Pretender.__name__ = "numpy", "ndarray"


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (np.zeros(2), True),
        (np.zeros(2).view(np.matrix), True),
        (np.float32(1), True),
        (1.5, True),
        ([1.0], False),
        (Pretender(), False),
        (type("Lazy", (), {"__array__": lambda *_: np.zeros(2)})(), False),
    ],
    ids=["array", "matrix", "scalar", "number", "list", "pretender", "lazy"],
)
def test_arrays_are_those_of_known_libraries(value: Any, *, known: bool) -> None:
    """An object that converts itself could compute after the call."""
    assert is_array(value) is known


def test_a_subclass_is_read_as_plain_memory() -> None:
    """Its methods could compute."""
    kind = type("Lazy", (np.ndarray,), {"reshape": lambda *_: np.ones(2)})
    assert type(in_place(np.zeros(2).view(kind))) is np.ndarray


def test_tensors_that_are_computed_when_they_are_read_are_lazy() -> None:
    """Torch conjugates, negates or fills some tensors only then."""
    torch = pytest.importorskip("torch")
    number = torch.ones(3, dtype=torch.complex64)
    lazy = {"conjugated": number.conj(), "negated": number.conj().imag, "filled": torch._efficientzerotensor(3)}
    for change, tensor in lazy.items():
        assert f"that is {change}" in laziness(tensor)
    assert not any(laziness(tensor) for tensor in (number, number.conj().resolve_conj(), torch.zeros(3)))
