"""Draws of fresh values that the implementations of a case share, so that one reference serves all of them.

A shared draw is a seed: the same values are drawn again for each implementation, and recognized by the digest of their
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from opgauge.harness.worker.bits import digest
from opgauge.harness.worker.verify import Expected
from opgauge.ops._core.op import Array

SHARED = 2
"""Draws of each kind that implementations share; later ones are each implementation's own."""


class Draw:
    """One draw, and the outputs that are expected for its values, if it is shared. users: kernels that had them."""

    def __init__(self, rng: np.random.Generator, *, is_shared: bool) -> None:
        self._rng = rng
        self._seed = int(rng.integers(2**63)) if is_shared else None
        self._digest = ""
        self._expected: Expected | None = None
        self.users: set[str] = set()

    def generator(self) -> np.random.Generator:
        """The generator of the values; one of a shared draw is new, and draws the same as the last one."""
        return self._rng if self._seed is None else np.random.default_rng(self._seed)

    def expect(self, values: Mapping[str, Array], compute: Callable[[], Expected | None]) -> Expected | None:
        """The expected outputs for values on the host; computed if they are not those of the last call."""
        if self._seed is None:
            return compute()
        found = digest(values)
        if found != self._digest:
            self._digest, self._expected = found, compute()
        return self._expected


class Draws:
    """The shared draws of one case, by kind and number."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, int], Draw] = {}

    def take(self, kind: str, number: int, user: str, rng: np.random.Generator) -> Draw:
        """The draw that `user`, a kernel, gets next: one of another kernel or a new one, and none twice."""
        if number >= SHARED:
            return Draw(rng, is_shared=False)
        found = self._shared.get((kind, number))
        if found is None or user in found.users:
            found = self._shared[kind, number] = Draw(rng, is_shared=True)
        found.users.add(user)
        return found
