"""Two stored runs side by side, judged by `opgauge.harness.judge.compare` from the pairs of their processes.

Ordinary runs have one process each, which is too few pairs for that: they are judged by what the series varies between
runs, so that a large change is named at once. Small ones need `opgauge gate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import NamedTuple

from opgauge.harness.errors import NothingError
from opgauge.harness.judge.compare import COUNTED, compare, compare_run
from opgauge.harness.judge.verdict import Comparison, Evidence, Kind, Rule, Subject, Verdict
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Environment
from opgauge.harness.result.summary import impossible_below
from opgauge.harness.store.queries import CaseInfo
from opgauge.harness.store.run_queries import RunInfo
from opgauge.web.compared_trial import USUAL, ComparedTrial, TrialKey, read_trials
from opgauge.web.devices import device_names
from opgauge.web.known_runs import find_runs
from opgauge.web.reader import Reader
from opgauge.web.scope import reader_of_run
from opgauge.web.steady import series_half_widths

LEAST_COMMIT = 6
"""Fewest characters that name a commit."""
_SLOWER, _FASTER, _UNDECIDED = map(str, (Verdict.SLOWER, Verdict.FASTER, Verdict.UNDECIDED))
_RANKS = {"broken": 0, "slower": 1, "faster": 2}
"""Order of the verdicts that are listed before all others."""


class Compared(NamedTuple):
    """A case by one implementation, on both sides. word: the verdict, or the kind if there is none.

    half_width: of the interval by which the variation of the series judged it, as a log ratio; None if its pairs did.
    note, span: detail and interval from its pairs.
    """

    case: CaseInfo
    implementation: str
    device: str
    word: str
    kind: Kind
    verdict: Verdict | None
    reason: str
    pairs: int
    ratio: float | None
    detectable_change: float | None
    base_ns: float | None
    head_ns: float | None
    model: str = ""
    half_width: float | None = None
    note: str = ""
    span: tuple[float, float] | None = None

    @property
    def is_by_count(self) -> bool:
        """Whether a count decided, such as launches or peak memory, and not the time."""
        return self.verdict is Verdict.SLOWER and self.reason in COUNTED

    @property
    def detail(self) -> str:
        """Explanation of the verdict; made for the rows that are shown only."""
        if self.half_width is None:
            return self.note
        return f"by chance two of its runs differ by up to {100 * (exp(self.half_width) - 1):.1f} %"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the ratio."""
        if self.half_width is None:
            return self.span
        change = log(self.ratio or 1.0)
        return exp(change - self.half_width), exp(change + self.half_width)


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
    by_id = find_runs(reader, wanted) if wanted else []
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


class TrialPair(NamedTuple):
    """A case by one implementation on both sides, to be judged; one side at least has it."""

    key: TrialKey
    base: ComparedTrial | None
    head: ComparedTrial | None

    @property
    def known(self) -> ComparedTrial:
        """The only side, or the base if there are both."""
        known = self.base or self.head
        if known is None:
            msg = f"{self.key} is on neither side"
            raise NothingError(msg)
        return known


class RunComparison:
    """Every trial of either run, judged: columns, of which pages show a few rows.

    words: the verdict of each, or the kind if there is none. ratios: None without a time on both sides.
    """

    def __init__(self, reader: Reader, base: RunInfo, head: RunInfo, pairs: Sequence[TrialPair]) -> None:
        self.pairs = pairs
        judged = _judge(reader, head, pairs)
        self.ratios = [ratio for _, ratio in judged]
        self.words = [str(found.verdict or found.kind) for found, _ in judged]
        self._found = [found for found, _ in judged]
        slugs = {name: reader.device(head, name).slug for name in device_names(head)}
        open_ = [place for place, (found, ratio) in enumerate(judged) if _needs_series(found, ratio)]
        series = [(case_id, made, slugs.get(device, "")) for case_id, made, device in (pairs[one].key for one in open_)]
        widths = series_half_widths(reader_of_run(reader, head), series, (base.key, head.key))
        self._halves = dict(zip(open_, widths, strict=True))
        for place, half in self._halves.items():
            change = log(self.ratios[place] or 1.0)
            self.words[place] = _SLOWER if change > half else _FASTER if change < -half else _UNDECIDED
        names = device_choices(base, head)
        self._models = {name: head.environment.model(name) or base.environment.model(name) for name in names}

    def __getitem__(self, place: int) -> Compared:
        """One comparison; judged by the spread of its series where that has a half width."""
        pair, found, half = self.pairs[place], self._found[place], self._halves.get(place)
        (_, implementation, device), base, head = pair
        verdict = found.verdict if half is None else Verdict(self.words[place])
        return Compared(
            pair.known.case,
            implementation,
            device,
            self.words[place],
            found.kind,
            verdict,
            str(found.reason) if half is None or verdict is Verdict.UNDECIDED else "beyond the variation between runs",
            found.pairs,
            self.ratios[place],
            found.detectable_change,
            base.median_ns if base else None,
            head.median_ns if head else None,
            self._models.get(device, ""),
            half,
            found.detail,
            found.interval,
        )


def judge_runs(
    reader: Reader, base: RunInfo, head: RunInfo, *, base_device: str = "", head_device: str = ""
) -> RunComparison:
    """Compare every trial of either run; with devices, the trials of the one device with those of the other."""
    across = bool(base_device and head_device and base_device != head_device)
    before, after = (
        _trials(reader, run, device, across=across) for run, device in ((base, base_device), (head, head_device))
    )
    return RunComparison(
        reader, base, head, [TrialPair(key, before.get(key), after.get(key)) for key in {**after, **before}]
    )


def compare_runs(
    reader: Reader, base: RunInfo, head: RunInfo, *, base_device: str = "", head_device: str = ""
) -> list[Compared]:
    """The comparisons of `judge_runs`, each made."""
    found = judge_runs(reader, base, head, base_device=base_device, head_device=head_device)
    return [found[place] for place in range(len(found.pairs))]


def _judge(reader: Reader, head: RunInfo, pairs: Sequence[TrialPair]) -> list[tuple[Comparison, float | None]]:
    """The comparison of each pair by itself, and its ratio."""
    peaks = reader.ceilings(head)
    floors: dict[tuple[object, ...], float | None] = reader.cache.get(("floors", head.key), dict)
    alike: dict[tuple[int, int, float], Comparison] = {}
    quick = [_compare_single(pair, peaks, floors, alike) for pair in pairs]
    rest = [pair for pair, found in zip(pairs, quick, strict=True) if found is None]
    evidence = [_evidence(pair, _cached_floor_ns(pair.head, peaks, floors)) for pair in rest]
    slow = iter([(found, found.ratio) for found in compare_run(evidence, [_rule(pair) for pair in rest])])
    return [found or next(slow) for found in quick]


def _needs_series(found: Comparison, ratio: float | None) -> bool:
    """Whether its pairs were too few to say anything."""
    return found.verdict is Verdict.UNDECIDED and found.pairs < USUAL.alarm_pairs and ratio is not None


def sort_compared(found: Sequence[Compared]) -> list[Compared]:
    """By verdict: broken, slower, faster, then all others; slowest first, those without a ratio last."""
    return sorted(found, key=lambda one: (_RANKS.get(one.word, len(_RANKS)), -(one.ratio or 0.0), one.case.name))


def _compare_single(
    pair: TrialPair,
    peaks: Mapping[str, Ceilings],
    floors: dict[tuple[object, ...], float | None],
    alike: dict[tuple[int, int, float], Comparison],
) -> tuple[Comparison, float | None] | None:
    """The comparison of one process each, or of a trial that one side lacks, and its ratio; None for all others.

    It depends on the statuses, not on the times, so it is computed once for all pairs that are `alike`.
    """
    _, base, head = pair
    change = None
    if base is not None and head is not None:
        if len(base.times) != 1 or len(head.times) != 1:
            return None
        before, after = base.times[0], head.times[0]
        floor_ns = _cached_floor_ns(head, peaks, floors)
        too_fast = floor_ns is not None and after < floor_ns / base.rule.max_ceiling_share
        if too_fast or not (0 < before < inf and 0 < after < inf):
            return None
        change = after / before
    rule = (base or pair.known).rule
    sides = (id(base.side) if base else 0, id(head.side) if head else 0, rule.threshold)
    found = alike.get(sides)
    if found is None:
        # the floor was looked at above, and nothing else depends on the times
        found = alike[sides] = compare(_evidence(pair, None), rule)
    return found, None if change is None or found.ratio is None else exp(log(change))


def _trials(reader: Reader, run: RunInfo, device: str, *, across: bool) -> dict[TrialKey, ComparedTrial]:
    trials = reader.cached_for_run("trials", run, lambda: read_trials(reader, run))
    if not device:
        return trials
    chosen = {key: one for key, one in trials.items() if key[2] == device}
    return {(*key[:2], ""): one for key, one in chosen.items()} if across else chosen


def _evidence(pair: TrialPair, floor_ns: float | None) -> Evidence:
    case, base, head = pair.known.case, pair.base, pair.head
    subject = Subject(case.op, case.name, case.case_id, pair.key[1], pair.key[2])
    if base is None or head is None:
        return Evidence(subject, base.side if base else None, head.side if head else None, floor_ns=floor_ns)
    pairs = tuple(zip(base.times, head.times, strict=False))
    calibrations = tuple(zip(base.calibrations, head.calibrations, strict=False))
    return Evidence(subject, base.side, head.side, pairs, calibrations, floor_ns=floor_ns)


def _rule(pair: TrialPair) -> Rule:
    return pair.known.rule


def _cached_floor_ns(
    head: ComparedTrial | None, peaks: Mapping[str, Ceilings], known: dict[tuple[object, ...], float | None]
) -> float | None:
    """The floor of a trial, computed once for all of the same work: the implementations of a case have it in common."""
    if head is None:
        return None
    work = (head.device, head.bytes, head.flops, head.case.dtype, head.written_share)
    if work not in known:
        known[work] = _floor_ns(head, peaks)
    return known[work]


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


def device_choices(base: RunInfo, head: RunInfo) -> list[str]:
    """Devices of either run."""
    return sorted({*device_names(base), *device_names(head)})
