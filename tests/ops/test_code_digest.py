"""The digest of a reference's code: it changes with all that the reference reaches, and with nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from opgauge.ops._function.code_digest import code_digest

HELPER = """
import functools
import numpy as np

TABLE = {"half": 0.5, "kinds": ("a", "b")}
WEIGHTS = np.arange(3.0)

def inner(x, k=2):
    return x * k

def traced(function):
    @functools.wraps(function)
    def wrapper(*given):
        return function(*given)
    return wrapper

@functools.lru_cache
def length(n):
    return n + 1

@traced
def wrapped(x):
    return x - 4

def make(gain):
    return lambda x: x * gain

class Motor:
    @staticmethod
    def idle(x):
        return x - 20

class Engine(Motor):
    def __init__(self, gain):
        self.gain = gain

    def apply(self, x):
        return x / self.gain

amplify = make(3.0)
partly = functools.partial(inner, k=5)
engine = Engine(7.0)
"""
REFERENCE = '''
import helper
from helper import TABLE, WEIGHTS, engine, length, partly

SCALE = 11

def reference(x):
    """Text."""
    def later():
        import helper as again
        return again.amplify(x)
    engine.apply(x)
    engine.idle(x)
    return later() + helper.wrapped(x) + partly(x) + length(len(x)) * TABLE["half"] * SCALE + WEIGHTS

def unrelated(x):
    return x
'''
CHANGES = [
    ("x * k", "x + k"),
    ("k=2", "k=3"),
    ("0.5", "0.25"),
    ('"b"', '"c"'),
    ("arange(3.0)", "ones(3)"),
    ("n + 1", "n + 2"),
    ("x - 4", "x - 5"),
    ("x * gain", "x + gain"),
    ("make(3.0)", "make(3.5)"),
    ("k=5", "k=6"),
    ("x / self.gain", "x * self.gain"),
    ("Engine(7.0)", "Engine(8.0)"),
    ("x - 20", "x - 21"),
    ("SCALE = 11", "SCALE = 12"),
    ("later() +", "later() -"),
]
"""Edits of either file that change what the reference computes."""
NO_CHANGES = [
    ('"""Text."""', '"""Other text."""'),
    ("SCALE = 11", "# a comment\n\n\nSCALE = 11"),
    ("def unrelated(x):\n    return x", "def unrelated(x):\n    return 2 * x"),
]
"""Edits that change nothing of it."""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the modules again."""
    for name in ("helper", "hook"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def digest_of(folder: Path, old: str = "", new: str = "") -> str:
    """Digest of the reference after an edit of both files."""
    for name, text in {"helper": HELPER, "hook": REFERENCE}.items():
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(folder / f"{name}.py")
        changed = text.replace(old, new) if old else text
        exec(compile(changed, module.__file__, "exec"), vars(module))  # noqa: S102
    return code_digest(sys.modules["hook"].reference)


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_all_that_a_reference_reaches_counts(tmp_path: Path, old: str, new: str) -> None:
    """Helpers, defaults, constants, closures, partial arguments, methods, attributes and wrapped functions."""
    assert digest_of(tmp_path) != digest_of(tmp_path, old, new)


@pytest.mark.parametrize(("old", "new"), NO_CHANGES)
def test_nothing_else_counts(tmp_path: Path, old: str, new: str) -> None:
    """The folder, docstrings, comments and other functions are no change."""
    assert digest_of(tmp_path) == digest_of(tmp_path / "elsewhere", old, new)
