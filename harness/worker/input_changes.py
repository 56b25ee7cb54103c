"""Changes of a case's inputs between samples, and the resulting expected outputs.

Exchanged slices (see `variation`) and scaled inputs move or multiply known outputs. Fresh values occurred in no earlier
call, so no earlier result fits them: those of a few slices, or of all inputs, of which a few slices are then judged by
a reference of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from opgauge.harness.case.case import Case
from opgauge.harness.worker.draws import Draw, Draws
from opgauge.harness.worker.emphasis import allow_lost, emphasize, emphasize_all, write_inputs
from opgauge.harness.worker.fresh_values import renew, renewed, toss
from opgauge.harness.worker.inputs import Inputs, on_host, with_derived
from opgauge.harness.worker.regions import exchanging, is_flat, perform
from opgauge.harness.worker.variation import (
    LARGE_SLICE,
    Exchange,
    Scaling,
    Variation,
    along,
    expect_slices,
    slice_elements,
    take,
)
from opgauge.harness.worker.verify import Expected, expect
from opgauge.ops import find_op
from opgauge.ops._core.backend import to_numpy
from opgauge.ops._core.op import Array

MOST_EXCHANGED = 64
"""Most slices that are exchanged with as many others."""
LARGEST_SLICES = 1 << 17
"""Most bytes of exchanged slices, if single slices are smaller."""
FRESH_SLICES = 2
"""Slices that get fresh values, and slices that are judged if all inputs have fresh values; one if slices are large."""
MOST_KNOWN = 4
"""Slices per slice of a shared draw, below which another kernel has had most of the values."""
MOST_FRESH = 1 << 20
"""Most elements of all inputs whose fresh values are always judged, if the whole reference is needed."""


@dataclass(frozen=True)
class FreshValues:
    """Values that inputs never had before.

    slices: judged slices; None: the whole outputs are judged. is_whole: all inputs changed, not only the slices.
    expected: computes the expected slices, or whole outputs; None if the op refuses so few slices. is_emphasized: a
    few elements of each slice decide. is_costly: a reference of all outputs takes long. is_known: another kernel of
    this process has had most of the values, and could have remembered their outputs.
    """

    slices: Sequence[int] | None
    is_whole: bool
    expected: Callable[[], Expected | None]
    is_emphasized: bool = False
    is_costly: bool = False
    is_known: bool = False


@dataclass(frozen=True)
class InputChange:
    """A change of the inputs. pair: first slices of two exchanged ranges of `length`."""

    whole: bool
    pair: tuple[int, int] | None = None
    length: int = 0
    is_scaled: bool = False
    fresh: FreshValues | None = None


class InputChanges:
    """Chooses, applies and undoes changes of the inputs of one case, in place."""

    def __init__(
        self,
        case: Case,
        variation: Variation | None,
        inputs: Mapping[str, Any],
        untouched: Mapping[str, Any],
        rng: np.random.Generator,
        *,
        emphasized: bool,
        draws: Draws,
        user: str,
        is_random: bool = True,
    ) -> None:
        """Change `inputs`, whose values `untouched` has.

        emphasized: fresh values may be such that a few elements decide (see `emphasis`). draws: those of the case's
        implementations. user: the kernel. is_random: draw fresh values by a new generator each time, not by `rng`.
        """
        self.variation = variation
        self._case = case
        self._inputs = inputs
        self._untouched = untouched
        self._rng = rng
        self.is_emphasized = emphasized
        self._derives: frozenset[str] | None = None
        self._draws = draws
        self._user = user
        self._is_random = is_random
        self._drawn: Counter[str] = Counter()
        self._elements = sum(int(array.size) for array in inputs.values())

    def choose(self, *, whole: bool) -> InputChange:
        """A random change of known values."""
        variation = self.variation
        if isinstance(variation, Exchange):
            half = variation.size // 2
            slice_bytes = max(1, sum(int(self._inputs[name].nbytes) for name in variation.inputs))
            most = max(1, min(half, MOST_EXCHANGED, LARGEST_SLICES * variation.size // slice_bytes))
            length = int(self._rng.integers(1, most + 1))
            first = int(self._rng.integers(0, variation.size - 2 * length + 1))
            second = int(self._rng.integers(first + length, variation.size - length + 1))
            return InputChange(whole, (first, second), length)
        return InputChange(whole, is_scaled=isinstance(variation, Scaling) and whole)

    def apply(self, change: InputChange, arrays: Mapping[str, Any], *, is_input: bool) -> None:
        """Change inputs, or the expected outputs; not for fresh values."""
        variation = self.variation
        if isinstance(variation, Exchange) and change.pair:
            axes = variation.inputs if is_input else variation.outputs
            _exchange(((arrays[name], axis) for name, axis in axes.items() if name in arrays), change)
        elif isinstance(variation, Scaling) and change.is_scaled:
            factors = dict.fromkeys(variation.inputs, float(variation.factor)) if is_input else variation.outputs
            for name, factor in factors.items():
                if name in arrays:
                    _multiply(arrays[name], factor)

    def undo(self, change: InputChange) -> None:
        """Restore the inputs."""
        if change.fresh is not None:
            self._put_back(change.fresh)
        elif isinstance(self.variation, Scaling) and change.is_scaled:
            for name in self.variation.inputs:
                _multiply(self._inputs[name], 1 / self.variation.factor)
        else:
            self.apply(change, self._inputs, is_input=True)

    @contextmanager
    def expecting(self, change: InputChange, accepted: Mapping[str, Any]) -> Iterator[None]:
        """Context in which the accepted outputs are those of the changed inputs; not for fresh values."""
        self.apply(change, accepted, is_input=False)
        try:
            yield
        finally:
            if isinstance(self.variation, Scaling) and change.is_scaled:
                for name, factor in self.variation.outputs.items():
                    _multiply(accepted[name], 1 / factor)
            else:
                self.apply(change, accepted, is_input=False)

    def freshen(self, *, everything: bool) -> FreshValues | None:
        """Write fresh values into a few slices of the inputs, or into all; None if that is impossible."""
        variation = self.variation
        if not isinstance(variation, Exchange):
            return self._freshen_undivided() if self._elements <= MOST_FRESH else self._freshen_large()
        return self._freshen_everything(variation) if everything else self._freshen_slices(variation)

    def draw(self, kind: str) -> Draw:
        """The next draw of a kind."""
        if self._is_random:
            self._rng = np.random.default_rng()  # no kernel knows its state
        number = self._drawn[kind]
        self._drawn[kind] += 1
        return self._draws.take(kind, number, self._user, self._rng)

    @property
    def is_sampling_unnoticed(self) -> bool:
        """Whether all fresh values so far were such that a few elements decide, or none: see `fresh_values`."""
        return self._drawn.keys() == {"emphasized"}

    def _choose(self, variation: Exchange, rng: np.random.Generator) -> list[int]:
        """Slices that get fresh values, or are judged."""
        most = 1 if slice_elements(self._case, variation) > LARGE_SLICE else FRESH_SLICES
        return sorted(int(one) for one in rng.choice(variation.size, min(most, variation.size), replace=False))

    def _derived(self, variation: Exchange | None = None) -> frozenset[str]:
        """Inputs that the op derives from others, which would have to be derived again as a whole."""
        if self._derives is None:
            op = find_op(self._case.op)
            part = take(self._inputs, variation.inputs, [0]) if variation and op.derive else self._inputs
            self._derives = frozenset(op.derive(Inputs(on_host(part)).wide, self._case.params) if op.derive else ())
        return self._derives

    def _freshen_slices(self, variation: Exchange) -> FreshValues:
        draw = self.draw(f"slices, {self.is_emphasized}")
        rng = draw.generator()
        chosen = self._choose(variation, rng)
        kept = on_host(take(self._inputs, variation.inputs, chosen))
        case, axes = self._case, variation.inputs
        is_emphasized = self.is_emphasized and rng.random() < 1 / 2
        if is_emphasized:
            changed = emphasize(case, kept, axes, rng)
        else:
            values = {name: renewed(array, rng) if name in axes else array for name, array in kept.items()}
            changed = dict(with_derived(case, values, axes).values)
        write_inputs(self._inputs, variation, chosen, changed)
        part = Exchange(axes, variation.outputs, len(chosen))

        def expected() -> Expected | None:
            found = draw.expect(changed, lambda: expect_slices(case, part, changed, range(len(chosen))))
            return allow_lost(found, case.dtype, part.outputs) if found and is_emphasized else found

        return FreshValues(chosen, is_whole=False, expected=expected, is_emphasized=is_emphasized)

    def _freshen_everything(self, variation: Exchange) -> FreshValues:
        """Write fresh values into all inputs; only those of the judged slices, and of what slices share, may be shared.

        Bounds may not hold for other slices beside inputs that are derived.
        """
        draw, axes, derived = self.draw("everything"), variation.inputs, self._derived(variation)
        rng = draw.generator()
        chosen, is_scaled = self._choose(variation, rng), toss(rng)
        drawn = {name: array for name, array in self._inputs.items() if name not in derived}
        renew((array for name, array in drawn.items() if name not in axes), rng, is_scaled=is_scaled)
        values = on_host(take(self._inputs, axes, chosen))
        values |= {name: np.array(values[name], order="C") for name in axes}
        renew((values[name] for name in axes if name in drawn), rng, is_scaled=is_scaled)
        values = dict(with_derived(self._case, values, axes).values)
        renew((array for name, array in drawn.items() if name in axes), self._rng, is_scaled=is_scaled)
        write_inputs(self._inputs, variation, chosen, values)
        part, is_judged = Exchange(axes, variation.outputs, len(chosen)), derived <= axes.keys()

        def expected() -> Expected | None:
            find = partial(expect_slices, self._case, part, values, range(len(chosen)))
            return draw.expect(values, find) if is_judged else None

        is_known = len(draw.users) > 1 and MOST_KNOWN * len(chosen) > variation.size
        return FreshValues(chosen, is_whole=True, expected=expected, is_known=is_known)

    def _freshen_undivided(self) -> FreshValues:
        """Write fresh values into all inputs, the first time such that a few elements decide.

        Each needs a reference of the whole case, so emphasized inputs have no call of their own.
        """
        case, is_emphasized = self._case, self.is_emphasized and not self._drawn
        draw = self.draw("emphasized" if is_emphasized else "undivided")
        values = self._draw_whole(draw.generator(), emphasized=is_emphasized)
        write_inputs(self._inputs, None, [], values)

        def expected() -> Expected | None:
            found = draw.expect(values, lambda: expect(case, Inputs(dict(values))))
            return allow_lost(found, case.dtype) if found and is_emphasized else found

        is_known = len(draw.users) > 1
        return FreshValues(None, is_whole=True, expected=expected, is_emphasized=is_emphasized, is_known=is_known)

    def _freshen_large(self) -> FreshValues:
        """Write fresh values into all inputs where they lie; bounds may not hold beside inputs that are derived."""
        derived, rng = self._derived(), self.draw("large").generator()
        renew((array for name, array in self._inputs.items() if name not in derived), rng, is_scaled=toss(rng))

        def expected() -> Expected | None:
            return None if derived else expect(self._case, Inputs(on_host(self._inputs)))

        return FreshValues(None, is_whole=True, expected=expected, is_costly=True)

    def _draw_whole(self, rng: np.random.Generator, *, emphasized: bool) -> Mapping[str, Array]:
        values = {name: to_numpy(array).copy() for name, array in self._inputs.items()}
        if emphasized:
            return emphasize_all(self._case, values, rng)
        renew(values.values(), rng, is_scaled=toss(rng))
        return dict(with_derived(self._case, values).values)

    def restore(self) -> None:
        """Write the original values into all inputs."""
        write_inputs(self._inputs, None, [], self._untouched)

    def _put_back(self, fresh: FreshValues) -> None:
        if fresh.is_whole or fresh.slices is None or not isinstance(self.variation, Exchange):
            self.restore()
            return
        slices = list(fresh.slices)
        values = take(self._untouched, self.variation.inputs, slices)
        write_inputs(self._inputs, self.variation, slices, values)


def _exchange(along_axes: Iterable[tuple[Any, int]], change: InputChange) -> None:
    """Exchange the two ranges of slices of each array along its axis."""
    if change.pair is None:
        return
    (first, second), length, operations = change.pair, change.length, []
    for array, axis in along_axes:
        if is_flat(array):
            operations.append(exchanging(array, axis, first, second, length))
            continue
        here = array[along(axis, slice(first, first + length))]
        there = array[along(axis, slice(second, second + length))]
        beside = here.copy()
        here[...] = there
        there[...] = beside
    perform(operations)


def _multiply(array: Any, factor: float) -> None:
    """Multiply in place; integers exactly, if the factor is an integer or divides them."""
    if array.dtype.kind in "iu":
        if abs(factor) >= 1:
            array *= array.dtype.type(int(factor))
        else:
            array //= array.dtype.type(round(1 / factor))
    else:
        array *= array.dtype.type(factor)
