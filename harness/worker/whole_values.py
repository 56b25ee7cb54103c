"""Fresh values of all inputs of a case, with a reference that is computed once for all implementations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from opgauge.harness.case.case import Case
from opgauge.harness.worker.emphasis import allow_lost
from opgauge.harness.worker.inputs import Inputs
from opgauge.harness.worker.verify import Expected, expect


class WholeValues:
    """Values of all inputs by name, and the outputs that are expected for them.

    is_emphasized: a few elements decide. users: kernels that had them.
    """

    def __init__(self, case: Case, values: Mapping[str, Any], *, is_emphasized: bool) -> None:
        self._case = case
        self.values = values
        self.is_emphasized = is_emphasized
        self.users: set[str] = set()

    @cached_property
    def expected(self) -> Expected:
        """The reference, computed when it is first wanted."""
        found = expect(self._case, Inputs(dict(self.values)))
        return allow_lost(found, self._case.dtype) if self.is_emphasized else found
