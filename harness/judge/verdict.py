"""Vocabulary of a comparison: its input (`Evidence`, `Rule`) and its verdict (`Comparison`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from opgauge.harness.result.result import Check, Status

Pair = tuple[float, float]
"""Medians of two neighbouring processes, in nanoseconds: side A (base), side B (head)."""


class Verdict(StrEnum):
    """Verdict on a case from A to B."""

    FASTER = "faster"
    SAME = "same"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    BROKEN = "broken"


class Kind(StrEnum):
    """Whether both sides could be compared; all kinds but `compared` have no verdict and do not pass."""

    COMPARED = "compared"
    NEW = "new"
    REMOVED = "removed"
    FIXED = "fixed"
    UNSUPPORTED = "unsupported"
    UNMEASURED = "unmeasured"
    SKIPPED = "skipped"


class Reason(StrEnum):
    """Reason of a verdict, in words that end the sentence "slower: …"."""

    WITHIN = "the interval lies within the threshold"
    BEYOND = "the interval lies beyond the threshold"
    TOO_WIDE = "the interval is wider than the threshold"
    BORDERLINE = "the interval crosses the threshold"
    BIMODAL = "block medians have two modes"
    TOO_FEW = "too few pairs"
    UNCONFIRMED = "too few pairs for an alarm"
    HOST_MOVED = "the calibration workload moved between the sides: the host changed"
    CORES_BUSY = "other processes used the CPUs"
    THREADS = "slower with all threads"
    LAUNCHES = "more kernel launches"
    KERNELS = "other kernels"
    ALLOCATIONS = "more allocations"
    PEAK_MEMORY = "more peak memory"
    REGISTERS = "more registers"
    SPILLS = "more register spills"
    INSTRUCTIONS = "more instructions"
    WRONG = "wrong result"
    ERROR = "it failed"
    TIMEOUT = "it timed out"
    OUT_OF_MEMORY = "out of memory"
    GONE = "supported before, unsupported now"
    IMPLAUSIBLE = "faster than the device allows"
    NO_BASE = "there is no base to compare with"
    NO_HEAD = "it is only in the base"
    BASE_FAILED = "the base failed, the head does not"
    UNSUPPORTED = "unsupported"
    NO_DATA = "nothing was measured"
    UNCHANGED = "its code did not change, and that was trusted"


EXTENDABLE = frozenset(
    {
        Reason.TOO_WIDE,
        Reason.BORDERLINE,
        Reason.BIMODAL,
        Reason.TOO_FEW,
        Reason.UNCONFIRMED,
        Reason.HOST_MOVED,
        Reason.CORES_BUSY,
    }
)
"""Reasons of `undecided` that more pairs may resolve."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A compared case: its op, name and id, by one implementation on one device."""

    op: str
    case: str
    case_id: str
    implementation: str
    device: str

    @property
    def path(self) -> str:
        """The text `op/case` that patterns match."""
        return f"{self.op}/{self.case}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Case id, implementation and device: the same through changes of names."""
        return self.case_id, self.implementation, self.device

    def __str__(self) -> str:
        return f"{self.path} {self.implementation} on {self.device}"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one call that have no noise; None if unknown.

    launches: kernel launches. kernels: names in order. allocations: by the kernel itself. peak_bytes: device memory
    beyond inputs and outputs. registers: most per thread. spills: bytes spilled per thread, over all kernels.
    instructions: of a call on the CPU with one thread.
    """

    launches: int | None = None
    kernels: tuple[str, ...] | None = None
    allocations: int | None = None
    peak_bytes: int | None = None
    registers: int | None = None
    spills: int | None = None
    instructions: int | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """Outcome of the case on one side, over its processes: the worst status and the worst check.

    ceiling_share: the ceiling's least time over the measured time; None if caches make it meaningless.
    """

    status: Status = Status.OK
    check: Check | None = None
    metrics: Metrics = Metrics()
    ceiling_share: float | None = None
    reason: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it ran and its results are those of the reference."""
        return self.status is Status.OK and (self.check is None or self.check.ok)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All measurements of a case. A side is None if the case is not in that tree.

    pairs: process medians; values that are not positive and finite count as not measured. calibration: times of the
    calibration workload, paired alike. noise_floor: change below which the series is known to vary (0.02 is 2 %).
    floor_ns: the ceiling's least time; None if caches make it meaningless. disturbed: excluded pairs, because other
    processes used the CPUs. slower_with_threads: whether a coarse run with all threads was slower by a factor.
    crowded: whether other processes used the CPUs during it.
    """

    subject: Subject
    base: Side | None
    head: Side | None
    pairs: tuple[Pair, ...] = ()
    calibration: tuple[Pair, ...] = ()
    noise_floor: float = 0.0
    floor_ns: float | None = None
    disturbed: int = 0
    slower_with_threads: bool = False
    crowded: bool = False


DEFAULT_EXACT = ("launches", "allocations", "peak_bytes", "spills", "instructions")
"""Metrics of which more is slower, by default."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits of a verdict.

    threshold: smallest change that is slower or faster (0.01 is 1 %). same_within: `same` claims that the change is
    smaller than this. alarm_pairs: least pairs of an alarm: of processes with two modes, four pairs agree by chance
    once in a few hundred cases, and an alarm that is allowed at one look only is not raised by looking often.
    exact: metrics of which more (for `kernels`: other) is slower, unless the time is proven faster.
    max_ceiling_share: share of the ceiling above which a time is impossible; the ceiling is a copy through memory,
    which writes that stay in a cache can exceed, but not by more.
    """

    threshold: float = 0.01
    same_within: float = 0.05
    alarm_pairs: int = 10
    exact: tuple[str, ...] = DEFAULT_EXACT
    max_ceiling_share: float = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of a metric without noise; `worse` if it grew, or the kernels are others."""

    metric: str
    before: int | tuple[str, ...]
    after: int | tuple[str, ...]
    worse: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Verdict on one case.

    verdict: None unless both sides were measured; see `kind`. ratio: median over pairs of time B over time A.
    interval: its 99 % interval. detectable_change: smallest slowdown that ten pairs with this noise detect in 9 of
    10 runs. p_slower, p_faster: of a change beyond the threshold. left_out: pairs excluded from the interval as
    outliers. host_moved: the calibration workload moved. base_modes_ns, head_modes_ns: centres of the modes of the
    process medians; two: bimodal. same_within: the rule's margin of `same`; None where times were not compared.
    """

    subject: Subject
    kind: Kind
    verdict: Verdict | None
    reason: Reason
    detail: str = ""
    pairs: int = 0
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    detectable_change: float | None = None
    p_slower: float | None = None
    p_faster: float | None = None
    left_out: int = 0
    host_moved: bool = False
    base_modes_ns: tuple[float, ...] = ()
    head_modes_ns: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()
    same_within: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the head was run and is valid, so that it may count towards a pass."""
        return self.kind in {Kind.COMPARED, Kind.NEW, Kind.FIXED} and self.verdict is not Verdict.BROKEN

    @property
    def is_bimodal(self) -> bool:
        """Whether the process medians of either side have two modes."""
        return max(len(self.base_modes_ns), len(self.head_modes_ns)) > 1

    def __str__(self) -> str:
        word = self.verdict or self.kind
        return f"{self.subject}: {word}: {self.reason}{f' ({self.detail})' if self.detail else ''}"
