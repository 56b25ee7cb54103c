"""Two stored runs side by side: evidence from their results, judged by `harness.compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from harness.compare import compare_run
from harness.errors import NothingError
from harness.result import Ceilings, Environment, Status
from harness.store import listing, queries
from harness.store.queries import CaseInfo, Detail, Point, RunInfo
from harness.verdict import Comparison, Evidence, Metrics, Rule, Side, Subject
from web.profile import number
from web.reader import GRAVE, Reader, device_names
from web.rows import floor_ns

MOST = 5000
LEAST_COMMIT = 6


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


@dataclass(frozen=True, slots=True)
class _Trial:
    """A case by one implementation on one device of a run: its blocks' medians and rulers, what became of it."""

    case: CaseInfo
    first: Point
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
    sides = [_trials(reader, run, device, across=across) for run, device in ((base, base_device), (head, head_device))]
    by_id = {one.case.case_id: one.case for side in sides for one in side.values()}
    keys = list(dict.fromkeys([*sides[1], *sides[0]]))
    ceilings = reader.ceilings(head)
    given = [_evidence(key, by_id[key[0]], sides[0].get(key), sides[1].get(key), ceilings) for key in keys]
    found = compare_run(given, [_rule(by_id[key[0]]) for key in keys])
    return [
        Compared(by_id[case_id], implementation, device, one, _median(sides[0].get(key)), _median(sides[1].get(key)))
        for key, one in zip(keys, found, strict=True)
        for case_id, implementation, device in [key]
    ]


def sort_compared(found: Sequence[Compared]) -> list[Compared]:
    """Broken first, then by ratio, slowest first; what has no ratio last."""
    return sorted(found, key=lambda one: (one.word != "broken", -(one.found.ratio or 0.0), one.case.name))


def _trials(reader: Reader, run: RunInfo, device: str, *, across: bool) -> dict[_Key, _Trial]:
    trials = reader.cache.get(("trials", run.key), lambda: _read_trials(reader, run))
    chosen = {key: one for key, one in trials.items() if device in {"", key[2]}}
    return {(*key[:2], ""): one for key, one in chosen.items()} if across else chosen


def _read_trials(reader: Reader, run: RunInfo) -> dict[_Key, _Trial]:
    """What comparisons want of a run, read once for all of them: most of their time goes into reading."""
    details = listing.list_judged(reader.engine, run.key, MOST)
    infos = reader.cases({one.point.case_key for one in details})
    found: dict[_Key, list[Detail]] = {}
    for one in details:
        info = infos.get(one.point.case_key)
        if info is not None:
            found.setdefault((info.case_id, one.point.implementation, one.point.device), []).append(one)
    return {key: _trial(infos[blocks[0].point.case_key], blocks) for key, blocks in found.items()}


def _trial(case: CaseInfo, blocks: list[Detail]) -> _Trial:
    ordered = sorted(blocks, key=lambda one: one.point.block)
    times = tuple(one.point.median_ns for one in ordered if one.point.median_ns)
    return _Trial(case, blocks[0].point, times, tuple(_rulers(ordered)), _side(blocks))


def _evidence(
    key: _Key, case: CaseInfo, base: _Trial | None, head: _Trial | None, ceilings: Mapping[str, Ceilings]
) -> Evidence:
    subject = Subject(case.op, case.name, case.case_id, key[1], key[2])
    floor = None
    if head and head.first.backend != "cpu":  # a CPU's caches are warm: memory is no limit
        point = head.first
        floor = floor_ns(point.bytes, point.flops, case.dtype, ceilings.get(point.device))
    if base is None or head is None:
        return Evidence(subject, base.side if base else None, head.side if head else None, floor_ns=floor)
    pairs = tuple(zip(base.times, head.times, strict=False))
    rulers = tuple(zip(base.rulers, head.rulers, strict=False))
    return Evidence(subject, base.side, head.side, pairs, rulers, floor_ns=floor)


def _rule(case: CaseInfo) -> Rule:
    gate = case.data.get("gate")
    threshold = gate.get("threshold") if isinstance(gate, Mapping) else None
    if not isinstance(threshold, int | float) or not 0 < threshold < 1:
        return Rule()
    return Rule(threshold=float(threshold), same_within=float(threshold))


def _median(trial: _Trial | None) -> float | None:
    times = sorted(trial.times) if trial else []
    return times[len(times) // 2] if times else None


def _side(blocks: list[Detail]) -> Side:
    worst = next((one for one in blocks if one.point.status in GRAVE), blocks[0])
    return Side(Status(worst.point.status), metrics=_metrics(blocks[0]), reason=worst.reason)


def _metrics(one: Detail) -> Metrics:
    """What has no noise, of one block."""
    measurement = one.data.get("measurement")
    if not isinstance(measurement, Mapping):
        return Metrics()
    footprint, peak = measurement.get("footprint"), _count(measurement.get("peak_bytes"))
    if not isinstance(footprint, Mapping):
        return Metrics(peak_bytes=peak)
    names = footprint.get("kernels")
    return Metrics(
        launches=_count(footprint.get("launches")),
        kernels=tuple(str(name) for name in names) if isinstance(names, list) else None,
        allocations=_count(footprint.get("allocations")),
        peak_bytes=peak,
        registers=_count(footprint.get("registers")),
        spills=_count(footprint.get("spill_bytes")),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _rulers(ordered: list[Detail]) -> list[float]:
    """Levels of the ruler of each block, none where a block has none."""
    found = [
        (number(one.data.get("ruler"), "copy_ns"), number(one.data.get("ruler"), "arithmetic_ns")) for one in ordered
    ]
    levels = [sqrt(copy * arithmetic) for copy, arithmetic in found if copy and arithmetic]
    return levels if len(levels) == len(ordered) else []


def device_choices(base: RunInfo, head: RunInfo) -> list[str]:
    """Devices of either run."""
    return sorted({*device_names(base), *device_names(head)})
