"""Two stored runs side by side, judged by `opgauge.harness.judge.compare` from the pairs of their processes.

Ordinary runs have one process each, which is too few pairs for that: they are judged by what the series varies between
runs, so that a large change is named at once. Small ones need `opgauge gate`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, inf, log
from typing import NamedTuple, Self

from opgauge.harness.errors import NothingError
from opgauge.harness.judge.compare import compare, compare_run
from opgauge.harness.judge.departure import WINDOW, SeriesSpread, spread_of
from opgauge.harness.judge.verdict import Comparison, Evidence, Kind, Rule, Subject, Verdict
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment
from opgauge.harness.result.summary import impossible_below
from opgauge.harness.store import run_queries
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.compared_trial import USUAL, ComparedTrial, TrialKey, read_trials
from opgauge.web.devices import device_names
from opgauge.web.level import Level, SeriesKey
from opgauge.web.reader import Reader
from opgauge.web.regression import change_points, timed

LEAST_COMMIT = 6
"""Fewest characters that name a commit."""


class Compared(NamedTuple):
    """A case by one implementation, on both sides. word: the verdict, or the kind if there is none."""

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
    model: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry of the environment that differs; with `hard` ones a change of time need not be due to the code."""

    key: str
    base: str
    head: str
    hard: bool


def resolve(reader: Reader, text: str) -> RunInfo:
    """The run with this beginning of its id or commit, or the newest of this branch. Raises NothingError."""
    wanted = text.strip()
    by_id = run_queries.find_runs(reader.engine, wanted, project=reader.project) if wanted else []
    if len(by_id) == 1:
        return by_id[0]
    if len(by_id) > 1:
        msg = f"several runs begin with {wanted}: give more of it"
        raise NothingError(msg)
    found = [run for run in reader.runs() if len(wanted) >= LEAST_COMMIT and run.commit.startswith(wanted)]
    found = found or [run for run in reader.runs() if wanted and run.branch == wanted]
    if found:
        # a modified tree has its commit's name, but is not it
        return max(found, key=lambda run: (not run.dirty, reader.history().order(run)))
    msg = f"no run, commit or branch begins with {wanted!r}; the runs page lists what there is"
    raise NothingError(msg)


def differences(base: Environment, head: Environment) -> list[Difference]:
    """Entries that differ between two environments, the hard ones first."""
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
    """Compare every trial of either run; with devices, the trials of the one device with those of the other."""
    across = bool(base_device and head_device and base_device != head_device)
    before, after = (
        _trials(reader, run, device, across=across) for run, device in ((base, base_device), (head, head_device))
    )
    peaks = reader.ceilings(head)
    models = {name: head.environment.model(name) or base.environment.model(name) for name in device_choices(base, head)}
    alike: dict[tuple[int, int, float], Comparison] = {}
    pairs = [_Pair(key, before.get(key), after.get(key)) for key in {**after, **before}]
    quick = [_compare_single(pair, peaks, alike) for pair in pairs]
    rest = [pair for pair, found in zip(pairs, quick, strict=True) if found is None]
    judged = compare_run([_evidence(pair, peaks) for pair in rest], [_rule(pair) for pair in rest])
    slow = iter([_compared(pair, found, found.ratio) for pair, found in zip(rest, judged, strict=True)])
    found = [one._replace(model=models.get(one.device, "")) for one in (one or next(slow) for one in quick)]
    open_ = [place for place, one in enumerate(found) if _needs_series(one)]
    for place, spread in zip(open_, _spreads(reader, base, head, [found[one] for one in open_]), strict=True):
        found[place] = _with_series(found[place], spread)
    return found


def _spreads(reader: Reader, base: RunInfo, head: RunInfo, compared: Sequence[Compared]) -> list[SeriesSpread]:
    """Spreads between the other runs of series on devices of `head`; the default where there is no series.

    The two runs are left out: the change between them is in question.
    """
    series = reader.recent().series
    known: dict[SeriesKey, _SteadyRuns] = reader.cache.get("steady runs", dict)
    whole: dict[SeriesKey, SeriesSpread] = reader.cache.get("spreads of steady runs", dict)
    left_out = {base.key, head.key}
    slugs = {name: reader.device(head, name).slug for name in device_names(head)}
    found = []
    for one in compared:
        place = (one.case.case_id, one.implementation, slugs.get(one.device, ""))
        if place not in known:
            known[place] = _SteadyRuns.of(series.get(place, ()))
        steady = known[place]
        if steady.has_any(left_out):
            found.append(spread_of(steady.times(left_out)))
            continue
        if place not in whole:
            whole[place] = spread_of(steady.times(()))
        found.append(whole[place])
    return found


@dataclass(frozen=True, slots=True)
class _SteadyRuns:
    """Runs of a series between its change points, by number, with their times."""

    parts: Sequence[dict[int, float]]

    @classmethod
    def of(cls, levels: Sequence[Level]) -> Self:
        """The parts of a series."""
        steps = {id(point[1]) for point in change_points(levels)}
        parts: list[dict[int, float]] = [{}]
        for level, time in timed(levels):
            if id(level) in steps:
                parts.append({})
            parts[-1][level.run.key] = time
        return cls(parts)

    def has_any(self, runs: Collection[int]) -> bool:
        """Whether some of the runs are of this series."""
        return any(run in part for part in self.parts for run in runs)

    def times(self, left_out: Collection[int]) -> Sequence[float]:
        """Latest times of the longest part without the runs `left_out`: its steps are no noise.

        Change points are those of the whole series: they are cached, and finding them takes longer than all else.
        """
        longest = max(self.parts, key=lambda part: len(part) - sum(run in part for run in left_out))
        latest = islice(reversed(longest), WINDOW + len(left_out))
        return [longest[run] for run in latest if run not in left_out][WINDOW - 1 :: -1]


def _needs_series(one: Compared) -> bool:
    """Whether its pairs were too few to say anything."""
    return one.verdict is Verdict.UNDECIDED and one.pairs < USUAL.alarm_pairs and one.ratio is not None


def _with_series(one: Compared, spread: SeriesSpread) -> Compared:
    """The comparison judged by the spread of its series."""
    half, change = spread.half_width(), log(one.ratio or 1.0)
    interval = (exp(change - half), exp(change + half))
    found = Verdict.SLOWER if change > half else Verdict.FASTER if change < -half else Verdict.UNDECIDED
    reason = "beyond the variation between runs" if found is not Verdict.UNDECIDED else one.reason
    detail = f"runs of this series vary by {100 * (exp(half) - 1):.1f} %"
    return one._replace(word=str(found), verdict=found, reason=reason, detail=detail, interval=interval)


def sort_compared(found: Sequence[Compared]) -> list[Compared]:
    """Broken first, then by ratio, slowest first; comparisons without a ratio last."""
    return sorted(found, key=lambda one: (one.word != "broken", -(one.ratio or 0.0), one.case.name))


class _Pair(NamedTuple):
    """A case by one implementation on both sides, to be judged."""

    key: TrialKey
    base: ComparedTrial | None
    head: ComparedTrial | None


def _compare_single(
    pair: _Pair, peaks: Mapping[str, Ceilings], alike: dict[tuple[int, int, float], Comparison]
) -> Compared | None:
    """The comparison of one process each; None for all others.

    It depends on the statuses, not on the times, so it is computed once for all pairs that are `alike`.
    """
    _, base, head = pair
    if base is None or head is None or len(base.times) != 1 or len(head.times) != 1:
        return None
    before, after = base.times[0], head.times[0]
    rule = base.rule
    floor = _floor_ns(head, peaks)
    too_fast = floor is not None and after < floor / rule.max_ceiling_share
    if too_fast or not (0 < before < inf and 0 < after < inf):
        return None
    sides = (id(base.side), id(head.side), rule.threshold)
    found = alike.get(sides)
    if found is None:
        found = alike[sides] = compare(_evidence(pair, peaks), rule)
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


def _trials(reader: Reader, run: RunInfo, device: str, *, across: bool) -> dict[TrialKey, ComparedTrial]:
    trials = reader.cached_for_run("trials", run, lambda: read_trials(reader, run))
    if not device:
        return trials
    chosen = {key: one for key, one in trials.items() if key[2] == device}
    return {(*key[:2], ""): one for key, one in chosen.items()} if across else chosen


def _evidence(pair: _Pair, peaks: Mapping[str, Ceilings]) -> Evidence:
    case, base, head = _case(pair), pair.base, pair.head
    subject = Subject(case.op, case.name, case.case_id, pair.key[1], pair.key[2])
    floor = _floor_ns(head, peaks) if head else None
    if base is None or head is None:
        return Evidence(subject, base.side if base else None, head.side if head else None, floor_ns=floor)
    pairs = tuple(zip(base.times, head.times, strict=False))
    calibrations = tuple(zip(base.calibrations, head.calibrations, strict=False))
    return Evidence(subject, base.side, head.side, pairs, calibrations, floor_ns=floor)


def _case(pair: _Pair) -> CaseInfo:
    return _known(pair).case


def _rule(pair: _Pair) -> Rule:
    return _known(pair).rule


def _known(pair: _Pair) -> ComparedTrial:
    """The only side, or the base if there are both."""
    known = pair.base or pair.head
    if known is None:
        msg = f"{pair.key} is on neither side"
        raise NothingError(msg)
    return known


def _floor_ns(head: ComparedTrial, peaks: Mapping[str, Ceilings]) -> float | None:
    """Least time that the device allows, as `run` and `gate` judge it; None if its peaks are unknown.

    Without copies of several sizes a CPU's caches are unknown, and so is how fast they are.
    """
    reached, is_cpu = peaks.get(head.device), head.device.startswith("cpu")
    if reached is None or (is_cpu and not reached.sizes):
        return None
    extra = {} if head.written_share is None else {"written_share": head.written_share}
    bound = impossible_below(reached, head.bytes, head.flops, head.case.dtype, extra)
    if bound is not None and bound.peak.startswith("matrix") and head.case.dtype == "float32" and not is_cpu:
        # a stored run does not say which kernels round to TF32, which is several times as fast
        return None
    return None if bound is None else bound.time_ns


def _median(trial: ComparedTrial | None) -> float | None:
    times = trial.times if trial else ()
    if len(times) == 1:
        return times[0]
    return sorted(times)[len(times) // 2] if times else None


def device_choices(base: RunInfo, head: RunInfo) -> list[str]:
    """Devices of either run."""
    return sorted({*device_names(base), *device_names(head)})
