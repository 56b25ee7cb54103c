"""Documentation: generated parts are current, links work, the tutorial runs, the glossary names what exists."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.commandline import run_here
from tools.documentation import COMMANDS, PERFORMANCE, help_texts, insert, manual, performance

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
PINNED = (ROOT / "ci" / "gitlab.yml", ROOT / ".github" / "workflows" / "gate.yml")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = ROOT / "docs" / "tutorial.md"


def page_name(path: Path) -> str:
    """Path from the root of the tree."""
    return path.relative_to(ROOT).as_posix()


def test_tables_of_performance_are_current() -> None:
    """`make docs` would change nothing in docs/performance.md."""
    text = PERFORMANCE.read_text(encoding="utf-8")
    assert insert(text, performance()) == text, "run `make docs`"


def test_the_manual_is_current() -> None:
    """`make docs` would change nothing in docs/commands.md."""
    assert COMMANDS.read_text(encoding="utf-8") == manual(), "run `make docs`"


def test_every_command_has_an_example() -> None:
    """Each command's help shows how it is called, by its own name."""
    for name, text in help_texts():
        assert re.search(rf"Example: .*{name}\b", text), name


def test_the_version_is_the_same_everywhere() -> None:
    """pyproject.toml, the topmost heading of CHANGELOG.md, what pages and CI files pin, a tag of this commit.

    What is tagged is released: its heading has a date.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    heading = re.search(r"^## (\S+), (.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == version
    pinned = re.compile(r"(?:\bv|opgauge==)(\d+\.\d+\.\d+)\b")
    for file in (ROOT / "README.md", ROOT / "docs" / "gate.md", *PINNED):
        assert pinned.search(file.read_text(encoding="utf-8")), f"{page_name(file)} names no version"
    named = {tag for file in (*PAGES, *PINNED) for tag in pinned.findall(file.read_text(encoding="utf-8"))}
    assert named == {version}
    command = ["git", "-C", str(ROOT), "tag", "--points-at", "HEAD", "v*"]
    tagged = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    assert tagged in ([], [f"v{version}"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d" if tagged else r"unreleased|\d{4}-\d\d-\d\d", heading[2])


def test_a_missing_mark_is_noticed() -> None:
    """A generated part that the page does not mark is an error."""
    with pytest.raises(ValueError, match="no part is marked commands"):
        insert("# opgauge\n", {"commands": "x"})


def test_readme_is_short_and_begins_with_the_two_commands() -> None:
    """At most 180 lines; `make run` and `make test` before anything else."""
    assert len(README.splitlines()) <= 180
    assert README.index("make run") < README.index("make test") < README.index("## A first case")


@pytest.mark.parametrize("folder", ["kernels"])
def test_kernel_pages_are_short_and_complete(folder: str) -> None:
    """At most 80 lines each, and every op is on a page."""
    from opgauge.ops import all_ops

    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    texts = [path.read_text(encoding="utf-8") for path in pages]
    assert all(len(text.splitlines()) <= 80 for text in texts)
    titles = " ".join(text.partition("\n")[0] for text in texts)
    words = re.findall(r"\w+", titles)
    assert {op.name for op in all_ops()} <= set(words)


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links_and_paths_of_a_page_exist(path: Path) -> None:
    """Relative links have a target and anchors a heading; files of this tree that are named in code exist."""
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked), target
    for named in re.findall(r"`((?:docs|harness|ops|web|tests|tools|cases)/[\w./-]+\.\w+)`", text):
        if path.name != "CHANGELOG.md":
            assert (ROOT / named).exists(), named


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_site() -> None:
    """The navigation of mkdocs.yml has each page of docs/ once."""
    listed = re.findall(r"([\w/]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    )


@cache
def defined_names() -> frozenset[str]:
    """Names of all classes, functions and constants of the sources, and of functions in CUDA headers."""
    found: set[str] = set()
    for folder in ("harness", "ops", "web"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
        for path in (ROOT / folder).rglob("*.cuh"):
            found |= set(re.findall(r"\b([a-z_]+)\s*\(", path.read_text(encoding="utf-8")))
    return frozenset(found)


def test_the_glossary_names_what_exists() -> None:
    """Each word once, with a name of the sources."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([^`]+)` \|$", text, re.MULTILINE)
    assert len(rows) == sum(line.startswith("|") for line in text.splitlines()) - 2 >= 25
    words = [word for word, _, _ in rows]
    assert len(set(words)) == len(words)
    assert {name for _, _, name in rows} <= defined_names()


def commands() -> Iterator[tuple[str, list[str]]]:
    """Commands of the tutorial and the lines that it shows of their output."""
    for block in re.findall(r"^```console\n(.*?)^```", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        command, *lines = block.removeprefix("$ ").splitlines()
        yield command, lines


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    """Every command works, in order, and prints the lines shown; `…` stands for anything."""
    case = re.search(r"```yaml\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert case is not None
    (tmp_path / "mine.yaml").write_text(case[1], encoding="utf-8")
    ran = 0
    for command, lines in commands():
        program, *arguments = shlex.split(command)
        assert program == "opgauge"
        done = run_here(*arguments, cwd=tmp_path, variables={})
        printed = [_plain(line) for line in (done.stdout + done.stderr).splitlines()]
        for line in lines:
            wanted = ".*".join(map(re.escape, _plain(line).split("…")))
            assert any(re.fullmatch(wanted, one) for one in printed), f"{command}: {line}\n{done.stdout}{done.stderr}"
        ran += 1
    assert ran >= 6


def _plain(line: str) -> str:
    return " ".join(line.split())
