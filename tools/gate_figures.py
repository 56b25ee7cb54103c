"""Error rates of the gate on this machine, alone and beside a busy process: `python -m tools.gate_figures`.

Runs `opgauge aa` and `opgauge inject` on gate-tagged cases of a few ops and prints their tables. It takes ten minutes;
run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OPS = ("mean", "scale", "lerp", "normalization", "dot")
"""Ops whose cases are gated."""
SPIN = "while True: pass"
"""Program of the busy process."""


def main() -> None:
    """Print the tables of equal code and of each planted slowdown, without and with a busy process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", help="Op to measure; repeatable.")
    parser.add_argument("--slowdown", type=float, action="append", help="Planted share; repeatable.")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    chosen = [word for op in given.op or OPS for word in ("--op", op)]
    common = [*chosen, "--tag", "gate", "--device", given.device, "--runs", str(given.runs)]
    for name, is_busy in (("alone", False), ("beside a busy process", True)):
        with _neighbour(is_busy=is_busy):
            _run(f"equal code, {name}", ["aa", *common])
            for slowdown in given.slowdown or (0.03, 0.05):
                _run(f"{100 * slowdown:g} % slower, {name}", ["inject", "--slowdown", str(slowdown), *common])


@contextmanager
def _neighbour(*, is_busy: bool) -> Iterator[None]:
    """Run a process that uses one CPU."""
    process = subprocess.Popen([sys.executable, "-c", SPIN]) if is_busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _run(title: str, arguments: list[str]) -> None:
    print(f"\n## {title}\n", flush=True)  # noqa: T201  a command's output
    subprocess.run([sys.executable, "-m", "opgauge", *arguments], check=False)


if __name__ == "__main__":
    main()
