"""Regions of arrays, exchanged, filled and compared by kernels that run on the host here."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from opgauge.harness.worker import regions
from opgauge.harness.worker.regions import Pair, Region, differ, exchanging, filling, moved, perform, run, slices
from opgauge.harness.worker.variation import along
from opgauge.ops._core.op import Array
from opgauge.ops._cuda.source import CudaSource
from tests.emulation.emulator import DeviceArray, emulated

DTYPES = ("bool", "float16", "float32", "float64", "complex128")
SHAPE, AXIS, FIRST, SECOND, LENGTH = (3, 7, 5), 1, 1, 4, 2


class Flag(DeviceArray):
    """The word that `compare` sets."""

    def get(self) -> Array:
        """What it holds, as CuPy copies it to the host."""
        return np.asarray(self)


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All kernels, compiled for the host."""
    source = CudaSource.__new__(CudaSource)
    source.path, source.expressions, source.options = regions.SOURCE, (regions.KERNEL,), ()
    with emulated(tmp_path_factory.mktemp("regions")) as emulator, pytest.MonkeyPatch.context() as patch:
        found = emulator.function(source, regions.KERNEL)
        emulator.compile()
        flag = np.zeros(1, np.uint32).view(Flag)
        patch.setattr(regions, "_function", lambda _: found)
        patch.setattr(regions, "_flag", lambda _: flag)
        patch.setattr(
            regions, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0)))
        )
        yield


def drawn(dtype: str, seed: int = 0) -> Array:
    """An array of random values."""
    return np.random.default_rng(seed).integers(0, 2, SHAPE).astype(dtype).view(DeviceArray)


@pytest.mark.parametrize("axis", range(len(SHAPE)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_are_exchanged_along_each_axis(dtype: str, axis: int) -> None:
    """And only those."""
    array, length = drawn(dtype), 1
    wanted = array.copy()
    first, second = 0, SHAPE[axis] - 1
    wanted[along(axis, [first, second])] = array[along(axis, [second, first])]
    perform([exchanging(array, axis, first, second, length)])
    assert array.tobytes() == wanted.tobytes()


def test_ranges_of_slices_are_exchanged_and_back() -> None:
    """Twice is nothing."""
    array = drawn("float32")
    kept = array.copy()
    perform([exchanging(array, AXIS, FIRST, SECOND, LENGTH)])
    assert np.array_equal(array[:, FIRST : FIRST + LENGTH], kept[:, SECOND : SECOND + LENGTH])
    assert np.array_equal(array[:, [0, 3, 6]], kept[:, [0, 3, 6]])
    perform([exchanging(array, AXIS, FIRST, SECOND, LENGTH)])
    assert array.tobytes() == kept.tobytes()


def test_only_regions_are_filled() -> None:
    """Bytes from a start up to a stop."""
    flat = np.zeros(1000, np.uint8).view(DeviceArray)
    perform(filling(flat, [run(3, 500), run(512, 640), run(990, 1000)], 0xA5))
    assert sorted(np.flatnonzero(flat)) == [*range(3, 500), *range(512, 640), *range(990, 1000)]
    assert set(flat[flat > 0].tolist()) == {0xA5}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_different_element_is_seen_where_one_looks(dtype: str) -> None:
    """One element at a time differs: in the regions that is seen, and elsewhere not."""
    kept = drawn(dtype)
    looked = [slices(kept, AXIS, FIRST, LENGTH), run(kept.size - 3, kept.size)]
    inside = {*np.arange(kept.size).reshape(SHAPE)[:, FIRST : FIRST + LENGTH].flat, *range(kept.size - 3, kept.size)}
    for place in range(kept.size):
        got = kept.copy()
        got.reshape(-1)[place] = 1 - got.reshape(-1)[place]
        assert differ([Pair(kept, kept, looked), Pair(got, kept, looked)]) == (place in inside)
    assert not differ([Pair(kept, kept, [run(0, kept.size)])])


def test_bits_count_not_values() -> None:
    """The same NaN is the same, and -0 is not 0; another shape or dtype is different."""
    nan, zero = np.full(4, np.nan).view(DeviceArray), np.zeros(4).view(DeviceArray)
    everything = [run(0, 4)]
    assert not differ([Pair(nan, nan.copy(), everything)])
    assert differ([Pair(zero, -zero, everything)])
    assert differ([Pair(zero, zero.reshape(2, 2), everything)])
    assert differ([Pair(zero, zero.view(np.int64), everything)])
    assert differ([Pair(zero, -zero, everything), Pair(zero, zero.reshape(2, 2), everything)])
    assert not differ([Pair(zero, zero.copy(), everything)])


def test_empty_regions_are_equal() -> None:
    """Nothing is launched for them."""
    empty = np.zeros((0, 4), np.float32).view(DeviceArray)
    assert not differ([Pair(empty, empty.copy(), [run(0, 0)])])
    assert not differ([Pair(empty, empty.copy(), [Region(0, 0, 0, 4)])])


@pytest.mark.parametrize("axis", range(len(SHAPE)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_exchanged_slices_are_compared_where_they_are(dtype: str, axis: int) -> None:
    """The other array is as before the exchange; also elements outside the exchanged slices are compared."""
    kept, second = drawn(dtype), SHAPE[axis] - 1
    got, exchanged = kept.copy(), moved(kept, axis, 0, second, 1)
    perform([exchanging(got, axis, 0, second, 1)])
    everything = [run(0, kept.size)]
    assert not differ([Pair(got, kept, everything, exchanged)])
    assert differ([Pair(got, kept, everything)])
    for place in range(kept.size):
        wrong = got.copy()
        wrong.reshape(-1)[place] = 1 - wrong.reshape(-1)[place]
        assert differ([Pair(wrong, kept, everything, exchanged)])


def test_more_operations_than_fit_into_a_launch_are_all_performed() -> None:
    """Of 100 fills and 100 comparisons, the last too."""
    flat = np.zeros(1000, np.uint8).view(DeviceArray)
    perform(filling(flat, [run(10 * number, 10 * number + 5) for number in range(100)], 1))
    assert int(flat.sum()) == 500
    wrong = flat.copy()
    wrong[-1] = 7
    looked = [run(10 * number + 5, 10 * number + 10) for number in range(100)]
    assert differ([Pair(wrong, flat, looked)])
    assert not differ([Pair(wrong, flat, looked[:-1])])
