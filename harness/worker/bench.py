"""Bench: one trial in this process: inputs, reference, poisoned outputs, call, check, measure, check again.

`Bench.run` is a worker's answer to each request. It caches the inputs and the reference of the last case, so that all
implementations of a case share them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.measure import Limits, Timer, timer_for
from opgauge.harness.measure.footprint import with_resources
from opgauge.harness.measure.series import with_series
from opgauge.harness.result.result import Calibration, Check, Measurement, Result, Status, Trial
from opgauge.harness.worker import protocol
from opgauge.harness.worker.attempt import Attempt, Trusted, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.buffers import Buffers
from opgauge.harness.worker.damage import repaired, with_damage, with_disturbance, with_late_damage, with_threads
from opgauge.harness.worker.device_settings import is_exhausted
from opgauge.harness.worker.faults import FAULTS, blamed_on_op, fault_fields
from opgauge.harness.worker.held import HeldKernel
from opgauge.harness.worker.idle import check_idle
from opgauge.harness.worker.inputs import Inputs, make_inputs
from opgauge.harness.worker.kept import is_kept, keep_expected, keep_values, recall_expected, recall_values
from opgauge.harness.worker.left_threads import LeftThreads, Snapshot, others_ns
from opgauge.harness.worker.phases import Phases
from opgauge.harness.worker.shared_memory import allocating_in
from opgauge.harness.worker.state import Damage, ProcessState, observe, restore
from opgauge.harness.worker.trial_kernel import find_trial_kernel
from opgauge.harness.worker.variation import find_variation, vanishes_at_zero
from opgauge.harness.worker.verify import Expected, expect
from opgauge.ops import (
    BackendError,
    Device,
    Found,
    Kernel,
    dtype_info,
    find_op,
)
from opgauge.ops._core.backend import cuda_device_count


class _Checks(NamedTuple):
    """Whether a kernel is held for further samples, and whether and when calls beside the samples are checked."""

    hold: bool
    beside: bool
    late: bool

    @property
    def is_brief(self) -> bool:
        """Whether one call and one sample are enough: those that count come later, and are audited.

        Until then a kernel does not know whether calls beside them will be checked.
        """
        return self.hold and (self.late or not self.beside)


class Bench:
    """Runs trials one after another; `report` is called with each phase as it begins.

    settled: state of the process before the further samples of held trials. block, reference_threads, memory,
    threads: of the last trial; the first block decides the addresses of a GPU's
    buffers. left: waiting threads of earlier trials, and left_used their CPU time after the last trial's first call.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report
        self.block = 0
        self.reference_threads: int | None = None
        self.memory: str | None = None
        self.timers: dict[tuple[str, int], Timer] = {}
        self.calibrations: dict[str, Calibration] = {}
        self.case: Case | None = None
        self.inputs = Inputs({})
        self.expected: Expected | None = None
        self.buffers: dict[str, Buffers] = {}
        self.held: dict[str, tuple[HeldKernel, Result]] = {}
        self.threads = LeftThreads()
        self.settled: ProcessState | None = None
        self.left: list[LeftThreads] = []
        self.left_used: list[Snapshot] = []

    def run(
        self,
        trial: Trial,
        limits: Limits,
        *,
        block: int = 0,
        cpu_fallback: bool = False,
        trusted: Trusted | None = None,
        with_digest: bool = False,
        with_fingerprint: bool = False,
        kept: Path | None = None,
        hold: bool = False,
        reference_threads: int | None = None,
        memory: str | None = None,
        extra_checks: bool = True,
        late_checks: bool = False,
    ) -> Result:
        """The result of `trial`, also if its kernel fails.

        trusted: outputs with these bits need no reference. with_digest: put their digest into `extra`.
        with_fingerprint: also put a digest of the check, including the inputs, into `extra`, by which another
        tree may trust them. kept: folder from which inputs are read, and to which they are written if missing.
        hold: keep the data that `sample` needs until the next case. reference_threads: see `expect`. memory:
        file for new buffers on the CPU, in place of the present ones (see `shared_memory`). extra_checks: also
        check calls beside the samples: on emphasized inputs, in succession, and one by one. Without them a held
        trial is called and checked once, and timed once. late_checks: a held trial begins like that with them too.
        """
        self.block, self.reference_threads, self.memory = block, reference_threads, memory
        case, phases = trial.case, Phases(self.report)
        work = find_op(case.op).work(case.resolved, case.params)
        phases.written_share = round(work.bytes_written / work.bytes, 4) if work.bytes else None
        result = Result(trial, Status.OK, bytes=work.bytes, flops=work.flops, block=block)
        ready, before = None, self._observe(trial.device)
        try:
            found = find_trial_kernel(trial, cpu_fallback=cpu_fallback)
            result = replace(result, fell_back=found.fell_back, deterministic=found.kernel.deterministic)
            result = replace(result, ruler=self._calibration("cpu" if found.fell_back else trial.device))
            self._load(case, phases, kept, with_reference=trusted is None)
            reference = partial(self._expect, case, found.kernel, kept)
            if trusted is None and self.expected is None:  # earlier kernels of the case were trusted
                phases.begin("reference")
                reference()
            digests = partial(Attempt.digests, with_fingerprint=with_fingerprint)
            tell = digests if with_digest or with_fingerprint else None
            wanted = _Checks(hold, extra_checks, late_checks)
            ready, checked, measurement = self._try(trial, found, limits, phases, reference, trusted, tell, wanted)
            result = replace(result, check=checked, measurement=measurement)
        except FAULTS as error:
            result = replace(result, **fault_fields(error))
        except Exception:
            damage = restore(before)
            if not damage.text:
                raise
            failed = replace(result, status=Status.WRONG, extra={"unfit": True})
            return replace(failed, reason=f"{damage.text}, and the harness failed")
        result = replace(result, extra=phases.extra(failed=result.status is not Status.OK))
        result = self._judged(with_series(result), before)
        if hold and ready is not None:
            self.held[trial.implementation] = ready, result
        return result

    def _observe(self, device: str) -> ProcessState:
        """The state of the process before a trial, in which the timer is loaded: a kernel may replace its parts."""
        with suppress(*FAULTS):
            self._calibration(device)
        before, self.threads, self.left_used, self.settled = observe(), LeftThreads(), [], None
        return before

    def _judged(self, result: Result, before: ProcessState) -> Result:
        """The result of a trial, judged by what it left in the process, which is restored."""
        if result.trial.backend != "cpu" and is_exhausted():
            result = replace(result, extra={**result.extra, "unfit": True})
        damage = repaired(result, before)
        self.settled = damage.after
        result = with_disturbance(
            with_damage(result, damage, self.threads), zip(self.left, self.left_used, strict=False)
        )
        if "waiting_threads" in result.extra:
            self.left.append(self.threads)
        return result

    def parameters(self, trial: Trial) -> list[str]:
        """Names of the launch parameters that the trial's kernel reads when it is bound; nothing is drawn or called.

        Raises one of FAULTS if it cannot be bound.
        """
        found = find_trial_kernel(trial)
        specs = trial.case.resolved.inputs.items()
        values = {name: np.zeros(spec.shape, dtype_info(spec.dtype).numpy) for name, spec in specs}
        timer = self.timer(found.kernel.key.backend, Device.parse(trial.device).index)
        with timer.session(found.kernel.arrays), _recording("_core.tuning") as asked:
            Attempt(trial.case, found.kernel, values, timer).bind()
        return sorted(asked)

    def sample(self, implementation: str, limits: Limits, *, is_last: bool = False) -> Result:
        """Further samples of a resident implementation only; or its failure.

        is_last: also check calls beside the samples, and one more on the original inputs.
        """
        (ready, result), phases = self.held[implementation], Phases()
        self.settled = self.settled or observe()
        ready.threads.resume(alone=False)
        try:
            with self._repairing(ready.attempt):
                measurement = self._sample(ready, phases, limits)
                if is_last and ready.checks_beside:
                    ready.check_beside(measurement, phases)
                if is_last:
                    ready.check_after(phases)
                result = replace(result, measurement=measurement)
        except FAULTS as error:
            result = replace(result, measurement=None, **fault_fields(error))
        result = replace(result, extra=phases.extra(failed=result.status is not Status.OK))
        return with_threads(result, ready.threads)

    def judged_together(self, results: Sequence[Result]) -> list[Result]:
        """Results of held trials after their last samples, judged by what these left in the process.

        A single one is wrong if it changed the process; of several, any may have done so, and all are measured again.
        """
        damage = restore(self.settled) if self.settled is not None else Damage()
        self.settled = None
        return [with_late_damage(result, damage, is_alone=len(results) == 1) for result in results]

    def timer(self, backend: str, index: int) -> Timer:
        """The timer of a device, created once for its stream and compiled kernels."""
        found = self.timers.get((backend, index))
        if found is None:
            if backend != "cpu" and index >= cuda_device_count():
                msg = f"no device {backend}:{index} here, or no CuPy to use it with"
                raise BackendError(msg)
            found = self.timers[backend, index] = timer_for(backend, index, self.block)
        return found

    def _calibration(self, name: str) -> Calibration:
        """Calibration times of a device, measured when this process first uses it."""
        if name not in self.calibrations:
            self.report("calibration")
            device = Device.parse(name)
            self.calibrations[name] = self.timer(device.backend, device.index).calibrate()
        return self.calibrations[name]

    def _load(self, case: Case, phases: Phases, kept: Path | None, *, with_reference: bool) -> None:
        """Load inputs and, if wanted, the reference of `case`, unless its inputs are cached; held trials of it stay."""
        if self.case is not None and self.case.id == case.id:
            return
        self.case, self.inputs, self.expected, self.buffers, self.held = None, Inputs({}), None, {}, {}
        phases.begin("reference")
        with blamed_on_op():
            find_variation(case)
            vanishes_at_zero(case)
            expected = recall_expected(case, kept) if kept is not None and with_reference else None
            is_enough = expected is not None or not with_reference
            values = recall_values(case, kept) if kept is not None and is_enough else None
            inputs = make_inputs(case) if values is None else Inputs(values)
            self.expected = expected if is_enough else expect(case, inputs, threads=self.reference_threads)
        if kept is not None and values is None:
            keep_values(case, inputs.values, kept)
        self.case, self.inputs = case, Inputs(inputs.values)  # without the wide ones

    def _expect(self, case: Case, kernel: Kernel, kept: Path | None) -> Expected:
        """The reference of the current case, computed now if it was not wanted before."""
        if self.expected is None:
            with blamed_on_op():
                self.expected = expect(case, make_inputs(case), threads=self.reference_threads)
        if kept is not None and not kernel.deterministic and not is_kept(case, kept):
            keep_expected(case, self.expected, kept)
        return self.expected

    def _try(
        self,
        trial: Trial,
        found: Found,
        limits: Limits,
        phases: Phases,
        reference: Callable[[], Expected],
        trusted: Trusted | None,
        tell: Callable[[Attempt, Any], Mapping[str, str]] | None,
        wanted: _Checks,
    ) -> tuple[HeldKernel, Check, Measurement]:
        kernel, phases.relaxed = found.kernel, found.kernel.relaxed
        backend = kernel.key.backend
        timer = self.timer(backend, 0 if found.fell_back else Device.parse(trial.device).index)
        with timer.session(kernel.arrays):
            phases.begin("allocate")
            attempt = self._attempt(trial, kernel, timer, trusted)
            with self._repairing(attempt):
                with (
                    _recording("_cuda.source") as used,
                    _recording("_core.tuning") as phases.tuning,
                    _recording("_core.plans") as plans,
                ):
                    phases.begin("prepare")
                    audit = Audit(attempt, reference)  # before code of the kernel runs
                    call = attempt.bind()
                    phases.begin("first call")
                    returned = attempt.call(call, 0)
                    first = attempt.check_first(returned, reference)
                phases.plans = tuple(plans or used)
                self.threads.begin()
                self.left_used = [one.snapshot() for one in self.left]
                audit.threads, audit.others_ns = self.threads, others_ns()
                audit.is_seldom = wanted.late and kernel.key.backend == "cpu"
                ready = HeldKernel(attempt, call, reference, audit, self.threads, returned)
                if not wanted.is_brief:
                    phases.begin("call on read-only inputs")
                    with attempt.buffers.read_only():
                        returned = attempt.call(call, 1)
                    attempt.check(returned, reference, "in the second call")
                measurement = self._sample(ready, phases, limits, audited=not wanted.is_brief)
                ready.checks_beside = wanted.hold and wanted.beside
                if wanted.beside:  # later, threads of other held kernels may work
                    phases.begin(protocol.IDLE)
                    check_idle(audit, attempt)
                if wanted.beside and not wanted.hold:
                    ready.check_beside(measurement, phases)
                if not wanted.is_brief:
                    ready.check_after(phases)
                phases.varied = ready.audit.varied > 0
                if tell is not None and attempt.repeatable:
                    phases.digests = tell(attempt, ready.returned)
        return ready, first, with_resources(ready.believed(measurement), used)

    def _attempt(self, trial: Trial, kernel: Kernel, timer: Timer, trusted: Trusted | None) -> Attempt:
        """An attempt on the buffers that all implementations of the current case share on a device.

        Different addresses would change ratios as kernels do: in the last cache of a CPU by a factor of two.
        """
        backend = kernel.key.backend
        device = trial.device if backend == trial.backend else backend
        found = self.buffers.get(device) if self.memory is None else None
        if found is None:
            with allocating_in(self.memory if backend == "cpu" else None):
                found = self.buffers[device] = Buffers(trial.case, self.inputs.values, backend)
        return Attempt(trial.case, kernel, self.inputs.values, timer, trusted=trusted, buffers=found)

    @contextmanager
    def _repairing(self, attempt: Attempt) -> Iterator[None]:
        """Restore the buffers that a failing kernel has changed, since other implementations share them."""
        try:
            yield
        except FAULTS as error:
            if attempt.kernel.key.backend == "cpu" or isinstance(error, WrongError):
                attempt.buffers.repair()
            else:  # the device may be unusable
                self.buffers = {}
            raise

    def _sample(self, ready: HeldKernel, phases: Phases, limits: Limits, *, audited: bool = True) -> Measurement:
        phases.begin(protocol.MEASURE)
        return ready.attempt.measure(ready.call, limits, ready.audit if audited else None).measurement


def _recording(module: str) -> AbstractContextManager[Any]:
    """Context that records kernels, launch parameters or plans; empty for a tree whose `ops` cannot record."""
    record = getattr(sys.modules.get(f"opgauge.ops.{module}"), "recording", None)
    return nullcontext({}) if record is None else record()
