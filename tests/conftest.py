"""What every test shares: GPU tests are skipped without a GPU, `experimental` and `thorough` ones unless asked for."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from opgauge.ops import available
from tests.draws import ALL, left_out, seed
from tests.shares import order_of

if TYPE_CHECKING:
    from tests.scheduling import Shares

# Set before a library reads it: OpenMP's idle threads would spin after each small kernel, on a core that others want.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# The same for NumPy's BLAS, whose threads spin for tens of milliseconds, with the value that the harness gives workers.
# NumPy is imported by now, but not in what this process starts: workers of pytest-xdist, among others.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "18")
# Coloring what Numba says of each overload that it passes over is a twentieth of its time.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
# Numba compiles a seventh faster with one level less, which some kernels' speed needs, and their results do not.
# What is compiled so is not for others to find.
os.environ.setdefault("NUMBA_OPT", "2")
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numba"))
# Workers load faulty kernels and cheats from the tests.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
# No test fails by how long it takes: a machine that others use can be slow at any moment.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# What a shell starts in the background ignores Ctrl-C, and so would all that is started here to see it interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Draw what this run takes of what is tested at random, before workers start; all of it where `-m` is given."""
    if config.getoption("markexpr"):
        os.environ["OPGAUGE_TEST_SEED"] = ALL
    seed()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed, which repeats the run."""
    terminalreporter.write_line(f"parts were drawn: OPGAUGE_TEST_SEED={seed()} repeats this, {ALL} takes all")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt what was imported and collected from garbage collection: a third of a second each time, in each worker."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000)  # Numba allocates so much that it would collect for a twentieth of its time


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    """With `-n`, each worker is given what belongs together."""
    from tests.scheduling import Shares

    return Shares(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a CUDA device, `experimental` and `thorough` ones unless `-m` names them.

    Tests of dtypes that this run did not draw are deselected.

    Tests that take long come first (`order_of`).
    """
    undrawn = left_out(items)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in undrawn])
    items[:] = [item for item in items if item.nodeid not in undrawn]
    items.sort(key=lambda item: order_of(item.nodeid))
    if "cuda" not in available():
        _skip(items, "gpu", "no CUDA device")
    for marker in ("experimental", "thorough"):
        if marker not in (config.getoption("markexpr") or ""):
            _skip(items, marker, f"{marker}: pytest -m {marker}")


def _skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))
