"""Badges: small SVG pictures for a README. What they say comes from names that anybody may choose."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from opgauge.harness.result.result import Status
from opgauge.harness.result.summary import BASELINE, OPTIMIZED
from opgauge.harness.store.queries import CaseInfo
from opgauge.web.level import GRAVE
from opgauge.web.reader import Reader
from opgauge.web.rows import CaseLevels, geometric_mean, latest_rows
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
    return _badge(name, _latest(reader, device, lambda case: case.case_id == case_id))


def op_badge(reader: Reader, op: str, device: str | None) -> str:
    """How an op stands: the mean over its cases, each by its latest run, as on the overview."""
    return _badge(op, _latest(reader, device, lambda case: case.op == op))


def _latest(reader: Reader, device: str | None, is_chosen: Callable[[CaseInfo], bool]) -> list[CaseLevels]:
    """The chosen cases on a device; if None, on those that measured the newest of them."""
    found: list[CaseLevels] = []
    for own in each_project(reader):
        rows = [row for row in latest_rows(own) if is_chosen(row.case) and device in {None, *_names(row)}]
        _, order = own.ordered()
        newest = max((order[row.run.key] for row in rows), default=-1)
        devices = {row.device.slug for row in rows if order[row.run.key] == newest}
        found += [row for row in rows if row.device.slug in devices]
    return found


def _names(row: CaseLevels) -> tuple[str, str]:
    return row.device.slug, row.device.name


def _badge(label: str, rows: list[CaseLevels]) -> str:
    best = [row.levels[OPTIMIZED] for row in rows if OPTIMIZED in row.levels]
    bad = sum(level.status in GRAVE for level in best)
    if bad:
        return draw(label, f"{bad} of {len(best)} broken" if len(best) > 1 else best[0].status, RED)
    speedup = geometric_mean(row.speedup(BASELINE) for row in rows)
    if speedup is not None:
        return draw(label, f"{speedup:.3g}× baseline", GREEN if speedup >= 1 else RED)
    measured = any(level.status == Status.OK for row in rows for level in row.levels.values())
    return draw(label, "measured" if measured else "no data", GREEN if measured else GREY)


def _shown(text: str) -> str:
    """Printable and short: XML has no place for control characters, a badge none for a novel."""
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
