"""Two stored runs side by side: evidence from their results, judged by `harness.compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

from harness.compare import compare_run
from harness.errors import NothingError
from harness.result import Ceilings, Environment, Status
from harness.store import listing, queries
from harness.store.listing import Judged
from harness.store.queries import CaseInfo, RunInfo
from harness.verdict import Comparison, Evidence, Metrics, Rule, Side, Subject
from web.profile import number
from web.reader import GRAVE, Reader, device_names

MOST = 5000
LEAST_COMMIT = 6
USUAL = Rule()
_BAD = frozenset(map(str, GRAVE))


@dataclass(frozen=True, slots=True)
class Compared:
    """A case by one implementation, on both sides."""

    case: CaseInfo
    implementation: str
    device: str
    found: Comparison
    base_ns: float | None
    head_ns: float | None

    @property
    def word(self) -> str:
        """Verdict, or what there is instead of one."""
        return str(self.found.verdict or self.found.kind)


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry of the environment that differs; `hard` ones forbid blaming the code."""

    key: str
    base: str
    head: str
    hard: bool


_Key = tuple[str, str, str]
"""Case id, implementation, device."""


@dataclass(slots=True)
class Trial:
    """A case by one implementation on one device of a run: its blocks' medians and rulers, what became of it."""

    case: CaseInfo
    device: str
    bytes: int
    times: tuple[float, ...]
    rulers: tuple[float, ...]
    side: Side


def resolve(reader: Reader, text: str) -> RunInfo:
    """The run that is meant: beginning of its id, of its commit, or a branch; the latest. Raises NothingError."""
    wanted = text.strip()
    by_id = queries.find_runs(reader.engine, wanted) if wanted else []
    if len(by_id) == 1:
        return by_id[0]
    if len(by_id) > 1:
        msg = f"several runs begin with {wanted}: give more of it"
        raise NothingError(msg)
    for run in reader.runs():
        is_commit = len(wanted) >= LEAST_COMMIT and run.commit.startswith(wanted)
        if is_commit or (wanted and run.branch == wanted):
            return run
    msg = f"no run, commit or branch begins with {wanted!r}; the runs page lists what there is"
    raise NothingError(msg)


def differences(base: Environment, head: Environment) -> list[Difference]:
    """What differs between two environments, the hard entries first."""
    pairs = [(True, base.hard, head.hard), (False, base.soft, head.soft)]
    return [
        Difference(key, before.get(key, "–"), after.get(key, "–"), hard)
        for hard, before, after in pairs
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def compare_runs(
    reader: Reader, base: RunInfo, head: RunInfo, *, base_device: str = "", head_device: str = ""
) -> list[Compared]:
    """Every trial of either run; with devices, those of the one beside those of the other."""
    across = bool(base_device and head_device and base_device != head_device)
    before, after = (
        _trials(reader, run, device, across=across) for run, device in ((base, base_device), (head, head_device))
    )
    ceilings = reader.ceilings(head)
    cases = {key: one.case for key, one in {**after, **before}.items()}
    given = [_evidence(key, case, before.get(key), after.get(key), ceilings) for key, case in cases.items()]
    found = compare_run(given, [_rule(case) for case in cases.values()])
    return [
        Compared(case, key[1], key[2], one, _median(before.get(key)), _median(after.get(key)))
        for (key, case), one in zip(cases.items(), found, strict=True)
    ]


def sort_compared(found: Sequence[Compared]) -> list[Compared]:
    """Broken first, then by ratio, slowest first; what has no ratio last."""
    return sorted(found, key=lambda one: (one.word != "broken", -(one.found.ratio or 0.0), one.case.name))


def _trials(reader: Reader, run: RunInfo, device: str, *, across: bool) -> dict[_Key, Trial]:
    trials = reader.kept("trials", run, lambda: _read_trials(reader, run))
    if not device:
        return trials
    chosen = {key: one for key, one in trials.items() if key[2] == device}
    return {(*key[:2], ""): one for key, one in chosen.items()} if across else chosen


def _read_trials(reader: Reader, run: RunInfo) -> dict[_Key, Trial]:
    """What comparisons want of a run, read once for all of them: most of their time goes into reading."""
    judged = listing.list_judged(reader.engine, run.key, MOST)
    infos = reader.cases({one.case_key for one in judged})
    found: dict[tuple[int, str, str], list[Judged]] = {}
    for one in judged:
        found.setdefault((one.case_key, one.implementation, one.device), []).append(one)
    return {
        (infos[key].case_id, implementation, device): _trial(infos[key], blocks)
        for (key, implementation, device), blocks in found.items()
        if key in infos
    }


def _trial(case: CaseInfo, blocks: list[Judged]) -> Trial:
    if len(blocks) > 1:
        blocks = sorted(blocks, key=lambda one: one.block)
    times = tuple(one.median_ns for one in blocks if one.median_ns)
    return Trial(case, blocks[0].device, blocks[0].bytes, times, _rulers(blocks), _side(blocks))


def _evidence(
    key: _Key, case: CaseInfo, base: Trial | None, head: Trial | None, ceilings: Mapping[str, Ceilings]
) -> Evidence:
    subject = Subject(case.op, case.name, case.case_id, key[1], key[2])
    floor = _floor_ns(head, ceilings.get(head.device)) if head else None
    if base is None or head is None:
        return Evidence(subject, base.side if base else None, head.side if head else None, floor_ns=floor)
    pairs = tuple(zip(base.times, head.times, strict=False))
    rulers = tuple(zip(base.rulers, head.rulers, strict=False))
    return Evidence(subject, base.side, head.side, pairs, rulers, floor_ns=floor)


def _floor_ns(head: Trial, reached: Ceilings | None) -> float | None:
    """Least time by bandwidth, as the gate has it; none for a CPU, whose caches are warm: memory is no limit there."""
    if reached is None or not head.bytes or head.device == "cpu":
        return None
    fastest = max(reached.copy_gbps or 0.0, reached.write_gbps or 0.0)
    return head.bytes / fastest if fastest else None


def _rule(case: CaseInfo) -> Rule:
    gate = case.data.get("gate")
    threshold = gate.get("threshold") if isinstance(gate, Mapping) else None
    if not isinstance(threshold, int | float) or not 0 < threshold < 1:
        return USUAL
    return Rule(threshold=float(threshold), same_within=float(threshold))


def _median(trial: Trial | None) -> float | None:
    times = sorted(trial.times) if trial else []
    return times[len(times) // 2] if times else None


def _side(blocks: list[Judged]) -> Side:
    worst = next((one for one in blocks if one.status in _BAD), blocks[0])
    return _side_of(worst.status, worst.reason, blocks[0].peak, blocks[0].footprint)


@lru_cache(4096)
def _side_of(status: str, reason: str, peak: str | int | None, footprint: str | None) -> Side:
    """Made once for all results that have nothing else to say."""
    return Side(Status(status), metrics=_metrics(peak, footprint), reason=reason)


def _metrics(peak: str | int | None, text: str | None) -> Metrics:
    """What has no noise, of one block."""
    found = json.loads(text) if text else None
    footprint = found if isinstance(found, Mapping) else {}
    names = footprint.get("kernels")
    return Metrics(
        launches=_count(footprint.get("launches")),
        kernels=tuple(str(name) for name in names) if isinstance(names, list) else None,
        allocations=_count(footprint.get("allocations")),
        peak_bytes=None if peak is None else int(peak),
        registers=_count(footprint.get("registers")),
        spills=_count(footprint.get("spill_bytes")),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _rulers(blocks: list[Judged]) -> tuple[float, ...]:
    """Levels of the ruler of each block, none where a block has none."""
    read = [json.loads(one.ruler) for one in blocks if one.ruler]
    found = [(number(one, "copy_ns"), number(one, "arithmetic_ns")) for one in read]
    levels = tuple(sqrt(copy * arithmetic) for copy, arithmetic in found if copy and arithmetic)
    return levels if len(levels) == len(blocks) else ()


def device_choices(base: RunInfo, head: RunInfo) -> list[str]:
    """Devices of either run."""
    return sorted({*device_names(base), *device_names(head)})
