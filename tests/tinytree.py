"""A temporary git repository that holds a small `ops`: the shared code, and ops that a test writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from textwrap import dedent

from opgauge.harness.run.tree import PREFIX
from tests.commandline import run_here

ROOT = Path(__file__).parent.parent
FRAME = '''
"""Small ops."""

from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np

from opgauge.ops._core.op import Input, Op, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.registry import kernel, register


@dataclass(frozen=True, slots=True)
class Params:
    """None."""


def infer(shapes, dtype, params):
    spec = TensorSpec(shapes["x"], dtype)
    return Shapes({"x": spec}, {"out": spec})


def work(shapes, params):
    return Work(tensor_bytes(shapes.inputs), tensor_bytes(shapes.outputs), 0)


def spin(seconds):
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def define(name, body):
    register(
        Op(
            name=name,
            params=Params,
            dtypes=("float32",),
            inputs=(Input("x"),),
            outputs=("out",),
            infer=infer,
            reference=lambda arrays, params: {"out": 2 * arrays["x"]},
            work=work,
            bound=lambda arrays, outputs, params, dtype: {"out": 1e-6},
            summary="Twice x.",
            source="",
        )
    )

    def run(*, x, out):
        np.multiply(x, 2, out=out["out"])
        body(out["out"])

    def plain(*, x, out):
        spin(0.001)
        np.multiply(x, 2, out=out["out"])

    kernel(name, "optimized", "cpu", ("float32",))(run)
    kernel(name, "baseline", "cpu", ("float32",))(plain)


def sane(out):
    pass


def slow(out):
    spin(0.005)


def wrong(out):
    out[...] = 7


def hang(out):
    sleep(60)


def crash(out):
    raise ValueError("it | `broke` <b>")


'''


class TinyTree:
    """The repository; ops come in folders of their own, each op by the name of what its kernel does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        for part in ("_core", "_cpu", "_cuda"):
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / "ops" / part, path / "ops" / part, ignore=skipped)
        for name in ("__init__.py", "py.typed"):
            shutil.copy(ROOT / "ops" / name, path / "ops" / name)
        self.git("init", "--quiet", "--initial-branch=main")
        self.write(".gitignore", "__pycache__/\n*.db*\n*.xml\n*.md\n")

    def git(self, *arguments: str, check: bool = True) -> str:
        """Run git here; what it prints."""
        names = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "core.autocrlf=false")
        done = subprocess.run(
            ["git", *names, *arguments], cwd=self.path, capture_output=True, text=True, check=False, timeout=60
        )
        if check and done.returncode:
            raise AssertionError(done.stderr)
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        """A file."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(text).lstrip("\n"))

    def set_ops(self, folder: str, bodies: Mapping[str, str]) -> None:
        """Write a folder of ops: each name with what its kernel does (sane, slow, wrong, hang, crash)."""
        defined = "\n".join(f'define("{name}", {body})' for name, body in bodies.items())
        self.write(f"ops/{folder}/__init__.py", FRAME + defined + "\n")
        cases = "\n---\n".join(
            f"op: {name}\ncases:\n  - {{name: small, tags: [gate], shapes: {{x: [8]}}, dtype: float32}}"
            for name in bodies
        )
        self.write(f"cases/{folder}.yaml", cases + "\n")

    def commit(self, message: str) -> str:
        """Commit everything; the commit's hash."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    @contextmanager
    def start(self, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Begin `opgauge` here in a process of its own, with this project's harness; killed if it does not end."""
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "opgauge", *arguments],
            cwd=self.path,
            env={**os.environ, **self._variables(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def opgauge(self, *arguments: str, code: int | None = None, **variables: str) -> str:
        """Run `opgauge` here and expect an exit code; what it prints, errors included."""
        done = run_here(*arguments, cwd=self.path, variables={**self._variables(), **variables})
        if code is not None and done.returncode != code:
            message = f"{done.returncode} instead of {code}:\n{done.stdout}\n{done.stderr}"
            raise AssertionError(message)
        return done.stdout + done.stderr

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT / "tools" / "package"), os.environ.get("PYTHONPATH", "")])
        outside = dict.fromkeys((name for name in os.environ if name.startswith("GITHUB_")), "")
        return {**outside, "PYTHONPATH": path, "OPGAUGE_DB": f"sqlite:///{self.path}/opgauge.db"}

    def checkouts(self) -> list[Path]:
        """Temporary checkouts of this repository, and folders of worktrees in its `.git`.

        git is not asked: it fails while a worktree is being added.
        """
        found = Path(gettempdir()).glob(f"{PREFIX}*/tree/.git/commondir")
        own = (self.path / ".git").resolve()
        beside = [file.parents[1] for file in found if Path(file.read_text().strip()) == own]
        return beside + list((own / "worktrees").glob("*"))
