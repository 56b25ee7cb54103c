"""Share of known cheats that the auditor flags, and of honest kernels that it flags wrongly, as plain JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opgauge.harness.trust.share import Share


@dataclass(frozen=True, slots=True)
class CheatOutcome:
    """Outcome of one cheat. reason: why it was flagged; empty if it was not."""

    family: str
    name: str
    reason: str


def cheat_rates(cheats: Sequence[CheatOutcome], honest: Sequence[str]) -> dict[str, Any]:
    """Rates by family, for the database. honest: for each honest trial why it was flagged; empty if it was not."""
    flagged = Share(sum(bool(one.reason) for one in cheats), len(cheats))
    false = Share(sum(map(bool, honest)), len(honest))
    families = dict.fromkeys(one.family for one in cheats)
    return {
        "kinds": len(cheats),
        **_bounded("flagged", flagged),
        "honest_trials": len(honest),
        **_bounded("honest_flagged", false),
        "cases": [_family(name, [one for one in cheats if one.family == name]) for name in families],
    }


def _bounded(name: str, share: Share) -> dict[str, float]:
    return {f"{name}_share": share.value, f"{name}_low": share.low, f"{name}_high": share.high}


def _family(name: str, cheats: Sequence[CheatOutcome]) -> dict[str, Any]:
    missed = [one.name for one in cheats if not one.reason]
    return {
        "family": name,
        "kinds": len(cheats),
        "flagged": len(cheats) - len(missed),
        "not_flagged": ", ".join(missed),
    }
