"""Badges: small SVG pictures for a README. What they say comes from names that anybody may choose."""

from __future__ import annotations

from html import escape

from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import BASELINE, OPTIMIZED
from opgauge.web.level import GRAVE, Level
from opgauge.web.reader import Reader, Recent
from opgauge.web.rows import geometric_mean
from opgauge.web.scope import each_project

GREEN, RED, GREY = "#2e7d32", "#c62828", "#616161"
LONGEST = 48
LETTER, PADDING, HEIGHT = 6.6, 6, 20
"""Most characters of a badge; its measures in pixels."""
_PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="20" role="img" aria-label="{label}: {text}">'
    "<title>{label}: {text}</title>"
    '<rect width="{width:.0f}" height="20" rx="3" fill="#444"/>'
    '<rect x="{left:.0f}" width="{right:.0f}" height="20" rx="3" fill="{colour}"/>'
    '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
    '<text x="{left_middle:.0f}" y="14">{label}</text><text x="{right_middle:.0f}" y="14">{text}</text></g></svg>'
)


def draw(label: str, text: str, colour: str) -> str:
    """A badge: what it is about at the left, what there is to say at the right."""
    shown = [_shown(one) for one in (label, text)]
    left, right = (LETTER * len(one) + 2 * PADDING for one in shown)
    return _PICTURE.format(
        width=left + right,
        left=left,
        right=right,
        left_middle=left / 2,
        right_middle=left + right / 2,
        colour=colour,
        label=escape(shown[0]),
        text=escape(shown[1]),
    )


def case_badge(reader: Reader, case_id: str, device: str | None) -> str:
    """How a case stands in the latest run that has it."""
    written = reader.forms_of(case_id)
    if not written:
        return draw("opgauge", "no such case", GREY)
    name = f"{written[-1].op}/{written[-1].name}"
    recents = [own.recent() for own in each_project(reader)]
    return _badge(name, [levels for recent in recents for levels in _latest(recent, {case_id}, device)])


def op_badge(reader: Reader, op: str, device: str | None) -> str:
    """How an op stands: the mean over its cases."""
    found: list[dict[str, Level]] = []
    for recent in (own.recent() for own in each_project(reader)):
        found += _latest(recent, {key for key, case in recent.cases.items() if case.op == op}, device)
    return _badge(op, found)


def _latest(recent: Recent, case_ids: set[str], device: str | None) -> list[dict[str, Level]]:
    """Levels by implementation of each case, from the newest commit on that device; on any if None."""
    order = {run.key: place for place, run in enumerate(recent.runs)}
    found: dict[tuple[str, str], dict[str, Level]] = {}
    for (case_id, implementation, slug), levels in recent.series.items():
        if case_id in case_ids and device in {None, slug, recent.devices[slug].name}:
            found.setdefault((case_id, slug), {})[implementation] = levels[-1]
    if not found:
        return []
    places = {key: max(order[level.run.key] for level in levels.values()) for key, levels in found.items()}
    return [levels for key, levels in found.items() if places[key] == max(places.values())]


def _badge(label: str, cases: list[dict[str, Level]]) -> str:
    best = [levels[OPTIMIZED] for levels in cases if OPTIMIZED in levels]
    bad = sum(level.status in GRAVE for level in best)
    if bad:
        return draw(label, f"{bad} of {len(best)} broken" if len(best) > 1 else best[0].status, RED)
    speedup = geometric_mean(_ratio(levels) for levels in cases)
    if speedup is not None:
        return draw(label, f"{speedup:.3g}× baseline", GREEN if speedup >= 1 else RED)
    measured = any(level.status == Status.OK for levels in cases for level in levels.values())
    return draw(label, "measured" if measured else "no data", GREEN if measured else GREY)


def _ratio(levels: dict[str, Level]) -> float | None:
    above, below = (levels[name].median_ns if name in levels else None for name in (BASELINE, OPTIMIZED))
    return above / below if above and below else None


def _shown(text: str) -> str:
    """Printable and short: XML has no place for control characters, a badge none for a novel."""
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
