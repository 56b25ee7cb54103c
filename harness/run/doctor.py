"""Doctor: findings about CPU, host and GPUs that decide whether this machine is fit to measure, with advice.

No check needs privileges. A fact that cannot be read gives no finding.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep
from typing import Any

import psutil

from opgauge.harness.counting import counted
from opgauge.harness.project.revision import ownership_note
from opgauge.harness.run.environment import nvml_handle, stripped_text
from opgauge.ops import Device

CPU_FOLDER = Path("sys/devices/system/cpu")
"""Folder of the kernel's facts about CPUs."""
CGROUP = Path("sys/fs/cgroup")
"""Folder of control groups."""
MOST_LOAD = 0.2
"""Share of the CPUs that other processes may use."""
MOST_STEAL = 0.5
"""Percent of time that the hypervisor may take."""
MOST_PRESSURE = 5.0
"""Percent of the last ten seconds in which some process waited for a CPU."""
WATCH_S = 0.2
"""Seconds over which CPU and GPU use are averaged."""
IDLE_USE = 5
"""Largest percentage of a GPU's time in use that counts as idle."""
SLOWING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's reasons for lower clocks that make times differ from run to run."""


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One fact about the machine. is_good: whether it suits measuring. advice: remedy; empty if it is good."""

    subject: str
    fact: str
    is_good: bool
    advice: str = ""


def examine(device: str, root: Path = Path("/")) -> list[HostFinding]:
    """Findings about the host, and about a GPU if `device` is one. root: of the file system, for tests."""
    found = [*_cpu(root), *_host(root)]
    parsed = Device.parse(device)
    return found if parsed.backend == "cpu" else [*found, *_gpu(parsed.index)]


def examine_repository(tree: Path) -> list[HostFinding]:
    """A finding where git refuses to read the repository of `tree`, so that runs would have no commit."""
    note = ownership_note(tree)
    fact, _, advice = note.partition("; ")
    return [HostFinding("repository", fact, is_good=False, advice=advice)] if note else []


def unfit_facts(device: str) -> str:
    """Subjects and facts that make times on a device unreliable, in one line; empty without any."""
    return ", ".join(f"{one.subject} {one.fact}" for one in examine(device) if not one.is_good)


def as_facts(findings: list[HostFinding]) -> dict[str, Any]:
    """Findings as plain JSON, for a run."""
    return {"fit": all(one.is_good for one in findings), "findings": [asdict(one) for one in findings]}


def _cpu(root: Path) -> Iterator[HostFinding]:
    governor = stripped_text(root / CPU_FOLDER / "cpu0/cpufreq/scaling_governor")
    if governor:
        good = governor == "performance"
        yield HostFinding("governor", governor, good, "" if good else "cpupower frequency-set -g performance")
    boost = stripped_text(root / CPU_FOLDER / "cpufreq/boost")
    no_turbo = stripped_text(root / CPU_FOLDER / "intel_pstate/no_turbo")
    if boost or no_turbo:
        is_on = boost == "1" or no_turbo == "0"
        advice = "disable boost: clocks depend on temperature and on busy cores"
        yield HostFinding("boost", "on" if is_on else "off", not is_on, advice if is_on else "")
    threads = stripped_text(root / CPU_FOLDER / "smt/active")
    if threads:
        advice = "leave one thread per core idle, or disable SMT: siblings share a core"
        yield HostFinding("SMT", "on" if threads == "1" else "off", threads != "1", advice if threads == "1" else "")
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    if nodes > 1:
        yield HostFinding("NUMA", f"{nodes} nodes", False, "numactl --cpunodebind=0 --membind=0: stay on one node")


def _host(root: Path) -> Iterator[HostFinding]:
    times = psutil.cpu_times_percent(WATCH_S)
    cpus = os.cpu_count() or 1
    busy = (100.0 - times.idle - getattr(times, "iowait", 0.0)) / 100
    good = busy <= max(MOST_LOAD, 1.0 / cpus)
    yield HostFinding("load", f"{busy * cpus:.1f} of {cpus} CPUs busy", good, "" if good else "stop other processes")
    steal = float(getattr(times, "steal", 0.0))
    advice = "measure on a dedicated host: the hypervisor gives CPU time to others"
    yield HostFinding("steal", f"{steal:.1f} %", steal <= MOST_STEAL, "" if steal <= MOST_STEAL else advice)
    quota = stripped_text(root / CGROUP / "cpu.max").partition(" ")[0]
    if quota:
        free = quota == "max"
        yield HostFinding(
            "cgroup quota", quota, free, "" if free else "lift the CPU quota: it stops threads mid-kernel"
        )
    pressure = stripped_text(root / "proc/pressure/cpu")
    if pressure:
        waiting = float(pressure.split("avg10=")[1].split()[0])
        good = waiting <= MOST_PRESSURE
        yield HostFinding(
            "CPU pressure", f"{waiting:.0f} %", good, "" if good else "processes wait for CPUs: stop others"
        )


def _gpu(index: int) -> Iterator[HostFinding]:
    """Findings from NVIDIA's management library; a single finding if it cannot be used."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        yield HostFinding("GPU", "unknown", False, "install nvidia-ml-py: the GPU's state is unknown")
        return
    except Exception as error:  # noqa: BLE001  NVML's own error class is known only where it is installed
        yield HostFinding("GPU", "no driver", False, f"{error}")
        return
    try:
        handle = nvml_handle(nvml, index)
        for read in (_clocks, _modes, _others, _throttling):
            try:
                yield from read(nvml, handle)
            except nvml.NVMLError:
                continue
    finally:
        nvml.nvmlShutdown()


def _clocks(nvml: Any, handle: Any) -> Iterator[HostFinding]:
    now = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    most = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    wanted = nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM)
    default = nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_SM)
    pinned = wanted != default
    advice = "pin clocks: nvidia-smi -lgc FREQUENCY"
    yield HostFinding(
        "clocks", f"{now} of {most} MHz, {'pinned' if pinned else 'free'}", pinned, "" if pinned else advice
    )


def _modes(nvml: Any, handle: Any) -> Iterator[HostFinding]:
    persistent = nvml.nvmlDeviceGetPersistenceMode(handle) == 1
    yield HostFinding(
        "persistence",
        "on" if persistent else "off",
        persistent,
        "" if persistent else "nvidia-smi -pm 1: starts are slow",
    )
    with_ecc = _try(lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
    if with_ecc is not None:
        yield HostFinding("ECC", "on" if with_ecc else "off", is_good=True)
    divided = _try(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    if divided is not None:
        yield HostFinding(
            "MIG", "on" if divided else "off", not divided, "others share memory bandwidth" if divided else ""
        )
    limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    usual = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    good = limit >= usual
    yield HostFinding(
        "power cap", f"{limit / 1000:.0f} of {usual / 1000:.0f} W", good, "" if good else "nvidia-smi -pl: lift the cap"
    )


def _others(nvml: Any, handle: Any) -> Iterator[HostFinding]:
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    others = [one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if one.pid not in own]
    yield HostFinding(
        "GPU processes", counted(len(others), "other"), not others, "" if not others else f"stop processes {others[:3]}"
    )
    sleep(WATCH_S)
    used = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    yield HostFinding(
        "GPU use", f"{used} %", used <= IDLE_USE, "" if used <= IDLE_USE else "wait until the GPU is idle"
    )


def _throttling(nvml: Any, handle: Any) -> Iterator[HostFinding]:
    reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    named = [name for bit, name in SLOWING.items() if reasons & bit]
    heat = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    fact = f"{', '.join(named) or 'none'}, {heat} °C"
    yield HostFinding("throttling", fact, not named, "" if not named else "cool the GPU, or pin clocks lower")


def _try(read: Callable[[], Any]) -> Any:
    """A fact that not all GPUs have; None if this one does not."""
    try:
        return read()
    except Exception:  # noqa: BLE001  NVML's own error class is known only where it is installed
        return None
