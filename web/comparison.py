"""Two stored runs side by side: evidence from their results, judged by `opgauge.harness.judge.compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log, sqrt
from typing import NamedTuple

from opgauge.harness.errors import NothingError
from opgauge.harness.judge.compare import compare, compare_run
from opgauge.harness.judge.verdict import Comparison, Evidence, Kind, Metrics, Rule, Side, Subject, Verdict
from opgauge.harness.result.result import Ceilings, Environment, Status
from opgauge.harness.store import listing, queries
from opgauge.harness.store.listing import Judged
from opgauge.harness.store.queries import CaseInfo, RunInfo
from opgauge.web.profile import number
from opgauge.web.reader import GRAVE, Reader, device_names

MOST = 5000
LEAST_COMMIT = 6
USUAL = Rule()
_BAD = frozenset(map(str, GRAVE))


class Compared(NamedTuple):
    """A case by one implementation, on both sides. word: verdict, or what there is instead of one."""

    case: CaseInfo
    implementation: str
    device: str
    word: str
    kind: Kind
    verdict: Verdict | None
    reason: str
    detail: str
    pairs: int
    ratio: float | None
    interval: tuple[float, float] | None
    detectable_change: float | None
    base_ns: float | None
    head_ns: float | None


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
    rule: Rule
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
    fastest = {name: _fastest(name, reached) for name, reached in reader.ceilings(head).items()}
    alike: dict[tuple[int, int, float], Comparison] = {}
    pairs = [_Pair(key, before.get(key), after.get(key)) for key in {**after, **before}]
    quick = [_compare_single(pair, fastest, alike) for pair in pairs]
    rest = [pair for pair, found in zip(pairs, quick, strict=True) if found is None]
    judged = compare_run([_evidence(pair, fastest) for pair in rest], [_rule(pair) for pair in rest])
    slow = iter([_compared(pair, found, found.ratio) for pair, found in zip(rest, judged, strict=True)])
    return [found or next(slow) for found in quick]


def sort_compared(found: Sequence[Compared]) -> list[Compared]:
    """Broken first, then by ratio, slowest first; what has no ratio last."""
    return sorted(found, key=lambda one: (one.word != "broken", -(one.ratio or 0.0), one.case.name))


class _Pair(NamedTuple):
    """A case by one implementation on both sides, before it is judged."""

    key: _Key
    base: Trial | None
    head: Trial | None


def _compare_single(
    pair: _Pair, fastest: Mapping[str, float], alike: dict[tuple[int, int, float], Comparison]
) -> Compared | None:
    """What is said of one block each, which proves nothing; None for all else.

    It depends on what became of the sides, not on the times: it is judged once for all pairs that are `alike`.
    """
    _, base, head = pair
    if base is None or head is None or len(base.times) != 1 or len(head.times) != 1:
        return None
    before, after = base.times[0], head.times[0]
    rule = base.rule
    floor = _floor_ns(head, fastest)
    too_fast = floor is not None and after < floor / rule.max_ceiling_share
    if too_fast or not (0 < before < inf and 0 < after < inf):
        return None
    sides = (id(base.side), id(head.side), rule.threshold)
    found = alike.get(sides)
    if found is None:
        found = alike[sides] = compare(_evidence(pair, fastest), rule)
    return _compared(pair, found, None if found.ratio is None else exp(log(after / before)))


def _compared(pair: _Pair, found: Comparison, ratio: float | None) -> Compared:
    (_, implementation, device), base, head = pair
    return Compared(
        _case(pair),
        implementation,
        device,
        str(found.verdict or found.kind),
        found.kind,
        found.verdict,
        found.reason,
        found.detail,
        found.pairs,
        ratio,
        found.interval,
        found.detectable_change,
        _median(base),
        _median(head),
    )


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
    rules = {key: _rule_for(info) for key, info in infos.items()}
    found: dict[tuple[int, str, str], list[Judged]] = {}
    for one in judged:
        found.setdefault((one.case_key, one.implementation, one.device), []).append(one)
    return {
        (infos[key].case_id, implementation, device): _trial(infos[key], rules[key], blocks)
        for (key, implementation, device), blocks in found.items()
        if key in infos
    }


def _trial(case: CaseInfo, rule: Rule, blocks: list[Judged]) -> Trial:
    first = blocks[0]
    if len(blocks) == 1:
        times: tuple[float, ...] = (first.median_ns,) if first.median_ns else ()
        side = _side_of(first.status, first.reason, first.peak, first.footprint)
        return Trial(case, rule, first.device, first.bytes, times, _rulers(blocks) if first.ruler else (), side)
    blocks = sorted(blocks, key=lambda one: one.block)
    times = tuple([one.median_ns for one in blocks if one.median_ns])
    return Trial(case, rule, blocks[0].device, blocks[0].bytes, times, _rulers(blocks), _side(blocks))


def _evidence(pair: _Pair, fastest: Mapping[str, float]) -> Evidence:
    case, base, head = _case(pair), pair.base, pair.head
    subject = Subject(case.op, case.name, case.case_id, pair.key[1], pair.key[2])
    floor = _floor_ns(head, fastest) if head else None
    if base is None or head is None:
        return Evidence(subject, base.side if base else None, head.side if head else None, floor_ns=floor)
    pairs = tuple(zip(base.times, head.times, strict=False))
    rulers = tuple(zip(base.rulers, head.rulers, strict=False))
    return Evidence(subject, base.side, head.side, pairs, rulers, floor_ns=floor)


def _case(pair: _Pair) -> CaseInfo:
    return _known(pair).case


def _rule(pair: _Pair) -> Rule:
    return _known(pair).rule


def _known(pair: _Pair) -> Trial:
    """The side that there is, the base where there are both."""
    known = pair.base or pair.head
    if known is None:
        msg = f"{pair.key} is on neither side"
        raise NothingError(msg)
    return known


def _fastest(device: str, reached: Ceilings) -> float:
    """Bytes per nanosecond; 0 for a CPU, whose caches are warm: memory is no limit there, as the gate has it."""
    return 0.0 if device == "cpu" else max(reached.copy_gbps or 0.0, reached.write_gbps or 0.0)


def _floor_ns(head: Trial, fastest: Mapping[str, float]) -> float | None:
    """Least time by bandwidth; None where it was not measured."""
    rate = fastest.get(head.device)
    return head.bytes / rate if rate and head.bytes else None


def _rule_for(case: CaseInfo) -> Rule:
    gate = case.data.get("gate")
    threshold = gate.get("threshold") if isinstance(gate, Mapping) else None
    if not isinstance(threshold, int | float) or not 0 < threshold < 1:
        return USUAL
    return _rule_of(float(threshold))


@lru_cache(4096)
def _rule_of(threshold: float) -> Rule:
    return Rule(threshold=threshold, same_within=threshold)


def _median(trial: Trial | None) -> float | None:
    times = trial.times if trial else ()
    if len(times) == 1:
        return times[0]
    return sorted(times)[len(times) // 2] if times else None


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
    if not read:
        return ()
    found = [(number(one, "copy_ns"), number(one, "arithmetic_ns")) for one in read]
    levels = tuple(sqrt(copy * arithmetic) for copy, arithmetic in found if copy and arithmetic)
    return levels if len(levels) == len(blocks) else ()


def device_choices(base: RunInfo, head: RunInfo) -> list[str]:
    """Devices of either run."""
    return sorted({*device_names(base), *device_names(head)})
