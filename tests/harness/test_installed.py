"""Where a project's modules are imported from: the tree, a folder that its build made, never an installed copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from opgauge.harness.errors import ConfigurationError
from opgauge.harness.project.configuration import read_project

PACKAGE = "packages/fast sum/fastsum/__init__.py"
PROGRAM = (
    "import sys; from pathlib import Path; from opgauge.harness.project import active;"
    "active.choose(active.ProjectChoice(Path(sys.argv[1])));"
    "tree = Path(sys.argv[2]) if sys.argv[2:] else None; active.build(tree); active.load(tree)"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a package in a subfolder, and its only commit checked out in `base` too."""
    top = tmp_path / "mono répo"
    write(top / PACKAGE, "value = 'first'\n")
    write(top / "packages/fast sum/pyproject.toml", '[project]\nname = "Fast_Sum"\n')
    write(top / "hook.py", "import fastsum\nprint(fastsum.value)\n")
    write(top / "opgauge.toml", 'ops = ["hook.py"]\n')
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    git(top, "worktree", "add", "-q", str(tmp_path / "base"))
    return top


@pytest.mark.parametrize("recorded", [True, False])
def test_an_installed_copy_is_not_the_base(tree: Path, tmp_path: Path, recorded: bool) -> None:
    """It is the same for both trees: refused whether pip recorded the folder, or the name alone is known."""
    site = tmp_path / "site-packages"
    write(site / "fastsum/__init__.py", "value = 'installed'\n")
    name = "another" if recorded else "fast_sum"
    write(site / f"{name}-1.0.dist-info/RECORD", "fastsum/__init__.py,,\n")
    if recorded:
        url = {"url": (tree / "packages/fast sum").as_uri(), "dir_info": {}}
        write(site / f"{name}-1.0.dist-info/direct_url.json", json.dumps(url))
    code, said = load(tree, tmp_path / "base", path=site)
    assert code != 0
    assert "module fastsum was imported from" in said
    assert "uninstall it and name the package's folder in `path`" in said
    assert load(tree, path=site) == (0, "installed\n")
    write(tree / "opgauge.toml", 'ops = ["hook.py"]\npath = ["packages/fast sum"]\n')
    write(tmp_path / "base" / "opgauge.toml", 'ops = ["hook.py"]\npath = ["packages/fast sum"]\n')
    assert load(tree, tmp_path / "base", path=site) == (0, "first\n")


@pytest.mark.parametrize(
    ("text", "suffix", "key", "noted"),
    [
        ("value = 'older'\n", ".py", "", True),
        ("value = 'first'\n", ".py", "", False),
        ("value = 'older'\n", ".py", 'path = ["packages/fast sum"]\n', False),
        ("", EXTENSION_SUFFIXES[0], "", True),
        ("", EXTENSION_SUFFIXES[0], 'build = "true"\n', False),
    ],
)
def test_a_run_of_an_older_installed_copy_says_so(
    tree: Path, tmp_path: Path, text: str, suffix: str, key: str, noted: bool
) -> None:
    """Its code is not the commit's, as a modified file's is not; one that a build installs, or the same code, is.

    The installed distributions are read once.
    """
    site, file = tmp_path / "site-packages", f"fastsum/{'__init__' if suffix == '.py' else '_core'}{suffix}"
    write(site / "fastsum/__init__.py", text or "value = 'first'\n")
    write(site / "fast_sum-1.0.dist-info/RECORD", f"{file},,\n")
    write(tree / "opgauge.toml", f'ops = ["hook.py"]\n{key}')
    git(tree, "commit", "-qam", "configured", "--allow-empty")
    module = f"found = ModuleType('f._core'); found.__file__ = {str(site / file)!r}; sys.modules['f._core'] = found"
    program = (
        f"{PROGRAM}; from types import ModuleType; {module if suffix != '.py' else ''}\n"
        "from opgauge.harness.run.environment import revision, tree_notes\n"
        "import sys; from importlib import metadata; from unittest.mock import patch\n"
        "with patch.object(metadata, 'distributions', wraps=metadata.distributions) as read:\n"
        "    note = (revision(active.measured().tree).is_dirty, *tree_notes())\n"
        "print(read.call_count, *note, file=sys.stderr)  # after what the hook prints"
    )
    code, said = load(tree, path=site, program=program)
    note = said.splitlines()[-1]
    assert (code, note.split()[:2]) == (0, ["1", str(noted)]), said
    assert ("which differs from this tree: uninstall it" in note) is noted


def test_another_project_may_be_installed(tree: Path, tmp_path: Path) -> None:
    """A dependency from an index is no copy of the project."""
    site = tmp_path / "site-packages"
    write(site / "fastsum/__init__.py", "value = 'dependency'\n")
    write(site / "fastsum-1.0.dist-info/RECORD", "fastsum/__init__.py,,\n")
    assert load(tree, tmp_path / "base", path=site) == (0, "dependency\n")


def test_an_extension_of_the_other_tree_is_not_the_base(tree: Path, tmp_path: Path) -> None:
    """An editable installation may redirect to a binary in the head, also where the base has no such file."""
    write(tmp_path / "base" / "hook.py", "import _decimal\nprint('ok')\n")
    name = f"_decimal{EXTENSION_SUFFIXES[0]}"
    (tree / "build").mkdir()
    program = f"import sys, _decimal; _decimal.__file__ = {str(tree / 'build' / name)!r}; {PROGRAM}"
    code, said = load(tree, tmp_path / "base", program=program)
    assert code != 0
    assert "module _decimal was imported from" in said


def test_a_build_may_install_into_a_folder_of_the_path(tree: Path, tmp_path: Path) -> None:
    """The folder is made by the build, and precedes the package's sources in the tree, in each tree."""
    for folder in (tree, tmp_path / "base"):
        write(folder / "fastsum/__init__.py", "from fastsum._core import value\n")
        build = f"mkdir -p made/fastsum && sed s/first/built/ '{PACKAGE}' >made/fastsum/__init__.py"
        write(folder / "opgauge.toml", f'ops = ["hook.py"]\nbuild = "{build}"\npath = ["made"]\n')
    assert load(tree) == (0, "built\n")
    assert load(tree, tmp_path / "base") == (0, "built\n")
    assert (tmp_path / "base" / "made").is_dir()
    write(tree / "opgauge.toml", 'ops = ["hook.py"]\npath = ["nowhere"]\n')
    with pytest.raises(ConfigurationError, match=r"there is no .*nowhere"):
        read_project(tree / "opgauge.toml")


def load(tree: Path, *base: Path, path: Path | None = None, program: str = PROGRAM) -> tuple[int, str]:
    """Exit code and output of a fresh process that builds and imports the ops of `tree`, or of its checkout `base`."""
    command = [sys.executable, "-P", "-c", program, str(tree / "opgauge.toml"), *map(str, base)]
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([inherited, str(path)] if path else [inherited])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    return done.returncode, done.stdout + done.stderr


def write(file: Path, text: str) -> None:
    """Write a file, and the folders it lies in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def git(folder: Path, *arguments: str) -> None:
    """Run git in `folder`."""
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True)
