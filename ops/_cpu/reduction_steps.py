"""Steps of a reduction over two groups of axes on the CPU: between them lie runs that may be too short for a loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opgauge.ops._core.axes import Reduction

ROWS = 2
"""Maximum elements of a row of the inner group, per row of the outer one, for which the outer one comes first.

A loop for each row takes about 3 ns, and a float64 that is kept between the steps 1.3 ns.
"""


def outer_first(layouts: Iterable[Reduction], runs: int) -> Iterator[Reduction]:
    """The layouts, where the outer of two groups alone comes first if runs between the groups are short.

    It is reduced along long lines then. runs: as ROWS for runs of several rows, which cost more than a row.
    """
    for layout in layouts:
        a, r1, b, r2, c = layout.shape
        if b > 1 and r2 * c < (ROWS if c == 1 else runs) * r1:
            yield Reduction(a, r1, 1, 1, b * r2 * c)
            yield Reduction(a * b, r2, 1, 1, c)
        else:
            yield layout
