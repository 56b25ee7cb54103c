"""The tool that measures what the checks cost."""

from __future__ import annotations

from functools import reduce
from importlib import import_module

import pytest

from tools.audit_cost import TIMED, WORKER


@pytest.mark.parametrize("name", TIMED)
def test_functions_that_are_timed_exist(name: str) -> None:
    """Each name leads to a function of the worker, where the worker's own code finds it."""
    module, path = name.split(":")
    assert callable(reduce(getattr, path.split("."), import_module(WORKER + module)))
