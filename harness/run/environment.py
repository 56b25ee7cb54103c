"""Environment of a run: the entries that decide whether results are comparable, and the rest.

Keys of a device begin with its name: `cpu.model`, `cuda:0.driver_major`. Nothing here opens a CUDA context, and nothing
fails if git, a driver or a package is missing.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from opgauge.harness.case.case import Case
from opgauge.harness.project.active import measured
from opgauge.harness.project.installed import copy_note, stale_copies
from opgauge.harness.project.revision import Revision, ownership_note, read_revision, repository_top
from opgauge.harness.project.rewritten import rewritten_files
from opgauge.harness.result.result import Environment
from opgauge.harness.settings import ROOT, load_actions, load_settings, tuning_file, visible_gpu
from opgauge.ops import Device
from opgauge.ops._core import tuning
from opgauge.ops._core.backend import device_model

PACKAGES = {
    "opgauge": ("opgauge",),
    "numpy": ("numpy",),
    "numba": ("numba",),
    "ml_dtypes": ("ml_dtypes",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x"),
    "cuda_core": ("cuda-core",),
    "nvrtc": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    "torch": ("torch",),
    "torchvision": ("torchvision",),
}
"""Distributions by the name under which their version is stored."""
PATIENCE_S = 10
"""Longest run time of a command, in seconds."""


def capture(
    devices: Iterable[str] = ("cpu",),
    *,
    cases: Iterable[Case] = (),
    threads: int | None = None,
    tree: Path | None = None,
) -> Environment:
    """The environment of a run on `devices` over `cases`, with kernels from `tree` (None: the project's, or our own).

    `threads`: CPUs that workers are limited to; None for all. `tuning` of a device: a hash of its launch parameters
    if they are not the defaults. Raises BackendError for an impossible device.
    """
    hard: dict[str, str] = {}
    soft = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        **_versions(),
        **revision(tree or measured_tree()).entries(),
        "case_set": case_set(cases),
    }
    for text in devices:
        device = Device.parse(text)
        found_hard, found_soft = _cpu(threads) if device.backend == "cpu" else _gpu(device.index)
        hard |= {f"{device}.{key}": value for key, value in found_hard.items()}
        soft |= {f"{device}.{key}": value for key, value in found_soft.items()}
        soft[f"{device}.tuning"] = _tuning(device.backend, found_hard)
    return Environment(hard, {key: value for key, value in soft.items() if value})


def differences(here: Environment, there: Environment, device: str) -> list[str]:
    """Differences of a device's hard entries, in words."""
    ours, theirs = here.hard_of(device), there.hard_of(device)
    if not theirs:
        return [f"it has nothing of {device}"]
    return _unlike(ours, theirs, sorted(ours.keys() | theirs.keys()), f"{device}.")


def _unlike(ours: Mapping[str, str], theirs: Mapping[str, str], keys: Iterable[str], of: str = "") -> list[str]:
    return [
        f"{of}{key} is {ours.get(key, 'unknown')!r} here and {theirs.get(key, 'unknown')!r} there"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def changes(here: Environment, begun: Environment, devices: Iterable[str]) -> list[str]:
    """Differences from the beginning of a run that affect results, in words: hardware, versions, commit, tuning."""
    names = [str(Device.parse(text)) for text in devices]
    keys = ("commit", "python", *PACKAGES, *(f"{name}.{part}" for name in names for part in ("driver", "tuning")))
    hardware = [text for name in names for text in differences(here, begun, name)]
    return hardware + _unlike(here.soft, begun.soft, keys)


def measured_tree() -> Path:
    """The tree of the active project, else the installed opgauge or the tree from which it is imported."""
    project = measured()
    return ROOT if project is None else project.tree


def revision(tree: Path = ROOT) -> Revision:
    """Project and revision of `tree`; the branch is the one in `OPGAUGE_BRANCH`, git's, or CI's.

    The installed package without git is the project `opgauge`. Code that was imported from an installed copy differs
    from the commit as a modified file does.
    """
    project = measured()
    own = project if project is not None and project.tree == tree else None
    found = read_revision(tree, except_files=rewritten_files(own) if own else ())
    outside = [folder for folder in own.path if not folder.is_relative_to(tree)] if own else []
    is_copied = own is not None and bool(found.commit and stale_copies(own))
    name = "opgauge" if tree == ROOT and not found.commit else found.project
    settings = load_settings()
    actions = load_actions()
    return replace(
        found,
        project=(own and own.name) or name,
        is_dirty=found.is_dirty or is_copied or any(_is_modified(one, tree) for one in outside),
        branch=settings.branch or found.branch or (actions.branch if actions else ""),
    )


def commit(tree: Path = ROOT, *, but: Path | None = None) -> str:
    """The commit of `tree`, with `-dirty` if measured files differ from it; empty without git.

    but: a file that may differ, such as the one that `tune` writes.
    """
    project = measured()
    built = rewritten_files(project) if project is not None and project.tree == tree else ()
    return read_revision(tree, except_files=[*built, *([but] if but else ())]).label


def _is_modified(folder: Path, tree: Path) -> bool:
    """Whether tracked files of a folder elsewhere in the repository of `tree` differ from the commit."""
    return folder.is_relative_to(repository_top(tree)) and read_revision(folder).is_dirty


def case_set(cases: Iterable[Case]) -> str:
    """A hash of the ids of `cases`, in any order; empty without cases."""
    ids = sorted({case.id for case in cases})
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16] if ids else ""


def free_memory_bytes() -> int:
    """Free memory of this machine in bytes, at most the limit of this process's container."""
    from psutil import virtual_memory

    free = virtual_memory().available
    try:
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return free


def _versions() -> dict[str, str]:
    found = {}
    for name, packages in PACKAGES.items():
        for package in packages:
            try:
                found[name] = version(package)
                break
            except PackageNotFoundError:
                continue
    return found


def _cpu(threads: int | None) -> tuple[dict[str, str], dict[str, str]]:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    governor = stripped_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    used = allowed if threads is None else min(threads, allowed)
    hard = {"model": device_model("cpu") or "unknown", "threads": str(used)}
    return hard, {"cpus": str(os.cpu_count() or ""), "governor": governor}


def tree_notes() -> list[str]:
    """Notes on the measured tree: whether git reads it, and whether its code was imported from elsewhere."""
    return [note for note in (ownership_note(measured_tree()), copy_note(measured())) if note]


def tuning_notes(environment: Environment, devices: Iterable[str]) -> list[str]:
    """Entries of the tuning files that cannot be used on `devices`, a sentence each; `capture` has read the files."""
    found = [(Device.parse(text), environment.hard_of(str(Device.parse(text)))) for text in devices]
    return [note for device, hard in found for note in tuning.notes(device.backend, hard["model"])]


def _tuning(backend: str, hard: Mapping[str, str]) -> str:
    """Names of the launch parameters in use; empty on a MIG instance, whose name only CUDA knows."""
    tuning.use(tuning_file())
    return "" if hard.get("mig") == "on" else tuning.fingerprint(backend, hard["model"])


def _gpu(index: int) -> tuple[dict[str, str], dict[str, str]]:
    facts = _ask_nvml(index) or _ask_smi(index)
    driver = facts.get("driver", "")
    hard = {
        "model": facts.get("model", "unknown"),
        "mig": facts.get("mig", "unknown"),
        "driver_major": driver.partition(".")[0] or "unknown",
    }
    return hard, {key: value for key, value in facts.items() if key not in ("model", "mig")}


def nvml_handle(nvml: Any, index: int) -> Any:
    """Handle of the GPU that CUDA numbers `index`, in NVIDIA's initialized management library."""
    name = visible_gpu(index)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _ask_nvml(index: int) -> dict[str, str]:
    """Facts from NVIDIA's management library; empty if it or its package is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    try:
        handle = nvml_handle(nvml, index)
        facts = {
            "model": _text(nvml.nvmlDeviceGetName(handle)),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "mig": _mig(nvml, handle),
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        }
        for key, read in (
            ("sm_clock_mhz", nvml.nvmlDeviceGetClockInfo),
            ("sm_clock_max_mhz", nvml.nvmlDeviceGetMaxClockInfo),
        ):
            facts[key] = str(read(handle, nvml.NVML_CLOCK_SM))
    except nvml.NVMLError:
        return {}
    else:
        return facts
    finally:
        nvml.nvmlShutdown()


def _mig(nvml: Any, handle: Any) -> str:
    try:
        return "on" if nvml.nvmlDeviceGetMigMode(handle)[0] else "off"
    except nvml.NVMLError:  # a GPU without MIG
        return "off"


def _ask_smi(index: int) -> dict[str, str]:
    """The same facts from nvidia-smi; empty without it."""
    query = "name,driver_version,mig.mode.current,uuid,clocks.sm,clocks.max.sm"
    line = _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", visible_gpu(index))
    parts = [part.strip() for part in line.split(",")]
    names = ("model", "driver", "mig", "uuid", "sm_clock_mhz", "sm_clock_max_mhz")
    if len(parts) != len(names):
        return {}
    facts = dict(zip(names, parts, strict=True))
    facts["mig"] = "on" if facts["mig"].lower() == "enabled" else "off"
    return facts


def _output(*command: str) -> str:
    """Output of a command; empty if it is missing, fails or takes too long."""
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def stripped_text(path: Path) -> str:
    """Text of a file, as of the kernel's `/sys`; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
