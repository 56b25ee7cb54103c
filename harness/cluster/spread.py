"""A run over a cluster: results are stored as they come, those of unlike devices in runs of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from opgauge.harness.cluster.dispatch import Measured, dispatch
from opgauge.harness.cluster.tasks import SchedulerLostError
from opgauge.harness.measure import Limits
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.figures import with_possible_figures
from opgauge.harness.result.result import Environment, Result, Trial
from opgauge.harness.run.execute import Ask, ask_nothing
from opgauge.harness.run.signals import uninterrupted
from opgauge.harness.store import Store

if TYPE_CHECKING:
    from distributed import Client


class Runs:
    """Runs by what decides whether results may be compared: one per kind of device, begun when its first result comes.

    first: a run that exists already, with its environment; results of the same kind go there.
    """

    def __init__(self, store: Store, command: str, first: tuple[str, Environment] | None = None) -> None:
        self._store, self._command = store, command
        self._ids: dict[str, str] = {} if first is None else {_kind(first[1]): first[0]}
        self._peaks: dict[str, dict[str, Ceilings]] = {first[0]: store.ceilings(first[0])} if first else {}
        self.last = first[0] if first else ""

    def of(self, environment: Environment) -> str:
        """The id of the run for results from there; an unknown environment (a lost worker's) takes the latest run."""
        if not environment.hard and self.last:
            return self.last
        kind = _kind(environment)
        if kind not in self._ids:
            self._ids[kind] = self._store.begin_run(environment, command=self._command)
        self.last = self._ids[kind]
        return self.last

    def add(self, measured: Measured) -> None:
        """Store a result, and the best of the peaks that the run's devices of one kind achieved."""
        run = self.of(measured.environment)
        if measured.ceilings is not None:
            known, device = self._peaks.setdefault(run, {}), measured.ceilings.device
            best = known[device].best_of(measured.ceilings) if device in known else measured.ceilings
            if best != known.get(device):
                known[device] = best
                self._store.add_ceilings(run, best)
        self._store.add_result(run, with_possible_figures(measured.result))

    def results(self) -> list[list[Result]]:
        """The results so far, by run."""
        return [self._store.results(run) for run in self.ids]

    @property
    def ids(self) -> list[str]:
        """All of them."""
        return list(self._ids.values())


@contextmanager
def ending(store: Store, runs: Runs) -> Iterator[None]:
    """Mark the runs as finished at the end of the block, as interrupted after Ctrl-C or an error; results stay."""
    ended = "interrupted"
    try:
        yield
        ended = "finished"
    except SchedulerLostError as error:
        msg = f"{error}; finished results are stored, --resume measures the rest"
        raise SchedulerLostError(msg) from error
    finally:
        with uninterrupted():
            for run in runs.ids:
                store.finish_run(run, ended)


def run_spread(
    client: Client,
    trials: Sequence[Trial],
    runs: Runs,
    limits: Limits,
    *,
    timeout_s: float,
    block: int = 0,
    ceilings: bool = True,
    ask: Ask = ask_nothing,
    advance: Callable[[Result], Any],
    tell: Callable[[str], Any],
) -> None:
    """Measure `trials` on the members of a cluster, in their process with the number `block`, and store each result.

    ask: see `tasks_of`. Raises what `dispatch` raises.
    """
    for measured in dispatch(
        client, trials, limits, timeout_s=timeout_s, block=block, ceilings=ceilings, ask=ask, tell=tell
    ):
        runs.add(measured)
        advance(measured.result)


def measure_by(
    client: Client,
    runs: Runs,
    stored: Iterable[Result],
    limits: Limits,
    *,
    timeout_s: float,
    tell: Callable[[str], Any],
) -> Callable[[Sequence[Trial]], list[Result]]:
    """A function that measures trials on a cluster, stores each result and returns them in order; for many threads.

    stored: results of an earlier part of the run, which are not measured again.
    """
    lock = Lock()
    known = {result.trial.key: result for result in stored}

    def measure(trials: Sequence[Trial]) -> list[Result]:
        new = [trial for trial in trials if trial.key not in known]
        for measured in dispatch(client, new, limits, timeout_s=timeout_s, tell=tell):
            with lock:
                runs.add(measured)
                known[measured.result.trial.key] = measured.result
        return [known[trial.key] for trial in trials]

    return measure


def _kind(environment: Environment) -> str:
    return json.dumps(dict(environment.hard), sort_keys=True)
