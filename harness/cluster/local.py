"""A cluster of this host's devices: one process per GPU, pinned to it, and processes for references."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from opgauge.harness.cluster.member import reference_count
from opgauge.harness.cluster.tasks import REFERENCE
from opgauge.harness.counting import counted
from opgauge.harness.errors import SettingsError

if TYPE_CHECKING:
    from distributed import Client

SETTINGS = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.worker.daemon": False,
    # a killed member starts again, which takes a while on a busy host
    "distributed.deploy.lost-worker-timeout": "10 minutes",
    # dask would limit BLAS and OpenMP to one thread, in members and for good in the process that starts them
    "distributed.nanny.pre-spawn-environ": {},
}
"""Configuration of dask for schedulers, members and clients."""
START_S = 300
"""Seconds that members may take to start."""
LOCALHOST = "127.0.0.1"
"""Address of the members of a cluster of this host alone."""
OPTIONS = {"host": LOCALHOST, "port": 0, "dashboard": False, "dashboard_address": f"{LOCALHOST}:0"}
"""Options of the scheduler of this host: any free ports, so that several clusters can run at once."""


def member_options(devices: Sequence[int], *, cpu_slots: int = 0, references: int | None = None) -> dict[str, Any]:
    """Worker specifications for dask: a process per GPU, `cpu_slots` that time the CPU, and some for references."""
    count = reference_count() if references is None else references
    found: dict[str, Any] = {}
    for device in devices:
        found[f"gpu-{device}"] = _member({"cuda": 1}, {"CUDA_VISIBLE_DEVICES": str(device)})
    for number in range(cpu_slots):
        found[f"cpu-{number}"] = _member({"cpu": 1}, {})
    for number in range(count):
        found[f"reference-{number}"] = _member({REFERENCE: 1}, {"CUDA_VISIBLE_DEVICES": ""})
    return found


@contextmanager
def local_cluster(specification: dict[str, Any]) -> Iterator[Client]:
    """A client of a cluster of these members on this host; all processes end with the block."""
    distributed = import_distributed()
    import dask

    with (
        dask.config.set(SETTINGS),
        _cluster_class(distributed)(
            workers=specification,
            scheduler={"cls": distributed.Scheduler, "options": OPTIONS},
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(len(specification), timeout=START_S)
        yield client


def _cluster_class(distributed: Any) -> Any:
    """The cluster of dask, which raises KeyError for a member that ends before it is listed, and listens no more."""

    class Cluster(distributed.SpecCluster):  # type: ignore[misc]
        def _update_worker_status(self, op: str, msg: Any) -> None:
            with suppress(KeyError):
                super()._update_worker_status(op, msg)

    return Cluster


@contextmanager
def remote_cluster(address: str, timeout_s: float = 10.0) -> Iterator[Client]:
    """A client of the cluster whose scheduler is at `address`, such as `tcp://host:8786`; raises SettingsError."""
    distributed = import_distributed()
    import dask

    with dask.config.set(SETTINGS):
        try:
            client = distributed.Client(address, set_as_default=False, timeout=timeout_s)
        except (OSError, TimeoutError, ValueError) as error:
            msg = f"no scheduler answers at {address}: {error}"
            raise SettingsError(msg) from error
        try:
            yield client
        finally:
            with suppress(RuntimeError):  # a timeout of the library expires, if the scheduler is lost
                client.close()


def join_cluster(address: str, specification: dict[str, Any]) -> None:
    """Run these members for the scheduler at `address` until interrupted, or until the scheduler is gone."""
    import asyncio

    import dask

    async def serve() -> None:
        started = []
        for name, one in specification.items():
            options = {key: value for key, value in one["options"].items() if key != "host"}
            started.append(await one["cls"](address, name=f"{socket.gethostname()}-{name}", **options))
        await asyncio.gather(*(one.finished() for one in started))

    with dask.config.set(SETTINGS):
        try:
            asyncio.run(serve())
        except (OSError, TimeoutError) as error:
            msg = f"no scheduler answers at {address}: {error}"
            raise SettingsError(msg) from error


def import_distributed() -> Any:
    """The module dask.distributed; raises SettingsError without the extra."""
    try:
        import distributed
    except ImportError as error:
        msg = "clusters need dask.distributed: pip install 'opgauge[cluster]'"
        raise SettingsError(msg) from error
    return distributed


def visible_devices(text: str) -> list[int]:
    """Device numbers of `--gpus`: `all`, or numbers separated by commas. Raises SettingsError."""
    from opgauge.ops._core.backend import cuda_device_count

    there = cuda_device_count()
    if text == "all":
        chosen = list(range(there))
    else:
        try:
            chosen = [int(part) for part in text.split(",")]
        except ValueError:
            msg = f"--gpus takes `all` or numbers separated by commas, not {text!r}"
            raise SettingsError(msg) from None
    wrong = [number for number in chosen if not 0 <= number < there]
    if wrong or not chosen:
        msg = f"--gpus {text}: this host has {counted(there, 'GPU')}"
        raise SettingsError(msg)
    return chosen


def _member(resources: dict[str, int], environment: dict[str, str]) -> dict[str, Any]:
    distributed = import_distributed()
    options = {"nthreads": 1, "memory_limit": 0, "dashboard": False, "silence_logs": logging.CRITICAL}
    more = {"resources": resources, "env": environment, "host": LOCALHOST, "preload": "opgauge.harness.cluster.member"}
    return {
        "cls": distributed.Nanny,
        "options": {**options, **more},
    }
