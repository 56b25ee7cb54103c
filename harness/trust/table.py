"""Tables in Markdown of the gate's self-tests beside their goals, to print and to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opgauge.harness.counting import counted
from opgauge.harness.trust.self_test import FROM_US, WITHIN_S
from opgauge.harness.trust.share import Share

GOAL = "goals: 5 % from 10 µs on, ≥ 99 % within 2 s per side; 2 % from 40 µs on, ≥ 90 % within 10 s per side"
"""Goals of detection."""


def alarms_table(data: Mapping[str, Any]) -> list[str]:
    """Lines of the table of `opgauge aa`."""
    count = data["decisions"]
    return _table(
        ("the same code against itself", "found", "goal"),
        [
            ("decisions that say slower or faster", str(Share(data["slower"] + data["faster"], count)), "≤ 0.1 %"),
            ("gate runs that go red", str(Share(data["red"], data["runs"])), "≤ 1 %"),
            ("decisions left undecided", str(Share(data["undecided"], count)), "≤ 2 %"),
            ("wall time that is measurement", measuring(data), "≥ 50 %"),
        ],
    )


def caught_table(data: Mapping[str, Any]) -> list[str]:
    """Lines of the table of `opgauge inject`."""
    rows = []
    for least_us in FROM_US:
        name = f"caught_from_{least_us:g}_us" if least_us else "caught"
        names = [name, *(f"{name}_within_{limit_s:g}_s" for limit_s in WITHIN_S)]
        rows.append((f"≥ {least_us:g} µs" if least_us else "all", *(_bounded(data, one) for one in names)))
    title = f"{100 * data['slowdown']:g} % slower, one of {data['among']} cases"
    lines = _table((title, "called slower", *(f"within {limit_s:g} s per side" for limit_s in WITHIN_S)), rows)
    decided = f"undecided {data['undecided']}, called the same {data['same']}, faster {data['faster']}"
    return [*lines, "", f"{decided} of {data['decisions']}; {GOAL}"]


def cases_table(data: Mapping[str, Any]) -> list[str]:
    """Lines of a table of the cases of `opgauge inject`: actual slowdown and cost."""
    rows = []
    for one in data["cases"]:
        ratio = "–" if one["ratio"] is None else f"{100 * (one['ratio'] - 1):+.1f} %"
        count = sum(one.get(word, 0) for word in ("slower", "faster", "same", "undecided", "broken"))
        name = f"{one['case']} {one['implementation']}"
        rows.append((name, one["device"], ratio, f"{one.get('slower', 0)} of {count}", f"{one['s_per_side']:.2g} s"))
    return _table(("case", "device", "measured", "caught", "per side"), rows)


def footer(data: Mapping[str, Any], machine: str, commit: str) -> str:
    """Amount and place of the self-test, in one line."""
    cases = len(data["cases"])
    amount = f"{counted(data['runs'], 'run')}, {counted(data['decisions'], 'decision')} on {counted(cases, 'case')}"
    parts = [amount, machine, commit[:12]]
    spent = ", ".join(f"{name} {found:.3g} s" for name, found in data["spent_s"].items())
    return f"{', '.join(part for part in parts if part)}; {measuring(data)} measured ({spent})"


def measuring(data: Mapping[str, Any]) -> str:
    """The share of wall time that was spent measuring."""
    return f"{100 * data['measuring_share']:.0f} % of {data['seconds']:.0f} s"


def _bounded(data: Mapping[str, Any], name: str) -> str:
    share, low, high = (data[f"{name}_{part}"] for part in ("share", "low", "high"))
    return "–" if data[f"{name}_total"] == 0 else f"{100 * share:.3g} % ({100 * low:.3g} – {100 * high:.3g} %)"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
