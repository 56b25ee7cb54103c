"""What a call takes without noise: launches from a graph, registers from the compiler; and the calibration workload."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.gate.evidence import metrics_of
from opgauge.harness.gate.record import BlockOutcome
from opgauge.harness.measure import Limits
from opgauge.harness.measure.cpu import CpuTimer
from opgauge.harness.measure.footprint import graph_names, with_resources
from opgauge.harness.result.result import Calibration, Footprint, Measurement, Status, Trial
from opgauge.harness.worker.bench import Bench
from opgauge.ops import find_op
from opgauge.ops._cuda import source as source_module
from opgauge.ops._cuda.pointwise import CONSTANTS
from opgauge.ops._cuda.source import CudaSource, Resources, recording

QUICK = Limits(budget_s=0.01, min_samples=1, max_samples=1, warmup_s=0.0)
SIGN = Path(source_module.__file__).parent.parent / "sign" / "cuda.py"
EXPRESSION = "sign<float, 4, VECTORS>"
MEASURED = Measurement((1.0,), "t", 1, footprint=Footprint(1, ("k",), 0))


def a_trial(implementation: str = "baseline") -> Trial:
    """A small p_norm on the CPU."""
    case = Case("p_norm", "small", {"x": (5, 7)}, "float32", find_op("p_norm").params())
    return Trial(case, implementation, "cpu", "cpu")


@dataclass
class FakeNode:
    """A node of a graph."""

    kind: str
    func: int = 0
    kern: int = 0


class FakeDriver:
    """Enough of the driver's functions to read a graph."""

    CUgraphNodeType = SimpleNamespace(
        CU_GRAPH_NODE_TYPE_KERNEL="kernel", CU_GRAPH_NODE_TYPE_MEMCPY="copy", CU_GRAPH_NODE_TYPE_MEMSET="fill"
    )

    def __init__(self, *nodes: FakeNode) -> None:
        self.nodes = list(nodes)

    def cuGraphGetNodes(self, graph: int, count: int = 0) -> tuple[int, list[FakeNode], int]:  # noqa: N802
        """The nodes, or how many there are."""
        assert graph == 7
        return 0, self.nodes[:count], len(self.nodes)

    def cuGraphNodeGetType(self, node: FakeNode) -> tuple[int, str]:  # noqa: N802
        """What a node does."""
        return 0, node.kind

    def cuGraphKernelNodeGetParams(self, node: FakeNode) -> tuple[int, FakeNode]:  # noqa: N802
        """Which kernel it launches."""
        return 0, node

    def cuFuncGetName(self, func: int) -> tuple[int, bytes]:  # noqa: N802
        """A function's name."""
        return 0, f"func{func}".encode()

    def cuKernelGetName(self, kern: int) -> tuple[int, bytes]:  # noqa: N802
        """A kernel's name."""
        return 0, b"_Z4signIfLi4ELi2EEvPKT_PS0_i" if kern == 1 else b""


def test_a_graphs_nodes_are_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels by either handle, copies and fills count, in order; events and the like do not."""
    import cuda.bindings

    nodes = (
        FakeNode("kernel", func=3),
        FakeNode("event"),
        FakeNode("copy"),
        FakeNode("kernel", kern=1),
        FakeNode("fill"),
        FakeNode("kernel", kern=2),
    )
    fake = FakeDriver(*nodes)
    monkeypatch.setattr(cuda.bindings, "driver", fake, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    names = graph_names(SimpleNamespace(graph=7))
    assert names == ("func3", "[copy]", "void sign<float, 4, 2>(float const*, float*, int)", "[fill]", "?")


def test_kernels_handed_out_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While recording, a kernel's resources are noted, from the cache too; before and after they are not."""
    fake: Any = SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: 5),
            Device=lambda _: SimpleNamespace(compute_capability="80"),
        ),
        RawModule=lambda path: SimpleNamespace(get_function=lambda name: name),
    )
    monkeypatch.setattr(source_module, "cupy", lambda: fake)
    monkeypatch.setattr(source_module, "_SOURCES", [])
    source = CudaSource(str(SIGN), "kernels.cu", (EXPRESSION,), constants=CONSTANTS)
    with recording() as first:
        function = source.function(EXPRESSION)
    with recording() as second:
        assert source.function(EXPRESSION) == function
    source.function(EXPRESSION)
    assert first == second
    assert list(first) == [EXPRESSION]
    assert first[EXPRESSION].registers > 0


def test_resources_are_the_most_registers_and_all_spills() -> None:
    """Of several kernels the registers of the hungriest count, and the spills of all."""
    used = {"a": Resources(32, 0, 0, 8), "b": Resources(64, 0, 0, 4)}
    found = with_resources(MEASURED, used).footprint
    assert found == Footprint(1, ("k",), 0, 64, 12)
    assert with_resources(MEASURED, {}) is MEASURED


@pytest.mark.usefixtures("busy_process")
def test_a_tree_that_records_nothing_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `ops` of an older tree has no recording; its trials are run without."""
    monkeypatch.delattr(source_module, "recording")
    result = Bench(lambda _: None).run(a_trial(), QUICK)
    assert result.status is Status.OK
    assert result.measurement is not None
    assert result.measurement.footprint is None


def test_the_gate_sees_what_was_measured() -> None:
    """A footprint becomes the gate's metrics, name by name."""
    measured = with_resources(MEASURED, {"a": Resources(40, 0, 0, 8)})
    found = metrics_of([BlockOutcome(Status.OK, measurement=measured)])
    assert (found.launches, found.kernels, found.allocations) == (1, ("k",), 0)
    assert (found.registers, found.spills, found.peak_bytes) == (40, 8, None)


@pytest.mark.usefixtures("busy_process")
def test_each_block_is_calibrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process runs the calibration workload before its first trial and gives it to all results of the device."""
    calibrations = iter([Calibration(4.0, 9.0, 1.0), Calibration(5.0, 9.0, 1.0)])
    monkeypatch.setattr(CpuTimer, "calibrate", lambda _: next(calibrations))
    phases: list[str] = []
    bench = Bench(phases.append)
    results = [bench.run(a_trial(name), QUICK) for name in ("baseline", "optimized")]
    assert [result.ruler for result in results] == [Calibration(4.0, 9.0, 1.0)] * 2
    assert results[0].ruler is not None
    assert results[0].ruler.level_ns == 6.0
    assert phases[0] == "calibration"
    assert phases.count("calibration") == 1
    assert Bench(phases.append).run(a_trial(), QUICK).ruler == Calibration(5.0, 9.0, 1.0)


def test_a_trial_without_a_kernel_is_not_calibrated() -> None:
    """What was not run needs none."""
    assert Bench(lambda _: None).run(a_trial("nobody"), QUICK).ruler is None


def test_the_cpus_calibration_has_positive_times() -> None:
    """A copy, arithmetic and an empty call all take some time; there is no SM clock."""
    found = CpuTimer().calibrate()
    assert min(found.copy_ns, found.arithmetic_ns, found.launch_ns) > 0
    assert found.clock_mhz is None


def test_times_of_single_calls_on_the_cpu() -> None:
    """Each call has its time; no clock is known."""
    calls: list[int] = []
    times, clocks = CpuTimer().times(lambda: calls.append(0), 4, flush=True)
    assert (len(times), len(calls), clocks) == (4, 4, [])
