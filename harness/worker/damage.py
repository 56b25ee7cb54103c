"""Results of trials that changed their process or left threads in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from opgauge.harness.result.result import Result, Status
from opgauge.harness.result.summary import PEERS
from opgauge.harness.worker import protocol
from opgauge.harness.worker.left_threads import LeftThreads, Snapshot
from opgauge.harness.worker.state import Damage, ProcessState, restore

PEERS_MAY = ("children", "blas_threads", "handlers", "torch_state", "environment")
"""Fields of the process's state that a peer may change."""


def repaired(result: Result, before: ProcessState) -> Damage:
    """Changes by a trial, after restoring the process's previous state.

    Peers in torch may start threads and processes of their own.
    """
    return restore(before, PEERS_MAY if result.trial.implementation in PEERS else ())


def with_damage(result: Result, damage: Damage, threads: LeftThreads) -> Result:
    """The result of a trial that changed its process.

    Changes that a kernel made are its fault. A process that cannot be restored, or whose threads do not rest, is marked
    as unfit for other trials.
    """
    if damage.is_lasting or result.extra.get("phase") == protocol.IDLE:
        result = replace(result, extra={**result.extra, "unfit": True})
    if damage.text and result.status is Status.OK:
        result = replace(result, status=Status.WRONG, reason=damage.text, measurement=None)
    return with_threads(result, threads)


def with_late_damage(result: Result, damage: Damage, *, is_alone: bool) -> Result:
    """The result of a held trial after `damage` by interleaved samples: wrong, or `disturbed` if it was not alone."""
    if not damage.text:
        return result
    result = replace(result, extra={**result.extra, "unfit": True, "disturbed": not is_alone})
    if not is_alone or result.status is not Status.OK:
        return result
    return replace(result, status=Status.WRONG, reason=damage.text, measurement=None)


def with_threads(result: Result, threads: LeftThreads) -> Result:
    """The result of a trial, wrong if threads that it left behind have worked; `extra` names those that wait.

    They should rest from now on.
    """
    threads.rest()
    if result.trial.implementation in PEERS:
        return result
    working = threads.working()
    if not working:
        waiting = threads.names()
        return replace(result, extra={**result.extra, "waiting_threads": waiting}) if waiting else result
    result = replace(result, extra={**result.extra, "unfit": True})
    if result.status is not Status.OK:
        return result
    return replace(result, status=Status.WRONG, reason=working, measurement=None)


def with_disturbance(result: Result, earlier: Iterable[tuple[LeftThreads, Snapshot]]) -> Result:
    """The result of a trial; marked `disturbed` if threads of earlier trials have worked since the snapshots.

    The executor measures it again in a new process.
    """
    if any(threads.working(since) for threads, since in earlier):
        return replace(result, extra={**result.extra, "unfit": True, "disturbed": True})
    return result
