"""Sorting rows of a run by any column of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opgauge.harness.case.hint import did_you_mean
from opgauge.harness.errors import FilterError
from opgauge.harness.report.render import SHORT
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import Row, gbps, peak_bound, share_of_ceiling, sort_rows

ORDERS = ("run", "slowest", "name", "speedup")
"""Named orders: as measured; slowest against its fastest peer; by name; least gain over the baseline."""


def sort(found: Sequence[Row], order: str, ceilings: Mapping[str, Ceilings], *, reverse: bool = False) -> list[Row]:
    """The rows in a named order or by a column, ascending; rows without a value come last.

    Raises FilterError for an unknown column.
    """
    if order in ORDERS:
        rows = list(found) if order == "run" else sort_rows(list(found), order)
        return rows[::-1] if reverse else rows
    keys = _keys(found, ceilings)
    if order not in keys:
        msg = f"--sort {order}: no such column{did_you_mean(order, (*ORDERS, *keys))}"
        raise FilterError(msg)
    known = [row for row in found if keys[order](row) is not None]
    rest = [row for row in found if keys[order](row) is None]
    return sorted(known, key=keys[order], reverse=reverse) + rest


def _keys(found: Sequence[Row], ceilings: Mapping[str, Ceilings]) -> dict[str, Callable[[Row], Any]]:
    """Sort key of each column, by its title and by a name that is easy to type."""

    def rate(row: Row) -> float | None:
        return None if row.best is None else gbps(row.best)

    def share(row: Row) -> float | None:
        return None if row.best is None else share_of_ceiling(row.best, ceilings)

    def peak(row: Row) -> str | None:
        bound = None if row.best is None else peak_bound(row.best, ceilings)
        return None if bound is None else bound.peak

    keys: dict[str, Callable[[Row], Any]] = {
        "op": lambda row: (row.op, row.case),
        "case": lambda row: row.case,
        "dtype": lambda row: row.dtype,
        "device": lambda row: row.device,
        "status": lambda row: sum(result.status is Status.OK for result in row.results.values()) / len(row.results),
        **dict.fromkeys(("base", "× base"), lambda row: row.speedup),
        **dict.fromkeys(("peer", "÷ peer"), lambda row: row.against_peer),
        "hot": lambda row: row.hot_ns("optimized"),
        "hot ÷ peer": lambda row: row.hot_against_peer,
        **dict.fromkeys(("gbps", "GB/s"), rate),
        "ceil": share,
        "bound": peak,
    }
    for name in dict.fromkeys(name for row in found for name in row.results):
        keys |= dict.fromkeys((name, SHORT.get(name, name)), _time_of(name))
    return keys


def _time_of(implementation: str) -> Callable[[Row], float | None]:
    return lambda row: row.median_ns(implementation)
