"""Savings by fused addends (FuseAddToOutput): an op alone, an addition to its output, and the op with the addend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Result
from opgauge.harness.result.summary import OPTIMIZED
from opgauge.ops import dtype_info
from opgauge.ops.residual.resnet50 import sites

WITH_ADD = "-with-add"
"""Suffix of cases with an addend."""
LAYOUTS = ("first", "last")
"""Layouts of the sites' cases."""
DTYPES = ("float32", "float16")
"""Dtypes of the sites' cases."""
BATCH = 32
"""Images of the sites' cases."""
LEAST_MEMORY = 1 / 3
"""Time of a copy of an op's bytes, as a share of the op's time, from which memory is its bound."""
SEPARATE_PASSES = 2
"""Passes over the output of a separate addition besides the addend: the traffic that fusing can save."""


@dataclass(frozen=True, slots=True)
class Addend:
    """One site; times in nanoseconds. is_memory_bound: memory bounds the op alone."""

    op: str
    site: str
    layout: str
    dtype: str
    alone_ns: float
    added_ns: float
    separate_ns: float
    is_memory_bound: bool

    @property
    def share(self) -> float:
        """Cost of the addend in the op's own pass, over the cost of a separate addition."""
        return (self.added_ns - self.alone_ns) / self.separate_ns

    @property
    def saved_ns(self) -> float:
        """Time that fusing saves at this site."""
        return self.alone_ns + self.separate_ns - self.added_ns


def addends(results: Iterable[Result], ceilings: Mapping[str, Ceilings]) -> list[Addend]:
    """Every site with all three measured by optimized kernels, in order."""
    measured = {
        (one.trial.case.op, one.trial.case.name.partition("[")[0], one.trial.case.dtype): one
        for one in results
        if one.trial.implementation == OPTIMIZED and one.measurement and one.measurement.samples_ns
    }
    separate = {_addition(key, one): _time_ns(one) for key, one in measured.items() if key[0] == "add_n"}
    found = []
    for (op, name, dtype), added in measured.items():
        alone = measured.get((op, name.removesuffix(WITH_ADD), dtype))
        elements = _elements(added, "add_to_output")
        layout = name.removesuffix(WITH_ADD).rpartition("-")[2]
        apart = separate.get((elements, layout, dtype))
        if name.endswith(WITH_ADD) and alone is not None and apart is not None:
            site = name.partition("-")[0]
            times = (_time_ns(alone), _time_ns(added), apart)
            found.append(Addend(op, site, layout, dtype, *times, _is_memory_bound(alone, ceilings)))
    return found


def saved_by_resnet50(found: Iterable[Addend], dtype: str, layout: str) -> float | None:
    """Nanoseconds that fusing saves at all 32 sites of ResNet-50; None if one was not measured."""
    by_site = {(one.op, one.site): one.saved_ns for one in found if (one.dtype, one.layout) == (dtype, layout)}
    wanted = []
    for site in sites():
        stage, _, block = site.name.partition("_")
        repeated = f"{stage}_x"
        wanted += [("normalization", repeated), ("conv_data_grad", site.name if block == "1" else repeated)]
    return None if any(one not in by_site for one in wanted) else sum(by_site[one] for one in wanted)


def most_of_resnet50(dtype: str, batch: int, ceiling: Ceilings) -> float:
    """Nanoseconds of a copy of the bytes that fusing at all 32 sites can save."""
    values = sum(batch * (s.channels * s.size**2 + s.into_channels * s.into_size**2) for s in sites())
    return SEPARATE_PASSES * values * dtype_info(dtype).itemsize / (ceiling.copy_gbps or float("nan"))


def _addition(key: tuple[str, str, str], result: Result) -> tuple[int, str, str]:
    _, name, dtype = key
    return _elements(result, "in_0"), name.rpartition("-")[2], dtype


def _elements(result: Result, name: str) -> int:
    spec = result.trial.case.resolved.inputs.get(name)
    return spec.size if spec is not None else 0


def _time_ns(result: Result) -> float:
    return result.measurement.median_ns if result.measurement else float("nan")


def _is_memory_bound(result: Result, ceilings: Mapping[str, Ceilings]) -> bool:
    reached = ceilings.get(result.trial.device)
    if reached is None:
        return False
    memory_ns = reached.floor_ns(result.bytes, 0, result.trial.case.dtype) or 0.0
    matrix_ns = reached.floor_ns(0, result.flops, result.trial.case.dtype) or 0.0
    return memory_ns >= max(matrix_ns, LEAST_MEMORY * _time_ns(result))
