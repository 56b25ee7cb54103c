"""Evidence for tests of verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opgauge.harness.judge.verdict import (
    Comparison,
    Evidence,
    Pair,
    Reason,
    Rule,
    Side,
    Subject,
    Verdict,
)

SOUND = Side()
DEFAULT = Rule()
WIGGLE = (0.002, -0.003, 0.001, -0.001, 0.003, -0.002, 0.0015, -0.0005, 0.0, -0.0015)


def subject(name: str = "a") -> Subject:
    """A case to judge."""
    return Subject("sign", name, name, "optimized", "cuda:0")


def paired(ratio: float, count: int = 10, base_ns: float = 50_000.0) -> tuple[Pair, ...]:
    """Pairs around a ratio, with a noise of 0.2 %."""
    return tuple((base_ns, base_ns * ratio * math.exp(WIGGLE[index % 10])) for index in range(count))


def evidence(
    pairs: Sequence[Pair] = (), *, base: Side | None = SOUND, head: Side | None = SOUND, name: str = "a"
) -> Evidence:
    """Evidence with two sound sides, where nothing else is said."""
    return Evidence(subject(name), base, head, tuple(pairs))


def said(found: Comparison) -> tuple[Verdict | None, Reason]:
    """Verdict and reason."""
    return found.verdict, found.reason
