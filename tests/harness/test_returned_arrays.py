"""Arrays that a kernel returns: what was not written again is told, honest ways of returning arrays are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opgauge.harness.worker.attempt import WrongError, _has_shared_elements
from opgauge.harness.worker.bits import typed
from opgauge.harness.worker.returned_arrays import ReturnedArrays

SHAPE = (6, 5)


def constant() -> Any:
    """An array whose memory nobody can write."""
    return np.frombuffer(np.ones(SHAPE).tobytes()).reshape(SHAPE)


def spoil_twice(make: Callable[[], Any]) -> None:
    """Two samples of a kernel that returns what `make` does; a third array takes the memory of one that is gone."""
    returned = ReturnedArrays({"y": np.zeros(SHAPE)}, np.random.default_rng(0))
    for _ in range(3):
        returned.spoil({"y": make()})


def test_constant_memory_that_is_returned_again_is_told() -> None:
    """Garbage cannot be written there, and neither can the kernel."""
    ready = constant()
    with pytest.raises(WrongError, match="constant memory"):
        spoil_twice(lambda: ready[:])


def test_new_constant_arrays_are_in_order() -> None:
    """Libraries with immutable arrays return a new one in each call, in the memory of an older one."""
    spoil_twice(constant)


def test_an_array_that_the_kernel_keeps_is_overwritten() -> None:
    """It may be returned again, once it has been written."""
    own = np.ones(SHAPE)
    spoil_twice(lambda: own)
    assert np.isnan(own[-1, -1])


class OnDevice:
    """An output on a GPU, of a library that refuses NumPy's arrays."""

    def __array_function__(self, *_: Any) -> Any:
        """Raise TypeError, as CuPy does."""
        raise TypeError


def test_an_array_on_the_host_may_be_returned_for_an_output_on_a_gpu() -> None:
    """Its elements are overwritten."""
    own = np.ones(SHAPE)
    ReturnedArrays({"y": OnDevice()}, np.random.default_rng(0)).spoil({"y": own})
    assert np.isnan(own[-1, -1])


@pytest.mark.parametrize(
    ("array", "shared"),
    [
        (np.zeros(SHAPE), False),
        (np.zeros(SHAPE).T, False),
        (np.zeros(SHAPE)[::-2, 1::3], False),
        (np.zeros((2, 3, 4)).transpose(1, 2, 0), False),
        (np.zeros((2, 3, 4)).diagonal(), False),
        (np.zeros(()), False),
        (np.broadcast_to(np.zeros((1, 5)), SHAPE), True),
        (np.broadcast_to(np.zeros((6, 9))[:, :1], SHAPE), True),
        (np.broadcast_to(np.zeros((1, 1)), (1, 1)), False),
        (np.lib.stride_tricks.sliding_window_view(np.zeros(9), 3), True),
    ],
)
def test_elements_that_share_memory_are_recognized(array: Any, shared: bool) -> None:
    """Views of any order and step have elements of their own."""
    assert _has_shared_elements(array) is shared


@pytest.mark.parametrize(
    ("number", "dtype", "found"),
    [
        (1.5, "float32", "float32"),
        (1.5, "bfloat16", "bfloat16"),
        (2, "float16", "float16"),
        (2, "int8", "int8"),
        (1j, "complex64", "complex64"),
        (1.5, "int64", None),
        (300, "int8", None),
        (1j, "float32", None),
        (True, "bool", None),
        (np.float64(1.5), "float32", None),
    ],
)
def test_a_number_of_python_has_the_dtype_of_its_output(number: Any, dtype: str, found: str | None) -> None:
    """Functions of ctypes return float and int, which have no dtype; a number of NumPy has one."""
    made = typed(number, dtype)
    assert made is number if found is None else (made.dtype.name, made) == (found, number)
