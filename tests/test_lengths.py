"""Lengths of files and functions, and the share of tests: figures that keep the project readable."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
MOST_LINES = {".py": 350, ".cu": 400, ".cuh": 400}
"""Lines of a file, by suffix."""
MOST_FUNCTION_LINES = 60
"""Lines of a function; of commands and compiled code, whose arguments have a line each, those of the body."""
MEDIAN_FUNCTION_LINES, P90_FUNCTION_LINES = 7, 20
"""Median and 90th percentile of the lines of all functions."""
MOST_POSITIONAL = 10
"""Positional parameters of a function outside compiled code and commands."""
LEAST_TEST_SHARE = 0.53
"""Lines of tests per line of harness, ops and web; the aim is 0.6, and this figure may only grow."""


class Function(NamedTuple):
    """A function's file and name, its lines, those of its body, and its number of positional parameters."""

    path: str
    name: str
    lines: int
    body: int
    positional: int


@cache
def tracked() -> tuple[str, ...]:
    """Files of the repository, of the suffixes that have a limit, without generated migrations."""
    patterns = [f"*{suffix}" for suffix in MOST_LINES]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    return tuple(path for path in listed if "migrations/versions" not in path and (ROOT / path).is_file())


@cache
def line_count(path: str) -> int:
    """Lines of a file."""
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def functions_of(path: str, text: str) -> Iterator[Function]:
    """Functions of a source, nested ones too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = len(node.body) > 1 and ast.get_docstring(node) is not None
            first = node.body[1 if documented else 0].lineno
            end = node.end_lineno or node.lineno
            positional = len(node.args.posonlyargs) + len(node.args.args)
            yield Function(path, node.name, end - node.lineno + 1, end - first + 1, positional)


@cache
def functions() -> tuple[Function, ...]:
    """All functions of the repository."""
    paths = [path for path in tracked() if path.endswith(".py")]
    return tuple(one for path in paths for one in functions_of(path, (ROOT / path).read_text(encoding="utf-8")))


def has_long_signature(path: str) -> bool:
    """Whether functions of a file may have many parameters: compiled code, and commands with their options."""
    return Path(path).name.startswith("jit") or path.startswith("harness/cli/")


def is_too_long(function: Function) -> bool:
    """Whether a function has more lines than it may have."""
    counted = function.body if has_long_signature(function.path) else function.lines
    return counted > MOST_FUNCTION_LINES


def takes_too_many(function: Function) -> bool:
    """Whether a function has more positional parameters than it may have."""
    return function.positional > MOST_POSITIONAL and not has_long_signature(function.path)


def long_files() -> set[str]:
    """Files with more lines than their suffix allows."""
    return {path for path in tracked() if line_count(path) > MOST_LINES[Path(path).suffix]}


def test_files_are_short() -> None:
    """A Python file has at most 350 lines, a CUDA file 400."""
    assert not sorted(long_files())


def test_functions_are_short() -> None:
    """A function has at most 60 lines."""
    assert not [f"{one.path}: {one.name} has {one.lines}" for one in functions() if is_too_long(one)]


def test_most_functions_are_very_short() -> None:
    """The median function has at most 7 lines, nine in ten have at most 20."""
    lines = [one.lines for one in functions() if not one.path.startswith("tests/")]
    assert median(lines) <= MEDIAN_FUNCTION_LINES
    assert quantiles(lines, n=10)[-1] <= P90_FUNCTION_LINES


def test_functions_take_few_positional_arguments() -> None:
    """At most ten, except in compiled code, which has no keywords, and in commands, whose parameters are options."""
    assert not [f"{one.path}: {one.name} takes {one.positional}" for one in functions() if takes_too_many(one)]


def test_tests_grow_with_the_sources() -> None:
    """The lines of the tests per line of the sources do not fall."""
    lines = dict.fromkeys(("harness", "ops", "tests", "web"), 0)
    for path in tracked():
        folder = path.partition("/")[0]
        if path.endswith(".py") and folder in lines:
            lines[folder] += line_count(path)
    sources = sum(lines.values()) - lines["tests"]
    assert lines["tests"] >= LEAST_TEST_SHARE * sources


def planted(count: int, parameters: str = "") -> str:
    """A function with `count` lines."""
    return f"def planted({parameters}):\n" + "    pass\n" * (count - 1)


@pytest.mark.parametrize(
    ("path", "text", "is_found"),
    [
        ("web/a.py", planted(60), False),
        ("web/a.py", planted(61), True),
        ("web/a.py", "class A:\n    async " + planted(61).replace("\n", "\n    "), True),
        ("ops/a/jit.py", planted(61), False),
        ("ops/a/jit_rows.py", planted(62), True),
        ("harness/cli/a.py", planted(62), True),
        ("harness/cli/a.py", "def planted(\n" + "    a,\n" * 60 + "):\n    '''Doc.'''\n    pass\n", False),
        ("ops/a/cpu.py", planted(2, "a, b, c, d, e, f, g, h, i, /, j, *, k"), False),
        ("ops/a/cpu.py", planted(2, "a, b, c, d, e, f, g, h, i, /, j, k"), True),
        ("ops/a/jit.py", planted(2, "a, b, c, d, e, f, g, h, i, j, k"), False),
    ],
)
def test_a_planted_function_is_found(path: str, text: str, is_found: bool) -> None:
    """Functions that are too long or take too many arguments are found, others are not."""
    (found,) = functions_of(path, text)
    assert (is_too_long(found) or takes_too_many(found)) is is_found


def test_a_planted_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one line too many is found, by its suffix."""
    counts = {"a.py": 350, "b.py": 351, "c.cu": 400, "d.cuh": 401}
    monkeypatch.setattr("tests.test_lengths.tracked", lambda: tuple(counts))
    monkeypatch.setattr("tests.test_lengths.line_count", counts.__getitem__)
    assert long_files() == {"b.py", "d.cuh"}
