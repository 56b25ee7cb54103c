"""Audit of timed samples: inputs change and outputs are checked, so that a time counts only for work done.

Before each sample some inputs change in place and outputs are poisoned, outside the timed region; after it, the outputs
are compared with those of the changed inputs; then the change is undone. A kernel that returns early, repeats an
earlier result, or computed everything when it was bound leaves other outputs. Without a known way to vary a case (see
`variation`), outputs are poisoned all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from opgauge.harness.measure.timer import NOWHERE, Place
from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.bits import has_bits, module_of
from opgauge.harness.worker.call_time import CallTime, Clocks
from opgauge.harness.worker.emphasis import allow_lost
from opgauge.harness.worker.input_changes import FreshValues, InputChange, InputChanges
from opgauge.harness.worker.inputs import Inputs, on_host
from opgauge.harness.worker.left_threads import LeftThreads
from opgauge.harness.worker.nearness import is_near
from opgauge.harness.worker.probes import changed_output, draw_place, draw_probe, is_same, read_probes
from opgauge.harness.worker.regions import Pair, differ, is_flat, moved, run, slices
from opgauge.harness.worker.returned_arrays import ReturnedArrays
from opgauge.harness.worker.time_share import TimeShare
from opgauge.harness.worker.variation import Exchange, along, expect_slices, find_variation, take, vanishes_at_zero
from opgauge.harness.worker.verify import Expected, check, expect
from opgauge.ops import dtype_info
from opgauge.ops._core.backend import to_numpy
from opgauge.ops._core.op import Array

SHARE, DEVICE_SHARE = 0.02, 0.04
"""Largest share of the kernel's sampling time for poisoning and comparing whole outputs, and for fresh values.

Both are done at least once; parts of the outputs are poisoned and compared each time. A GPU has no single calls beside
the samples, so it gets more.
"""
DEVICE_FRESH_S = 0.015
"""Seconds for fresh values per trial on a GPU, if its share is less."""
SMALL_BYTES = 64 << 10
"""Size up to which outputs are poisoned and compared whole each time."""
COSTLY_SHARE = 1 / 4
"""Share of the later calls on fresh values that are judged if their reference is costly."""
JUDGED = 4
"""Most slices whose reference is computed when their bits differ from the known ones."""
SELDOM = 1 / 64
"""Chance of a sample to have the first fresh values where many processes sample a kernel: they last twenty samples."""
LOOSE_BYTES = 16 << 20
"""Size up to which outputs with independent slices are compared loosely as a whole, besides slices of them."""


class Audit:
    """Hooks that audit one kernel's samples: see `measure.timer.Hooks`."""

    def __init__(self, attempt: Attempt, reference: Callable[[], Expected], *, seed: int | None = None) -> None:
        self._attempt = attempt
        self._reference = reference
        self.rng = np.random.default_rng(seed)
        self.can_freshen = not attempt.captures_inputs  # whether inputs may get fresh values
        self._variation = find_variation(attempt.case) if self.can_freshen else None
        self.changes = InputChanges(
            attempt.case,
            self._variation,
            attempt.buffers.inputs,
            attempt.buffers.untouched,
            self.rng,
            emphasized=self.can_freshen and attempt.kernel.relaxed == 1 and vanishes_at_zero(attempt.case),
            draws=attempt.buffers.draws,
            user=str(attempt.kernel.key),
            is_random=seed is None,
        )
        # what kernels that capture inputs return may be computed when they are bound
        self._returned = ReturnedArrays(attempt.buffers.out if self.can_freshen else {}, self.rng)
        outputs = attempt.case.resolved.outputs.values()
        self._bytes = sum(spec.size * dtype_info(spec.dtype).numpy.itemsize for spec in outputs)
        self._sampled_s = 0.0
        self.threads = LeftThreads()
        self.others_ns = 0  # CPU time of other threads before the audited calls, once the kernel is bound
        is_cpu = attempt.kernel.key.backend == "cpu"
        self._whole = TimeShare(SHARE if is_cpu else DEVICE_SHARE)
        self._fresh, self._judged = (
            TimeShare(SHARE) if is_cpu else TimeShare(DEVICE_SHARE, DEVICE_FRESH_S) for _ in range(2)
        )
        self.is_seldom = False  # whether the first fresh values are left to chance
        self._started = self._ended = 0.0
        self._called = Clocks.now()
        self._probes: dict[str, Array] = {}
        self._place = NOWHERE
        self._change: InputChange | None = None
        self.thorough: list[CallTime] = []  # samples on inputs and outputs that changed as a whole
        self.usual: list[CallTime] = []  # samples on inputs of which no values are fresh
        self.samples = self.whole = self.varied = self.fresh = 0
        self.is_hot_wrong = False  # whether captured calls leave other outputs than others

    def before(self) -> Place:
        """Change inputs and poison outputs; not timed. Returns a poisoned place."""
        chance = 1 / 2 if self.fresh else SELDOM if self.is_seldom else 1
        fresh = self._fresh.has_room(self._sampled_s) and self.rng.random() < chance
        is_first = fresh and not self.fresh
        self._change_now(whole=self.is_small or is_first or self._whole.has_room(self._sampled_s), fresh=fresh)
        self._place = draw_place(self._attempt.buffers.out, self._probes, self.rng)
        self._called = Clocks.now()
        return self._place

    def change(self, *, whole: bool, fresh: bool) -> None:
        """Change inputs, to fresh values if wanted and possible, and poison outputs or parts of them."""
        self._change_now(whole=whole, fresh=fresh)
        self._called = Clocks.now()

    def _change_now(self, *, whole: bool, fresh: bool) -> None:
        begun = perf_counter()
        self.threads.rest()
        values = self.changes.freshen(everything=whole) if fresh and self.can_freshen else None
        change = self.changes.choose(whole=whole) if values is None else InputChange(whole, fresh=values)
        buffers = self._attempt.buffers
        if whole:
            buffers.poison(int(self.rng.integers(3)))
        else:
            buffers.poison_parts(self.rng)
        if values is None:
            self.changes.apply(change, buffers.inputs, is_input=True)
        parts: Mapping[str, Any] = {} if whole else buffers.poisoned
        self._probes = {name: draw_probe(array, self.rng, parts.get(name)) for name, array in buffers.out.items()}
        self._change = change
        self.threads.resume()
        self._ended = perf_counter()
        self._started = self._ended - begun

    def after(
        self, returned: Any, seen: tuple[int, Any] | None = None, *, judged: bool = True, surely: bool = False
    ) -> None:
        """Check the outputs of the sample, and undo the change; not timed. Raises WrongError.

        seen: values at the place that `before` returned. judged: compare outputs. surely: also costly ones.
        """
        took, change, begun = self._called.passed(), self._change, perf_counter()
        if change is None:
            return
        self._sampled_s += begun - self._ended
        outputs = self._attempt.outputs(returned)
        probed = read_probes(outputs, self._probes) if judged else {}
        is_judged = judged and self._compare(outputs, change, surely=surely)
        self.threads.rest()  # not before: it raises an audit event, upon which a hook could compute the outputs
        late = changed_output(outputs, self._probes, probed)
        if late or not is_same(self._place, seen, returned):
            reason = f"{late or 'an output'} was still written after the call had returned"
            raise WrongError(reason)
        self.undo()
        late = changed_output(outputs, self._probes, probed)
        if late:
            reason = f"{late} changes with an input after the call has returned: copying is part of the work"
            raise WrongError(reason)
        self._returned.spoil(outputs)
        self.threads.resume()
        self.samples += 1
        self.whole += change.whole
        self.varied += change.pair is not None or change.is_scaled or change.fresh is not None
        if change.fresh is None:
            self.usual.append(took)
        elif is_judged and change.whole and change.fresh.is_whole and not change.fresh.is_known:
            self.thorough.append(took)
        spent = perf_counter() - begun + self._started
        if change.fresh is not None:
            self.fresh += 1
            self._fresh.add(spent)
        elif self._bytes > SMALL_BYTES and change.whole:
            self._whole.add(spent)

    def undo(self) -> None:
        """Restore the inputs."""
        if self._change is not None:
            self.changes.undo(self._change)
        self._change = None

    @property
    def is_small(self) -> bool:
        """Whether outputs are poisoned and compared whole each time."""
        return self._bytes <= SMALL_BYTES

    @property
    def is_change_known(self) -> bool:
        """Whether another kernel has had most of the pending change's values."""
        return self._change is not None and self._change.fresh is not None and self._change.fresh.is_known

    @property
    def pending(self) -> InputChange | None:
        """The change that has not been undone."""
        return self._change

    def agrees(self, returned: Any) -> bool:
        """Whether outputs are those of the pending change."""
        try:
            if self._change is not None:
                self._compare(self._attempt.outputs(returned), self._change)
        except WrongError:
            return False
        return True

    def disturb(self, returned: Any, *, fresh: bool) -> None:
        """Do as much other work as between calls on changed inputs, and leave inputs and outputs as they are."""
        values = self.changes.freshen(everything=True) if fresh and self.can_freshen else None
        change = self.changes.choose(whole=False) if values is None else InputChange(whole=False, fresh=values)
        if values is None:
            self.changes.apply(change, self._attempt.buffers.inputs, is_input=True)
        self._change = change
        outputs = self._attempt.outputs(returned)
        if values is None:
            self._known(outputs, change)
        self.undo()

    def _compare(self, outputs: Mapping[str, Any], change: InputChange, *, surely: bool = False) -> bool:
        """Whether outputs were judged; raises WrongError if they differ from those of the changed inputs."""
        if change.fresh is not None:
            return self._judge_fresh(outputs, change.fresh, surely=surely)
        if not self._known(outputs, change):
            with self.changes.expecting(change, self._attempt.accepted):
                self._judge(outputs, change)
        return True

    def _judge_fresh(self, outputs: Mapping[str, Any], fresh: FreshValues, *, surely: bool) -> bool:
        """Judge outputs of fresh values; whether it did so. Raises WrongError."""
        is_drawn = surely or not self.thorough or self.rng.random() < COSTLY_SHARE
        if fresh.is_costly and not is_drawn and not self._attempt.is_accepted(outputs):
            return False
        expected, variation, relaxed = fresh.expected(), self._variation, self._attempt.kernel.relaxed
        if expected is None:
            return False
        if isinstance(variation, Exchange) and fresh.slices is not None:
            got = take(outputs, variation.outputs, list(fresh.slices))
            if check(on_host(got), expected, relaxed).ok:
                return True
            # the probe may have found slices that are not independent: judge all outputs
            expected = self.expected_now(variation if fresh.is_emphasized else None)
        found = check(on_host(outputs), expected, relaxed)
        if not found.ok:
            reason = f"{found.reason} ({WHEN}, on values that the inputs did not have before)"
            raise WrongError(reason, replace(found, reason=reason))
        return True

    def expected_now(self, emphasized: Exchange | None = None) -> Expected:
        """Expected outputs of the present inputs. emphasized: axes of slices in which a few elements decide."""
        case = self._attempt.case
        expected = expect(case, Inputs(on_host(self._attempt.buffers.inputs)))
        return allow_lost(expected, case.dtype, emphasized.outputs) if emphasized else expected

    def _known(self, outputs: Mapping[str, Any], change: InputChange) -> bool:
        """Whether outputs have the bits expected of the changed inputs: all of them, or the changed and poisoned ones.

        On a GPU one launch compares them, with exchanged slices of the accepted outputs where they are.
        """
        accepted = self._attempt.accepted
        if outputs.keys() != accepted.keys():
            return False
        if not change.is_scaled and all(is_flat(array) and is_flat(outputs[name]) for name, array in accepted.items()):
            return not differ(self._pair(name, outputs[name], array, change) for name, array in accepted.items())
        with self.changes.expecting(change, accepted):
            if change.whole or any(
                isinstance(accepted[name], np.ndarray) != isinstance(one, np.ndarray) for name, one in outputs.items()
            ):
                return all(has_bits(array, accepted[name]) for name, array in outputs.items())
            return all(
                has_bits(got, want)
                for name, array in outputs.items()
                for got, want in zip(
                    self._parts(name, array, change), self._parts(name, accepted[name], change), strict=True
                )
            )

    def _parts(self, name: str, array: Any, change: InputChange) -> Iterator[Any]:
        """Slices of an output that were exchanged, and its poisoned parts."""
        variation = self._variation
        if isinstance(variation, Exchange) and change.pair:
            for start in change.pair:
                yield array[along(variation.outputs[name], slice(start, start + change.length))]
        flat = array.reshape(-1)
        for part in self._attempt.buffers.poisoned.get(name, ()):
            yield flat[part]

    def _pair(self, name: str, got: Any, wanted: Any, change: InputChange) -> Pair:
        """An output and the accepted one, of which exchanged slices are not yet exchanged, and what is compared."""
        found, exchanged = [], None
        if isinstance(self._variation, Exchange) and change.pair:
            axis = self._variation.outputs[name]
            found = [slices(got, axis, start, change.length) for start in change.pair]
            exchanged = moved(got, axis, *change.pair, change.length)
        poisoned = () if change.whole else self._attempt.buffers.poisoned.get(name, ())
        found += (run(part.start, min(part.stop, got.size)) for part in poisoned)
        return Pair(got, wanted, [run(0, got.size)] if change.whole else found, exchanged)

    def _judge(self, outputs: Mapping[str, Any], change: InputChange) -> None:
        """Judge outputs that differ from the expected ones in some bits; raises WrongError.

        Where bits differ from call to call, references take their share of the time, and other outputs are compared
        loosely.
        """
        if not self._judged.has_room(self._sampled_s) and self._are_parts_near(outputs, change):
            return
        begun = perf_counter()
        if not (self._is_loosely_right(outputs) and self._are_slices_right(outputs, change)):
            expected = self.expected_now() if change.pair or change.is_scaled else self._reference()
            found = check(on_host(outputs), expected, self._attempt.kernel.relaxed)
            if not found.ok:
                reason = f"{found.reason} ({WHEN})"
                raise WrongError(reason, replace(found, reason=reason))
        self._judged.add(perf_counter() - begun)

    def _are_parts_near(self, outputs: Mapping[str, Any], change: InputChange) -> bool:
        """Whether the changed and poisoned parts of outputs are near the expected ones."""
        accepted = self._attempt.accepted
        return outputs.keys() == accepted.keys() and all(
            is_near(*(self._joined(name, each[name], change) for each in (outputs, accepted))) for name in outputs
        )

    def _joined(self, name: str, array: Any, change: InputChange) -> Array:
        """The changed and poisoned parts of an output as one array on the host, or all of it."""
        if change.whole or self._bytes <= SMALL_BYTES:
            return to_numpy(array)
        parts = [part.reshape(-1) for part in self._parts(name, array, change)]
        joined: Array = module_of(array).concatenate(parts) if parts else array.reshape(-1)[:0]
        return to_numpy(joined)

    def _is_loosely_right(self, outputs: Mapping[str, Any]) -> bool:
        """Whether outputs are near the expected ones; of large ones with independent slices, only these."""
        if self._bytes > LOOSE_BYTES and isinstance(self._variation, Exchange):
            return True
        accepted = self._attempt.accepted
        return outputs.keys() == accepted.keys() and all(
            is_near(to_numpy(array), to_numpy(accepted[name])) for name, array in outputs.items()
        )

    def _are_slices_right(self, outputs: Mapping[str, Any], change: InputChange) -> bool:
        """Whether some slices, exchanged ones first, are right by their own reference, if they can have one."""
        variation = self._variation
        if not isinstance(variation, Exchange) or not change.pair:
            return True
        chosen = sorted({*change.pair, *(int(one) for one in self.rng.integers(0, variation.size, JUDGED - 2))})
        inputs = on_host(take(self._attempt.buffers.inputs, variation.inputs, chosen))
        every = Exchange(variation.inputs, variation.outputs, len(chosen))
        expected = expect_slices(self._attempt.case, every, inputs, range(len(chosen)))
        got = on_host(take(outputs, variation.outputs, chosen))
        return expected is not None and check(got, expected, self._attempt.kernel.relaxed).ok


WHEN = "in a timed sample"
"""When the audit found a fault, for messages."""
