"""References of a cluster's cases: computed by CPU members in advance, in an order that leaves no device waiting."""

from __future__ import annotations

import fcntl
from collections import deque
from dataclasses import replace
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest

from opgauge.harness.case.casejson import case_to_json
from opgauge.harness.cli.options import load
from opgauge.harness.cluster import member
from opgauge.harness.cluster.dispatch import tasks_of
from opgauge.harness.cluster.tasks import REFERENCE, Task, _Dispatcher, _Host, _next
from opgauge.harness.result.record_json import to_json
from opgauge.harness.run.compiling import ONCE, compile_ahead
from opgauge.harness.run.runner import plan
from opgauge.ops._core.op import tensor_bytes

pytest.importorskip("distributed")

SMALL = next(case for case in load(None, ops=["sign"]) if "smoke" in case.tags)


def test_a_case_of_many_flops_comes_before_one_of_more_bytes() -> None:
    """Its reference takes longer, and at the end of a run nothing would be left to measure meanwhile."""
    convolution = next(one for one in load(None, ops=["deformable_conv"]) if one.name == "design-case-1")
    scale = next(one for one in load(None, ops=["scale"]) if "x" in one.shapes)
    nbytes = tensor_bytes(convolution.resolved.inputs) + tensor_bytes(convolution.resolved.outputs)
    copy = replace(scale, name="more bytes", dtype="float32", shapes={"x": (nbytes,)})
    first, second = tasks_of(plan([copy, convolution], implementations=["optimized"]), ONCE, timeout_s=60)
    assert (first.label, second.label) == ("deformable_conv/design-case-1", "scale/more bytes")


def test_a_case_whose_reference_is_there_goes_first() -> None:
    """A device does not wait for a reference while another case could be measured."""
    finished, unfinished = Mock(), Mock()
    finished.done.return_value, unfinished.done.return_value = True, False
    heavy = Task("heavy", "cuda", print, host="a", reference=unfinished)
    ready = Task("ready", "cuda", print, host="a", reference=finished)
    elsewhere = Task("elsewhere", "cuda", print, host="b", reference=finished)
    middle, light = Task("middle", "cuda", print), Task("light", "cuda", print)
    assert _next([elsewhere, heavy, ready, middle, light], "a") is ready
    assert _next([elsewhere, heavy, middle, light], "a") is light
    assert _next([elsewhere, heavy], "a") is heavy
    assert _next([elsewhere], "a") is elsewhere
    assert _next([middle, light], "a") is middle


def test_a_part_of_the_references_computed_in_advance_is_of_light_cases() -> None:
    """One in four processes; the last case is left for the free device."""
    client, host = Mock(), _Host({REFERENCE: 8, "cuda": 1})
    waiting = deque(Task(str(number), "cuda", print, case={}) for number in range(20))
    _Dispatcher(client, print, references=True)._prefetch(waiting, "a", host)
    assert [task.label for task in waiting if task.host] == ["0", "1", "2", "3", "4", "5", "6", "7", "17", "18"]
    assert [task.label for task in waiting if task.is_light] == ["17", "18"]
    taken = waiting[17]
    waiting.remove(taken)
    _Dispatcher(client, print, references=True)._prefetch(waiting, "a", host)
    assert [task.label for task in waiting if task.is_light] == ["16", "18"]


def test_a_reference_is_computed_once_and_taken_by_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference that a CPU member left is what the measuring member checks with: a forged one makes it wrong."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    plain = [to_json(trial) for trial in plan([SMALL], implementations=["baseline", "optimized"])]
    assert member.compute_reference(plain[0]["case"])
    (kept,) = member.shared_folder().glob(f"{SMALL.id}-*.npz")
    kept.write_bytes(b"")
    try:
        found = member.run_case(plain, to_json(ONCE), 60.0, shared=True)
    finally:
        member.close()
    assert [result["status"] for result in found["results"]] == ["ok", "ok"]
    assert not list(member.shared_folder().glob(f"{SMALL.id}*"))


def test_large_references_of_a_host_are_computed_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several that fill the memory would be killed; a small one does not wait."""
    monkeypatch.setattr(member, "shared_folder", lambda: tmp_path)
    case = case_to_json(SMALL)
    with (tmp_path / "large.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert member.compute_reference(case)
        for file in tmp_path.glob("*.np*"):
            file.unlink()
        monkeypatch.setattr(member, "free_memory_bytes", lambda: 1)
        waiting = Thread(target=member.compute_reference, args=[case])
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join()
    assert member.compute_reference(case)


def test_trusted_outputs_need_no_reference(tmp_path: Path) -> None:
    """They are recognized by their digest and keep their check; a case with others has its reference computed."""
    trials = plan([SMALL], implementations=["baseline", "optimized"], devices=["cpu"])
    ahead = compile_ahead(trials, 1, lambda _: None, kept=tmp_path)
    for one in ahead.trusted.values():
        one["check"]["worst"] = 0.125
    (known,) = tasks_of(trials, ONCE, timeout_s=60, ask=ahead.ask)
    ahead.trusted.pop(trials[0].key)
    (partly,) = tasks_of(trials, ONCE, timeout_s=60, ask=ahead.ask)
    assert (known.case, partly.case) == (None, case_to_json(SMALL))
    try:
        found = member.run_case(*known.arguments, **known.more)["results"]
    finally:
        member.close()
    assert [one["status"] for one in found] == ["ok", "ok"]
    assert [one["check"]["worst"] for one in found] == [0.125, 0.125]
