"""A run as a value: the plan, and the session that measures it and passes each result to a store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from opgauge.harness.counting import counted
from opgauge.harness.errors import HarnessError
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Profile, Result, Status, Trial
from opgauge.harness.result.summary import PEERS
from opgauge.harness.run.device_lock import device_locks
from opgauge.harness.run.execute import Ask, LocalExecutor, ask_nothing
from opgauge.harness.run.peaks import AchievedPeaks
from opgauge.harness.run.progress import Progress
from opgauge.harness.run.remeasure import rounds, undecided_trials
from opgauge.harness.run.runner import run
from opgauge.harness.run.signals import exit_code, interruptible, raise_if_asked, uninterrupted

OK, WRONG, NOTHING = 0, 3, 5
"""Exit codes: every result of ours is valid; one is not; nothing was measured."""


class ResultStore(Protocol):
    """The part of a store that a session writes to."""

    def add_ceilings(self, run: str, ceilings: Ceilings) -> None:
        """Store the achieved peaks of a device."""

    def add_result(self, run: str, result: Result) -> None:
        """Store one result, durably."""

    def add_profile(self, run: str, trial: Trial, profile: Profile) -> None:
        """Store the kernel list of a trial."""

    def results(self, run: str) -> list[Result]:
        """Every result so far."""

    def finish_run(self, run: str, status: str = "finished") -> None:
        """Record how a run ended."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Work of a session.

    trials: to measure, in order. ceilings_of: devices whose achieved peaks are measured first. remeasure: most
    further processes for cases whose ranking is within noise. with_profile: list kernels after all timing.
    timeout_s: for each kernel while kernels are listed.
    """

    trials: tuple[Trial, ...]
    ceilings_of: tuple[str, ...] = ()
    remeasure: int = 0
    with_profile: bool = False
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Session:
    """One run in one store. open_progress(total): the progress display. notify: called with messages to the user."""

    store: ResultStore
    run_id: str
    open_progress: Callable[[int], Progress]
    notify: Callable[[str], None]

    def measure(self, plan: RunPlan, executor: LocalExecutor, ask: Ask = ask_nothing) -> int:
        """Measure the plan and record how the run ended; returns 0, or the exit code of the signal that ended it.

        An error marks the run as interrupted too, and is raised.
        """
        try:
            with interruptible():
                with device_locks({trial.device for trial in plan.trials}, self.notify):
                    self._measure(plan, executor, ask)
                if plan.with_profile:
                    executor.close()
                    self._list_kernels(plan.timeout_s)
        except KeyboardInterrupt as error:
            self._end("interrupted")
            return exit_code(error)
        except BaseException:
            with suppress(Exception):  # the error being raised matters more
                self._end("interrupted")
            raise
        self._end("finished")
        return 0

    def undecided(self) -> list[Trial]:
        """Trials whose ranking is within noise in the stored results."""
        return undecided_trials(self.store.results(self.run_id))

    def exit_code(self) -> int:
        """Exit code for the results: failures of peers are reported and do not count."""
        results = self.store.results(self.run_id)
        valid = {Status.OK, Status.UNSUPPORTED}
        if any(item.status not in valid for item in results if item.trial.implementation not in PEERS):
            return WRONG
        return OK if any(item.status is Status.OK for item in results) else NOTHING

    def _measure(self, plan: RunPlan, executor: LocalExecutor, ask: Ask) -> None:
        peaks = AchievedPeaks(executor, partial(self.store.add_ceilings, self.run_id))
        for device in plan.ceilings_of:
            try:
                peaks.measure(device)
            except HarnessError as error:
                self.notify(f"{device}: no achieved peaks: {str(error).strip().splitlines()[-1]}")
        for block, trials in rounds(plan.trials, plan.remeasure, self._by_run, self.notify):
            if block:
                executor.renew()
            with self.open_progress(len(trials)) as progress:
                for result in run(progress.follow(trials), executor, block=block, ask=ask):
                    plausible = peaks.judge(result)
                    self.store.add_result(self.run_id, plausible)
                    progress.finished(plausible.trial, plausible)
                    raise_if_asked()

    def _by_run(self) -> list[list[Result]]:
        return [self.store.results(self.run_id)]

    def _list_kernels(self, timeout_s: float) -> None:
        """List the kernels of valid results in a process that times nothing."""
        measured = [result for result in self.store.results(self.run_id) if result.status is Status.OK]
        trials = [result.trial for result in measured if result.profile is None and result.trial.backend != "cpu"]
        if len(trials) < len(measured):
            others = counted(len(measured) - len(trials), "result")
            self.notify(f"no kernel list for {others}: measured on the CPU, or with a list")
        reasons: dict[str, int] = {}
        with LocalExecutor(timeout_s=timeout_s) as executor, self.open_progress(len(trials)) as progress:
            for trial, profile in zip(trials, executor.profile(progress.follow(trials)), strict=True):
                self.store.add_profile(self.run_id, trial, profile)
                progress.finished(trial)
                if profile.reason:
                    reasons[profile.reason] = reasons.get(profile.reason, 0) + 1
        for reason, count in reasons.items():
            self.notify(f"no kernel list for {counted(count, 'result')}: {reason}")

    def _end(self, status: str) -> None:
        with uninterrupted():
            self.store.finish_run(self.run_id, status)
