"""Values as pages write them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

from markupsafe import Markup

from opgauge.harness.counting import counted
from opgauge.harness.report.render import ratio_text
from opgauge.harness.result.time_text import time_text
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo

__all__ = [
    "badge",
    "bytes_text",
    "case_link",
    "change_text",
    "count_text",
    "counted_text",
    "moment",
    "rate_text",
    "ratio_text",
    "run_link",
    "share_text",
    "sparkline",
    "time_text",
]

NONE = "–"
"""Text of a missing value."""
WIDTH, HEIGHT = 96, 24
"""Size of a sparkline in pixels."""
_SIGNS = {
    "✓": "fixed ok finished imported",
    "✗": "broken wrong error timeout out_of_memory",
    "?": "undecided suspected",
    "▼": "faster",
    "=": "same",
    "▲": "slower",
    "●": "open",
    "◐": "acknowledged",
    "–": "unsupported",
    "…": "running",
    "!": "interrupted",
}
MARKS = {word: sign for sign, words in _SIGNS.items() for word in words.split()}
"""Signs of verdicts, of states of regressions, of statuses of results and of runs."""


def share_text(value: float | None) -> str:
    """A share in percent, without decimals."""
    return NONE if value is None else f"{100 * value:.0f} %"


def change_text(ratio: float | None) -> str:
    """A ratio as a change in percent with its sign."""
    if ratio is None:
        return NONE
    change = 100 * (ratio - 1)
    return f"{change if abs(change) >= 0.05 else 0.0:+.1f} %" if abs(change) < 100 else f"{ratio:.3g}×"


def count_text(value: float | None) -> str:
    """A number with thin spaces between thousands; a long one in three digits."""
    if value is None:
        return NONE
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}".replace(",", "\u202f")


def counted_text(number: int, noun: str) -> str:
    """A number and its noun, with thin spaces between thousands."""
    return counted(number, noun).replace(",", "\u202f")


def rate_text(value: float | None) -> str:
    """A rate in three digits or whole."""
    return NONE if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def bytes_text(value: float | None) -> str:
    """A size in binary units."""
    if value is None:
        return NONE
    unit, size = bytes_unit(value)
    return f"{value / size:.3g} {unit}" if size > 1 else f"{value:.0f} B"


def bytes_unit(value: float) -> tuple[str, int]:
    """The binary unit of a size, and its bytes."""
    units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    return next(((name, size) for name, size in units if value >= size), ("B", 1))


def moment(when: datetime | None) -> str:
    """A time element in UTC."""
    if when is None:
        return NONE
    return Markup('<time datetime="{}">{}</time>').format(when.isoformat(), f"{when:%Y-%m-%d %H:%M}")


def sparkline(values: Sequence[float | None], label: str) -> Markup:
    """A small line as SVG; empty for fewer than two values. `label` is what a screen reader says."""
    known = [(place, value) for place, value in enumerate(values) if value]
    if len(known) < 2:
        return Markup("")
    low, high = min(value for _, value in known), max(value for _, value in known)
    # a series that is still stays flat: less than 4 % does not fill the height
    middle, span = (low + high) / 2, max(high - low, 0.04 * high)
    last = max(len(values) - 1, 1)
    points = [
        (2 + place / last * (WIDTH - 4), HEIGHT / 2 - (value - middle) / span * (HEIGHT - 6)) for place, value in known
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"/></svg>'
    ).format(w=WIDTH, h=HEIGHT, label=label, line=line, x=points[-1][0], y=points[-1][1])


@lru_cache(512)
def badge(word: str) -> Markup:
    """A verdict, state or status with its sign, in its colour."""
    colour = word.replace("_", "-") if word in MARKS else "plain"
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(
        colour, MARKS.get(word, "·"), word.replace("_", " ")
    )


def case_link(case: CaseInfo, device: str = "", run: str = "") -> Markup:
    """Link to the page of a case, on a device and in a run."""
    query = "&".join(f"{name}={quote(value)}" for name, value in (("device", device), ("run", run)) if value)
    return _link(f"/cases/{case.case_id}{query and f'?{query}'}", case.name)


@lru_cache(4096)
def _link(address: str, name: str) -> Markup:
    """A link, cached as cases recur on every page."""
    return Markup('<a href="{}">{}</a>').format(address, name)


def run_link(run: RunInfo) -> Markup:
    """Link to the page of a run."""
    return Markup('<a class="mono" href="/runs/{}">{}</a>').format(quote(run.id), run.id[:8])
