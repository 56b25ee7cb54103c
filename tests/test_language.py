"""The language of the sources: docstrings, names and comments keep to the rules that a test can hold."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("harness", "ops", "web", "tools")
FORBIDDEN_STARTS = {"Of", "As", "Those", "That", "What", "Who", "Whom", "Whose", "Where", "Such"}
"""First words that make a docstring the continuation of a sentence nobody wrote."""
RETIRED = (
    "bringers?",
    "complaints?",
    "excuses?",
    "flipped",
    "mail",
    "multipliers",
    "pass_pixels",
    "pass_strips",
    "rulers?",
    "settlers?",
    "settles?",
    "take_turns",
    "tickets?",
    "trespass(?:es)?",
    "under way",
    "whoever",
    "workshops?",
)
"""Words of a private language; CONTRIBUTING.md has the words to use instead."""
RETIRED_WORD = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(RETIRED)})(?![a-z])", re.IGNORECASE)
STORED_NAME = re.compile(r"(?:^[\"']?|\.)ruler(?=[\"']?$)|\bruler(?=: )")
"""Field of stored results, which old databases and files have: only as a name, a key, or an entry of a docstring."""
OPERATORS = {path.name for path in (ROOT / "ops").iterdir()} | {"nvbench", "plotly"}
"""Names that begin a docstring in lower case."""
GENERIC = {"__init__", "__main__", "app", "jit", "cpu", "cuda", "torch", "baseline", "op", "base", "env"}
"""Module names that a framework or the layout of an op's folder sets."""


@cache
def python_files() -> tuple[Path, ...]:
    """Python sources of the package and its tools."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(path for path in found if "versions" not in path.parts and "__pycache__" not in path.parts)


@cache
def cuda_files() -> tuple[Path, ...]:
    """CUDA sources."""
    return tuple(path for pattern in ("*.cu", "*.cuh") for path in sorted((ROOT / "ops").rglob(pattern)))


@cache
def parsed(path: Path) -> ast.Module:
    """Syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    """Path from the root of the tree."""
    return path.relative_to(ROOT).as_posix()


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring: of the module, classes, functions, and constants."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(parsed(path)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
    for _, doc in constants(path):
        if doc is not None:
            yield doc.lineno, str(ast.literal_eval(doc)).strip()


def constants(path: Path) -> Iterator[tuple[ast.stmt, ast.Constant | None]]:
    """Public constants of a module, each with its doc line; neighbours share the line below the last of them."""
    waiting: list[ast.stmt] = []
    for node, following in pairwise([*parsed(path).body, ast.Pass()]):
        if not _is_constant(node):
            continue
        waiting.append(node)
        value = following.value if isinstance(following, ast.Expr) else None
        if _is_constant(following) and following.lineno <= (node.end_lineno or 0) + 1:
            continue
        doc = value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
        yield from ((one, doc) for one in waiting)
        waiting = []


def _is_constant(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [name for target in targets for name in _names(target)]
    return bool(names) and all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in names)


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple):
        return [name for item in target.elts for name in _names(item)]
    return [target.id] if isinstance(target, ast.Name) else []


def breaks_words(path: Path) -> list[str]:
    """Retired words in comments, names, docstrings and messages."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        kept = (tokenize.COMMENT, tokenize.STRING, tokenize.NAME)
        parts = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type in kept]
        lines = [(token.start[0], token.string) for token in parts]
    else:
        lines = list(enumerate(text.splitlines(), 1))
    return [
        f"{relative(path)}:{line}: {word}"
        for line, part in lines
        for word in RETIRED_WORD.findall(_split(STORED_NAME.sub("", part)))
    ]


def _split(text: str) -> str:
    """Text with the words of names apart: `takeTurns`, `take_turns` and `TAKE` hold the word `take`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[a-z])_(?=[a-z])", " ", text)


def breaks_starts(path: Path) -> list[str]:
    """Docstrings that begin with a forbidden word or in lower case."""
    found = []
    for line, text in docstrings(path):
        first = re.split(r"[\s,:;.(]", text.strip(), maxsplit=1)[0]
        is_name = "_" in first or first in OPERATORS or text.startswith(f"{first}:") or first == path.parent.name
        if first in FORBIDDEN_STARTS or (first[:1].islower() and not is_name):
            found.append(f"{relative(path)}:{line}: {text.splitlines()[0][:80]}")
    return found


def breaks_constants(path: Path) -> list[str]:
    """Public constants without a doc line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{relative(path)}:{node.lineno}: {lines[node.lineno - 1][:60]}"
        for node, doc in constants(path)
        if doc is None and "#" not in lines[(node.end_lineno or node.lineno) - 1]
    ]


def breaks_classes(path: Path) -> list[str]:
    """Public classes whose name another module defines too."""
    owners = classes()
    return [
        f"{relative(path)}: class {node.name} is in {', '.join(sorted(owners[node.name] - {relative(path)}))} too"
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and len(owners[node.name]) > 1
    ]


@cache
def classes() -> dict[str, set[str]]:
    """Files by the name of the public classes that they define."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in python_files():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(relative(path))
    return found


def breaks_modules(path: Path) -> list[str]:
    """Modules whose name has nothing to do with their docstring or with the names that they define."""
    if path.stem in GENERIC:
        return []
    names = (node.name for node in parsed(path).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    content = " ".join([ast.get_docstring(parsed(path)) or "", *names]).lower()
    words = [word for word in path.stem.lower().split("_") if word]
    return [] if any(word[:5].rstrip("esy") in content for word in words) else [f"{relative(path)}: {path.stem}"]


RULES = {
    "words": (breaks_words, (*python_files(), *cuda_files())),
    "starts": (breaks_starts, python_files()),
    "constants": (breaks_constants, python_files()),
    "classes": (breaks_classes, python_files()),
    "modules": (breaks_modules, python_files()),
}


@pytest.mark.parametrize("rule", RULES)
def test_sources_keep_to_the_rule(rule: str) -> None:
    """No file breaks it."""
    breaks, files = RULES[rule]
    assert not [text for path in files for text in breaks(path)]


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("words", '"""A workshop."""\n'),
        ("words", '"""A."""\n\n# a ticket each\n'),
        ("words", '"""A."""\n\n# the ruler moved\n'),
        ("words", '"""A."""\n\ndef mail_bytes() -> None:\n    """Do."""\n'),
        ("starts", '"""Where it is."""\n'),
        ("starts", '"""A."""\n\nLEAST = 3\n"""of a size."""\n'),
        ("constants", '"""A."""\n\nLEAST = 3\n'),
        ("modules", '"""Apples."""\n\ndef pears() -> None:\n    """Do."""\n'),
    ],
)
def test_a_planted_fault_is_found(rule: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule finds a file that breaks it."""
    monkeypatch.setattr("tests.test_language.ROOT", tmp_path)
    path = tmp_path / "example.py"
    path.write_text(source, encoding="utf-8")
    assert RULES[rule][0](path)
