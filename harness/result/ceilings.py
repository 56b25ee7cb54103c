"""Ceilings: the achieved peaks of a device, and the least time of a case at them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


@dataclass(frozen=True)
class Ceilings:
    """Achieved peaks of a device in this run; None or empty if not measured.

    copy_gbps: large copy, read plus written, GB/s. write_gbps: large fill, GB/s. matrix_gflops: square matrix
    product, by dtype name. launch_ns: an empty kernel or call. sizes: bytes moved by smaller copies, fills, reads, and
    sums of two arrays, ascending; copies_ns, writes_ns, reads_ns, adds_ns: their times. matrix_gflops has the rate of
    multiply-adds in the dtype itself, and under "tf32" that of tensor cores, if measured.
    """

    device: str
    copy_gbps: float | None = None
    write_gbps: float | None = None
    matrix_gflops: Mapping[str, float] = field(default_factory=dict)
    launch_ns: float | None = None
    sizes: tuple[int, ...] = ()
    copies_ns: tuple[float, ...] = ()
    writes_ns: tuple[float, ...] = ()
    reads_ns: tuple[float, ...] = ()
    adds_ns: tuple[float, ...] = ()

    def best_of(self, other: Ceilings) -> Ceilings:
        """The better of each peak of two measurements of the same device with the same sizes."""
        if self.sizes != other.sizes:
            return other

        def faster(name: str) -> tuple[float, ...]:
            return tuple(map(min, getattr(self, name), getattr(other, name)))

        def known(name: str) -> list[float]:
            return [one for one in (getattr(self, name), getattr(other, name)) if one is not None]

        rates = {
            dtype: max(self.matrix_gflops.get(dtype, 0.0), other.matrix_gflops.get(dtype, 0.0))
            for dtype in {*self.matrix_gflops, *other.matrix_gflops}
        }
        return replace(
            self,
            copy_gbps=max(known("copy_gbps"), default=None),
            write_gbps=max(known("write_gbps"), default=None),
            matrix_gflops=rates,
            launch_ns=min(known("launch_ns"), default=None),
            copies_ns=faster("copies_ns"),
            writes_ns=faster("writes_ns"),
            reads_ns=faster("reads_ns"),
            adds_ns=faster("adds_ns"),
        )

    def floor_ns(self, nbytes: int, flops: int, dtype: str, *, written: float = 0.5) -> float | None:
        """Least time for this work; see `bound`."""
        found = self.bound(nbytes, flops, dtype, written=written)
        return None if found is None else found.time_ns

    def bound(
        self, nbytes: int, flops: int, dtype: str, *, written: float = 0.5, relaxed: bool = False
    ) -> PeakBound | None:
        """Least time at the achieved peaks, and the peak that decides; None if nothing was measured.

        written: share of the bytes that is written. Times are interpolated between reads only, a third written, half
        written and writes only; between measured sizes the lesser of a power law and a line counts. relaxed: of an
        implementation that declares coarser arithmetic, as of TF32.
        """
        found = [self._moving(nbytes, written)] if nbytes else []
        rate, mode = self._matrix_rate(dtype, relaxed=relaxed)
        if flops and rate:
            found.append(PeakBound(flops / rate, mode))
        return max((one for one in found if one is not None), key=lambda one: one.time_ns, default=None)

    def _moving(self, nbytes: int, written: float) -> PeakBound | None:
        if self.device == "cpu" and nbytes < min(self.sizes, default=0):
            return None  # the call takes longer than the work
        copy_ns = self._time_ns(self.copies_ns, self.copy_gbps, nbytes)
        write_ns = self._time_ns(self.writes_ns, self.write_gbps, nbytes)
        if copy_ns is None and (write_ns is None or written <= HALF):
            return None
        by_share = (
            (0.0, self._time_ns(self.reads_ns, None, nbytes), "read"),
            (1 / 3, self._time_ns(self.adds_ns, None, nbytes), "add"),
            (HALF, copy_ns, "copy"),
            (1.0, write_ns, "write"),
        )
        known = [(share, time_ns, peak) for share, time_ns, peak in by_share if time_ns is not None]
        below = max((one for one in known if one[0] <= written), default=known[0])
        above = min((one for one in known if one[0] >= written), default=known[-1])
        part = (written - below[0]) / (above[0] - below[0]) if below[0] < written < above[0] else 0.0
        time_ns = (1 - part) * below[1] + part * above[1]
        return PeakBound(time_ns, (above if part > HALF else below)[2])

    def _time_ns(self, times_ns: Sequence[float], gbps: float | None, nbytes: int) -> float | None:
        if times_ns:
            return _between(self.sizes, times_ns, nbytes, self.launch_ns)
        return nbytes / gbps if gbps else None

    def _matrix_rate(self, dtype: str, *, relaxed: bool) -> tuple[float | None, str]:
        """Rate of multiply-adds and its mode: float32 by products of TF32 if that is faster.

        TF32 has half of the bits, so that exact implementations need three products, and relaxed ones one.
        """
        rate, products = self.matrix_gflops.get(dtype), 1 if relaxed else 3
        split = self.matrix_gflops.get("tf32", 0.0) / products
        if dtype != "float32" or split <= (rate or 0.0):
            return rate, "matrix"
        return split, "matrix TF32" if relaxed else "matrix 3×TF32"


HALF = 0.5
"""Share of written bytes in a copy."""


class PeakBound(NamedTuple):
    """Least time of a case at the achieved peaks, and the deciding peak: read, add, copy, write, or a matrix mode."""

    time_ns: float
    peak: str


def _between(sizes: Sequence[int], times: Sequence[float], size: int, launch_ns: float | None) -> float:
    """Time for `size`: proportional beyond the largest measured size, a line to an empty launch below the smallest.

    Between two sizes the lesser of a power law and a line, which a launch followed by a constant rate is.
    """
    if size <= sizes[0]:
        empty_ns = times[0] if launch_ns is None else min(launch_ns, times[0])
        return empty_ns + (times[0] - empty_ns) * size / sizes[0]
    if size >= sizes[-1]:
        return times[-1] * size / sizes[-1]
    above = bisect_right(sizes, size)
    (small, large), (short, long) = sizes[above - 1 : above + 1], times[above - 1 : above + 1]
    power = short * (long / short) ** (math.log(size / small) / math.log(large / small))
    return float(min(power, short + (long - short) * (size - small) / (large - small)))
