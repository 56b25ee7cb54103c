"""Whatever a kernel does, its trial has a result, and the rest of the batch goes on."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.errors import WorkerError
from opgauge.harness.measure import Limits
from opgauge.harness.result.record_json import to_json
from opgauge.harness.result.result import Result, Status, Trial
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.worker import protocol
from opgauge.harness.worker.serve import uncollected
from opgauge.ops import find_op
from tests.faulty.trial import between_right_ones, trial

ROOT = Path(__file__).parents[2]
QUICK = Limits(budget_s=0.01, min_samples=2, max_samples=3, warmup_s=0.0)
PRELOAD = ("tests.faulty.kernels",)


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    """One executor for the whole file: each fault must leave it fit for the next."""
    with LocalExecutor(limits=QUICK, timeout_s=60, preload=PRELOAD) as made:
        yield made


def run(executor: LocalExecutor, *implementations: str) -> list[Result]:
    """The results of small trials in one batch."""
    return list(executor.run([trial(name) for name in implementations]))


@pytest.mark.parametrize(
    ("implementation", "status", "words"),
    [
        ("segfault", Status.ERROR, "SIGSEGV"),
        ("leave", Status.ERROR, "exit code 0"),
        ("killed", Status.OUT_OF_MEMORY, "SIGKILL"),
        ("exhaust", Status.OUT_OF_MEMORY, "Unable to allocate"),
        ("complain", Status.ERROR, "ValueError: a kernel's own fault"),
        ("exit_politely", Status.ERROR, "exit code 0"),
        ("refuse", Status.UNSUPPORTED, "rows longer than three are not done here"),
        ("mutate", Status.WRONG, "changed its input x"),
        ("zeros", Status.WRONG, "y[0] is 0, expected"),
        ("nothing", Status.WRONG, "y[0] is nan, expected"),
        ("overrun", Status.WRONG, "wrote outside y, after the end"),
        ("generous", Status.WRONG, "returned 2 outputs instead of 1"),
        ("once", Status.WRONG, "in the second call"),
        ("wrong_second", Status.WRONG, "in the second call"),
        ("wrong_later", Status.WRONG, "times the allowed error"),
        ("missing", Status.UNSUPPORTED, "no kernel p_norm/missing/cpu/float32"),
    ],
)
def test_a_fault_is_a_result_and_the_batch_goes_on(
    executor: LocalExecutor, implementation: str, status: Status, words: str
) -> None:
    """A faulty kernel between two right ones has its own status and reason; the others are ok."""
    fault = between_right_ones(executor, trial(implementation))
    assert fault.status is status
    assert words in fault.reason


def test_a_hang_times_out() -> None:
    """A kernel that never returns is a timeout that names the phase; the next trial runs."""
    with LocalExecutor(limits=QUICK, timeout_s=1.0, preload=PRELOAD) as executor:
        hung, after = run(executor, "hang", "baseline")
    assert hung.status is Status.TIMEOUT
    assert hung.reason == "no answer after 1 s (first call)"
    assert after.status is Status.OK


def test_a_question_without_an_answer_is_named(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error says in words which question it was, and how long the worker had."""
    monkeypatch.setattr(executor.ready(), "receive", lambda *_: None)
    with pytest.raises(WorkerError, match="could not name model: no answer after 2 s"):
        executor.ask(protocol.NameModel("cpu"), timeout_s=2)


@pytest.mark.parametrize(("reference_timeout_s", "status"), [(None, Status.TIMEOUT), (60.0, Status.OK)])
def test_a_reference_has_a_time_of_its_own(reference_timeout_s: float | None, status: Status) -> None:
    """One that takes longer than a kernel may is waited for where it is given longer, and only there."""
    preload = (*PRELOAD, "tests.faulty.slow")
    with LocalExecutor(
        limits=QUICK, timeout_s=2.0, reference_timeout_s=reference_timeout_s, preload=preload
    ) as executor:
        (result,) = run(executor, "baseline")
    assert result.status is status, result.reason


def test_what_a_kernel_prints_disturbs_nothing(executor: LocalExecutor) -> None:
    """Output on file descriptors 1 and 2 and reading standard input leave the protocol alone."""
    (result,) = run(executor, "chatter")
    assert result.status is Status.OK, result.reason


def test_a_crash_keeps_the_end_of_what_was_printed(executor: LocalExecutor) -> None:
    """A segmentation fault comes with Python's traceback and the phase it happened in."""
    (result,) = run(executor, "segfault")
    assert result.extra["phase"] == "first call"
    assert "in segfault" in result.extra["log"]


def test_a_timeout_kills_what_the_kernel_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's own child process dies with the worker."""
    monkeypatch.setenv("FAULTY_FOLDER", str(tmp_path))
    with LocalExecutor(limits=QUICK, timeout_s=2.0, preload=PRELOAD) as executor:
        (result,) = run(executor, "hang_with_child")
    assert result.status is Status.TIMEOUT
    assert gone(tmp_path)


def test_closing_leaves_no_process() -> None:
    """At the end of the `with` statement the worker has gone."""
    others = set(psutil.Process().children(recursive=True))
    with LocalExecutor(limits=QUICK) as executor:
        run(executor, "baseline")
        children = set(psutil.Process().children(recursive=True)) - others
    assert children
    assert not any(alive(child.pid) for child in children)


def test_a_worker_that_dies_while_idle_is_replaced(executor: LocalExecutor) -> None:
    """No trial is blamed for the end of a worker that had nothing to do."""
    others = set(psutil.Process().children())  # such as the tracker of other tests' shared memory
    executor.renew()
    run(executor, "baseline")
    for child in set(psutil.Process().children()) - others:
        child.kill()
        child.wait()
    assert [result.status for result in run(executor, "baseline")] == [Status.OK]


def test_a_fault_of_the_harness_is_raised() -> None:
    """A worker that cannot even import raises here, with its traceback."""
    executor = LocalExecutor(preload=("tests.faulty.unimportable",))
    with executor, pytest.raises(WorkerError, match="this module cannot be imported"):
        run(executor, "baseline")


def test_a_worker_says_which_launch_parameters_a_kernel_asks_for(executor: LocalExecutor) -> None:
    """By name; nothing of it is called. What cannot be bound has a reason."""
    params = find_op("deformable_conv").params(paddings=(1, 1))
    shapes = {"x": (1, 2, 5, 5), "offset": (1, 18, 5, 5), "filter": (3, 2, 3, 3)}
    asked = Trial(Case("deformable_conv", "small", shapes, "float32", params), "optimized", "cpu", "cpu")
    assert executor.ask(protocol.ListTunables(to_json(asked))) == {
        "names": ["deformable_conv.cpu_block_pixels", "deformable_conv.cpu_depth"]
    }
    assert executor.ask(protocol.ListTunables(to_json(trial("segfault")))) == {"names": []}
    answer = executor.ask(protocol.ListTunables(to_json(trial("optimised"))))
    assert answer["failed"].startswith("no kernel p_norm/optimised")


def test_memory_can_be_limited() -> None:
    """With an address-space limit a large trial is out of memory and the worker lives on."""
    case = Case("p_norm", "large", {"x": (40_000_000,)}, "float64", find_op("p_norm").params())
    with LocalExecutor(limits=QUICK, preload=(), memory_bytes=1 << 30, threads=1) as executor:
        large, small = executor.run([Trial(case, "baseline", "cpu", "cpu"), trial("baseline")])
    assert large.status is Status.OUT_OF_MEMORY, large.reason
    assert small.status is Status.OK, small.reason


def test_ops_can_come_from_another_tree(tmp_path: Path) -> None:
    """With a tree of its own a worker runs that tree's kernels, and this harness."""
    shutil.copytree(ROOT / "ops", tmp_path / "ops", ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "ops" / "p_norm" / "baseline.py"
    changed.write_text(changed.read_text().replace(".max(", ".min("))
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise ImportError")
    with LocalExecutor(limits=QUICK, preload=(), ops_tree=tmp_path) as executor:
        (result,) = run(executor, "baseline")
    assert result.status is Status.WRONG


PARENT = """
import sys
from opgauge.harness.run.execute import LocalExecutor
from tests.harness.test_serve import PRELOAD, QUICK, trial

with LocalExecutor(limits=QUICK, timeout_s=60, preload=PRELOAD) as executor:
    for result in executor.run([trial("baseline"), trial("hang_with_child"), trial("baseline")]):
        print(result.status, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_parent_leaves_no_process(tmp_path: Path, number: int) -> None:
    """Ctrl-C, termination and kill -9 keep what was finished and take the worker along."""
    path = os.pathsep.join([str(ROOT / "tools/package"), str(ROOT)])
    environment = {**os.environ, "FAULTY_FOLDER": str(tmp_path), "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment, cwd=ROOT) as parent:
        wait_for(tmp_path / "worker.pid")
        parent.send_signal(number)
        printed, _ = parent.communicate(timeout=30)
    assert printed.split() == [b"ok"]
    assert gone(tmp_path, child_too=number == signal.SIGINT)


def alive(pid: int) -> bool:
    """Whether a process runs, zombies not counted."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(folder: Path, *, child_too: bool = True) -> bool:
    """Whether the processes that wrote their ids into `folder` have ended, or do so shortly."""
    pids = {name: int((folder / f"{name}.pid").read_text()) for name in ("worker", "child")}
    end = time.monotonic() + 10
    watched = list(pids.values()) if child_too else [pids["worker"]]
    while any(alive(pid) for pid in watched) and time.monotonic() < end:
        time.sleep(0.05)
    left = [pid for pid in watched if alive(pid)]
    if alive(pids["child"]):
        psutil.Process(pids["child"]).kill()
    return not left


def wait_for(path: Path) -> None:
    """Return when the file is there and not empty."""
    end = time.monotonic() + 30
    while not (path.is_file() and path.read_text()):
        if time.monotonic() > end:
            msg = f"{path.name} never came"
            raise TimeoutError(msg)
        time.sleep(0.05)


def test_imports_are_exempt_from_garbage_collection() -> None:
    """Nothing is collected during an import, what it made is exempt later, and collections go on if it fails."""
    with uncollected():
        assert not gc.isenabled()
        made: list[list[object]] = [[]]
        made[0].append(made)
    assert gc.isenabled()
    assert not any(found is made for found in gc.get_objects())
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_replies_are_json_lines() -> None:
    """The protocol of a worker: ready, phases, then a result that reads back."""
    worker = subprocess.run(
        [sys.executable, "-m", "opgauge.harness.worker.serve"],
        input=b"",
        capture_output=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    assert [protocol.decode(line)[0] for line in worker.stdout.splitlines()] == [protocol.Ready()]


def test_an_early_answer_is_not_blamed_on_the_next_trial(executor: LocalExecutor) -> None:
    """The true reply arrives while the next trial is waited for, which is then measured again."""
    _, after = executor.run([trial("answer_early"), trial("baseline")])
    assert after.status is Status.OK, after.reason
