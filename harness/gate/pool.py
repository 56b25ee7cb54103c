"""Pool of worker processes on the two trees of a gate, and their shared folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Self

from opgauge.harness.caches import CACHED_BY_CONTENT, remove_unused
from opgauge.harness.errors import HeadError, TreeError, WorkerError
from opgauge.harness.gate.clock import LOOKING, Clock
from opgauge.harness.gate.record import BASE, HEAD, BlockOutcome, JobRecord, outcome_from
from opgauge.harness.judge.verdict import Subject
from opgauge.harness.project.active import measured
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Profile, Status
from opgauge.harness.run.compiling import ONCE, Waiting, need_bytes, stopping
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.run.tree import Tree, temporary_folder
from opgauge.harness.settings import tuned_once
from opgauge.harness.worker import protocol
from opgauge.harness.worker.kept import forget_values

KEPT = "kept"
"""Name of the folder of cached inputs."""
LIBRARIES = ("numba", "torch", "triton")
"""Modules that take long to import, and need no GPU for it."""
MOST_LOOKING = 8
"""Most processes that call and check kernels before a GPU is timed: references are slow, and use one CPU each."""
LOOK = replace(ONCE, calls=1)
"""Limits of a trial that is only called and checked: how long a call takes is found later."""
START_S = 300.0
"""Seconds that a tree may take to answer requests about itself; digests of compiled code take longest."""


class WorkerPool:
    """Starts worker processes on either tree. Use it in a `with` statement.

    Compiled Numba code of `ops` is cached by the content of its sources (see `worker.compiled_cache`), that of a
    project in folders of the pool, because a cache beside the source does not detect changes in inlined functions of
    other files. Inputs are cached too: drawing them takes longer than measuring.

    imported: those of `LIBRARIES` that kernels of either tree need, or have imported in `look_ahead`.
    """

    def __init__(
        self,
        trees: Mapping[str, Tree],
        *,
        timeout_s: float = 120.0,
        threads: int | None = None,
        memory_bytes: int | None = None,
        checking_processes: int = MOST_LOOKING,
    ) -> None:
        """checking_processes: most processes that check kernels at once, per side."""
        self.trees = trees
        self._checking_processes = checking_processes
        self.clock = Clock()
        self._timeout_s = timeout_s
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._stack = ExitStack()
        self._folder = Path()
        self._waiting: list[tuple[str, LocalExecutor]] = []
        self._ceilings: dict[str, Ceilings] = {}
        self.imported: set[str] = set()
        self._seen: dict[tuple[str, Subject], BlockOutcome] = {}
        self._end: float | None = None

    def __enter__(self) -> Self:
        self._folder = self._stack.enter_context(temporary_folder("opgauge-gate-"))
        remove_unused()
        return self

    def __exit__(self, *_: object) -> None:
        self.prepare(())
        self._stack.close()

    @contextmanager
    def until(self, end: float | None) -> Iterator[None]:
        """Processes that start within raise TimeIsUpError if they are busy at this time by `time.monotonic`."""
        self._end = end
        try:
            yield
        finally:
            self._end = None

    @property
    def preload(self) -> list[str]:
        """Modules for processes on a GPU: what needs no GPU takes longest, and is done before their turn."""
        return sorted({"cupy", *self.imported})

    def prepare(self, sides: Sequence[str], preload: Sequence[str] | None = None) -> None:
        """Start the next processes early, in this order, without using the GPU; end those that wait for others.

        preload: modules that they import, by default `preload`.
        """
        kept = 0
        while kept < min(len(sides), len(self._waiting)) and self._waiting[kept][0] == sides[kept]:
            kept += 1
        for _, unwanted in self._waiting[kept:]:
            unwanted.close()
        self._waiting = self._waiting[:kept]
        for side in sides[kept:]:
            self._waiting.append((side, self.executor(side, preload=self.preload if preload is None else preload)))

    def take(self, side: str) -> LocalExecutor:
        """The first of the processes that wait, if it is on this side, else a new one."""
        if self._waiting and self._waiting[0][0] == side:
            return self._waiting.pop(0)[1]
        return self.executor(side)

    def executor(
        self, side: str, *, preload: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> LocalExecutor:
        """A new process on the tree of a side.

        preload: modules that it imports while it waits. environment: more variables.
        """
        tree = self.trees[side]
        return LocalExecutor(
            timeout_s=self._timeout_s,
            ops_tree=tree.path,
            threads=self._threads,
            memory_bytes=self._memory_bytes,
            environment={
                "NUMBA_CACHE_DIR": self.cache(side),
                **CACHED_BY_CONTENT,
                **tuned_once(),
                **tree.environment,
                **(environment or {}),
            },
            preload=(*preload, *tree.preload),
            end=self._end,
        )

    def look_ahead(
        self, records: Sequence[JobRecord], sides: Sequence[str] = (HEAD,), *, end: float | None = None
    ) -> None:
        """Call and check kernels once per side, several at a time, so that blocks need no reference.

        The head comes first: the base then finds its compiled code and valid outputs, where they are the same. Calls
        outside the samples are checked in a pair (see `JobRecord.checked_pair`): here others run at the same time. end:
        time by `time.monotonic` from which on no further kernel is called.
        """
        processes = max(1, min(self._checking_processes, (os.cpu_count() or 1) // 2))
        executors: list[LocalExecutor] = []
        with self.clock.outside(LOOKING), ThreadPoolExecutor(len(sides) * processes) as threads:
            for side in sorted(sides, key=(HEAD, BASE).index):
                waiting = self._unseen(records, side)
                with stopping([waiting], executors):
                    looks = [
                        threads.submit(self._look, side, waiting, end, executors) for _ in range(len(sides) * processes)
                    ]
                    for look in looks:
                        look.result()
                for record in records:
                    found = self._seen.get((side, record.job.subject))
                    if found is not None:
                        record.seen[side] = found

    def _unseen(self, records: Sequence[JobRecord], side: str) -> Waiting[JobRecord]:
        """Records of a side that have not been looked at, by the memory that they need."""
        new = [one for one in records if side in one.job.sides and (side, one.job.subject) not in self._seen]
        shapes = [record.job.trial["case"]["shapes"].values() for record in new]
        return Waiting(zip(map(need_bytes, shapes), new, strict=True))

    def _look(self, side: str, waiting: Waiting[JobRecord], end: float | None, executors: list[LocalExecutor]) -> None:
        executor = None
        try:
            for record in waiting:
                if end is not None and monotonic() >= end:
                    break
                if executor is None:
                    executor = self.executor(side, preload=self.preload)
                    executors.append(executor)
                executor.limits = LOOK
                found = executor.run_plain(
                    record.job.trial,
                    trusted=record.trusted(side),
                    with_fingerprint=True,
                    kept=self.kept(side),
                    extra_checks=False,
                )
                outcome = self._seen[side, record.job.subject] = outcome_from(found)
                if outcome.status is Status.OK:
                    self.imported.update(executor.ask(protocol.ListImported(LIBRARIES)))
        except (TreeError, WorkerError) as error:
            raise self.unanswered(side, error) from error
        finally:
            if executor is not None:
                executor.close()

    def await_start(self, executors: Iterable[tuple[str, LocalExecutor]]) -> None:
        """Wait until processes, each with its side, accept requests; raises TreeError as `run`."""
        with self.clock.starting():
            for side, executor in executors:
                try:
                    executor.ready()
                except (TreeError, WorkerError) as error:
                    raise self.unanswered(side, error) from error

    def kept(self, side: str) -> str:
        """Folder in which processes of a side leave inputs for later ones; of both sides, if their names tell code.

        Inputs of a project may depend on code elsewhere than in the folder of an op.
        """
        return str(self._folder / KEPT / "both") if measured() is None else str(self._folder_of(KEPT, side))

    def cache(self, side: str) -> str:
        """Folder in which processes of a side cache compiled Numba code."""
        return str(self._folder_of("numba", side))

    def ceilings(self, devices: Iterable[str]) -> dict[str, Ceilings]:
        """Achieved peaks of devices, measured on the head's tree when first requested."""
        wanted = list(devices)
        missing = [device for device in wanted if device not in self._ceilings]
        if missing:
            with self.take(HEAD) as executor:
                self._ceilings |= {device: executor.ceilings(device) for device in missing}
        return {device: self._ceilings[device] for device in wanted}

    def profile(self, side: str, trials: Iterable[Mapping[str, Any]]) -> list[Profile]:
        """Kernel lists of trials on the tree of a side, from a process that times nothing."""
        found = []
        with self.take(side) as executor:
            for trial in trials:
                try:
                    found.append(executor.profile_plain(trial))
                except WorkerError as error:  # a missing explanation changes no verdict
                    found.append(Profile(reason=str(error).strip().rpartition("\n")[2]))
        return found

    def forget_inputs(self) -> None:
        """Remove the cached inputs."""
        forget_values(self._folder / KEPT)

    def ask(self, side: str, requests: Iterable[protocol.Request]) -> list[Any]:
        """Answers of the tree of a side; raises CaseError, and TreeError, naming the tree, if it cannot answer."""
        try:
            with self.take(side) as executor:
                return [executor.ask(request, timeout_s=START_S) for request in requests]
        except (TreeError, WorkerError) as error:
            raise self.unanswered(side, error) from error

    def run(
        self, executor: LocalExecutor, side: str, record: JobRecord, pair: int | None, **more: Any
    ) -> dict[str, Any]:
        """The job in a process of a side; raises TreeError if the tree, not a kernel, is at fault.

        pair: number of the pair; None for a run beside the pairs.
        """
        trusted = record.trusted(side)
        is_new = trusted is None or "fingerprint" in trusted
        given = {
            "block": pair or 0,
            "trusted": trusted,
            "with_fingerprint": is_new,
            "kept": self.kept(side),
            "extra_checks": trusted is None or pair == record.checked_pair,
            **more,
        }
        try:
            return executor.run_plain(record.job.trial, **given)
        except WorkerError as error:
            raise self.unanswered(side, error, f"{record.job.subject}: ") from error

    def unanswered(self, side: str, error: Exception, where: str = "") -> TreeError:
        """An error that names the tree of a side; a head that cannot be imported is broken by the change."""
        msg = f"{self.trees[side]} cannot answer: {where}{error}"
        is_broken = side == HEAD and isinstance(error, TreeError)
        return HeadError(msg) if is_broken else TreeError(msg)

    def _folder_of(self, content: str, side: str) -> Path:
        """Folder for content that depends on the tree of a side."""
        return self._folder / content / sha256(str(self.trees[side].path).encode()).hexdigest()[:16]
