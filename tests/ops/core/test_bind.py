"""Launches that are compiled for their sizes and numbers: which they are, and what their programs contain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opgauge.harness.case.file import load_cases
from opgauge.ops import call, find_kernel
from opgauge.ops._core.single_call import is_single_call, single_call
from opgauge.ops._core.tuning import override
from opgauge.ops._cuda import bind
from opgauge.ops._cuda.multiprocessor import resident_blocks
from opgauge.ops._cuda.struct import DIVISOR, divisor, pack, pointer
from tests.draws import some
from tests.launches import bind_and_run, recorded

CASES = Path(__file__).parents[3] / "cases"
OPS = (
    *("add_n", "fill_any_like", "flatten", "scale", "sign", "lerp", "mean", "dot", "p_norm", "normalization"),
    *("conv_data_grad", "deformable_conv"),
)
"""Files of cases whose kernels may be compiled for a launch."""
DRAWN = 8
INNER = np.dtype([("to", pointer("float")), ("divided", DIVISOR)])
OUTER = np.dtype([("count", np.int32), ("pad", "V4"), ("inner", INNER), ("pad2", "V4"), ("from_", pointer("void"))])


def test_bytes_of_numbers_are_words_and_addresses_are_arguments() -> None:
    """Numbers of a byte fill a word; the address of a member that is not null remains an argument."""
    assert bind._known(np.float32(0.3)) == ((0x3E99999A,), {})
    assert bind._known(np.bool_(1)) == ((1,), {})
    assert bind._known(np.float64(-2)) == ((0, 0xC0000000), {})
    assert bind._known(None) == ((0, 0), {})
    assert bind._known(np.empty(3)) is None
    inner = {"to": 0x1234500000, "divided": 3}
    given = pack(OUTER, {"count": 7, "inner": tuple(pack(INNER, inner)[()]), "from_": 0})
    words, addresses = bind._known(given) or ((), {})
    three = divisor(3)
    assert list(words) == [7, 0, 0, 0, 3, int(three["multiplier"]), int(three["shift"]), 0, 0, 0]
    assert addresses == {"inner.to": 0x1234500000}


def source_noting(calls: list[Any], *clustered: str) -> Any:
    """A source whose kernels note their calls."""

    def function(_expression: str) -> Any:
        return lambda *call: calls.append(call)

    return SimpleNamespace(clustered=clustered, path=Path("kernels.cu"), function=function)


@pytest.mark.parametrize(
    ("threads", "limit", "fixed"), [(512, 1 << 20, True), (512, 0, False), (1 << 21, 1 << 20, False)]
)
def test_small_launches_are_compiled_for_their_arguments(
    monkeypatch: pytest.MonkeyPatch, threads: int, limit: int, *, fixed: bool
) -> None:
    """Then arrays alone are passed; all others pass everything."""
    array, calls = np.empty(3, np.float32), list[Any]()
    source = source_noting(calls)
    monkeypatch.setattr(bind, "fix", lambda *_: lambda *call: calls.append(("fixed", *call)))
    with override({"cuda.constant_threads": limit}):
        bind.bind_launch(source, "scale<float>", (threads // 512,), (512,), (array, np.int32(3), None))()
    passed = (array,) if fixed else (array, np.int32(3), None)
    assert calls == [(*(["fixed"] if fixed else []), (threads // 512,), (512,), passed)]


def test_arrays_that_overlap_are_not_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may write where it has read; loads of a restricted pointer could be moved behind such stores."""
    programs, memory = list[str](), np.empty(8, np.float32)
    monkeypatch.setattr(bind, "fix", lambda _source, _name, program, _threads: programs.append(program))
    arguments = (memory[:5], np.empty(3, np.float32), memory[4:], np.int32(3), memory[:0])
    bind.bind_launch(source_noting([]), "scale<float>", (1,), (32,), arguments)
    taken = programs[0].partition("scale_fixed(")[2].partition(")")[0].split(", ")
    assert [" __restrict__ " in one for one in taken] == [False, True, False, True]


def test_nothing_is_compiled_for_a_single_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longer than millions of calls, and each number would be another program."""
    calls, seen = list[Any](), list[bool]()
    monkeypatch.setattr(bind, "fix", lambda *_: pytest.fail("compiled"))
    with single_call():
        bind.bind_launch(source_noting(calls), "scale<float>", (1,), (32,), (np.int32(3),))()
    assert len(calls) == 1
    sign = find_kernel("sign", "optimized", "cpu", "float32")

    def watched(**given: Any) -> Any:
        seen.append(is_single_call())
        return sign.function(**given)

    monkeypatch.setattr("opgauge.ops._core.call.find_kernel", lambda *_: replace(sign, function=watched))
    assert call("sign", x=np.array([-3], np.float32)).tolist() == [-1]
    assert (seen, is_single_call()) == ([True], False)


def test_launches_without_a_program_for_them_pass_all_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a program would index its constants, and for kernels of clusters."""
    calls = list[Any]()
    source = source_noting(calls, "grouped")
    monkeypatch.setattr(bind, "fix", lambda *_: None)
    bind.bind_launch(source, "scale<float>", (1,), (32,), (np.int32(3),))()
    monkeypatch.setattr(bind, "fix", lambda *_: pytest.fail("a program has no clusters"))
    bind.bind_launch(source, "grouped", (1,), (32,), (np.int32(4),))()
    assert [arguments for _, _, arguments in calls] == [(3,), (4,)]


def test_programs_for_launches_compile_and_leave_as_many_blocks_resident() -> None:
    """Of all shipped cases some are drawn; none spills, and registers allow as many blocks as for all sizes."""
    programs: list[Any] = []
    with recorded(programs) as launches:
        for case in load_cases([CASES / f"{op}.yaml" for op in OPS]):
            bind_and_run(case, find_kernel(case.op, "optimized", "cuda", case.dtype), launches)
    assert len(programs) > len(launches) // 3
    for source, expression, program, threads in some("programs for launches", programs, DRAWN):
        general = source.compile("sm_90a", (expression,)).resources[expression]
        (resources,) = bind.compile_fixed(source, expression, program, threads, "sm_90a").resources.values()
        if resources.stack_bytes:  # which `fix` refuses
            continue
        assert resources.spill_bytes <= general.spill_bytes, program
        resident = [resident_blocks("sm_90a", used.registers, threads) for used in (resources, general)]
        assert resident[0] >= resident[1], program


@pytest.mark.parametrize(
    ("arch", "registers", "threads", "blocks"),
    [
        ("sm_90a", 32, 256, 8),
        ("sm_90a", 33, 256, 6),
        ("sm_75", 32, 256, 4),
        ("sm_120", 20, 512, 3),
        ("sm_90a", 48, 224, 5),
        ("sm_90a", 255, 1024, 1),
        ("sm_90a", 16, 32, 32),
        ("sm_75", 16, 32, 16),
        ("sm_90a", 64, 100, 8),
    ],
)
def test_blocks_that_fit_a_multiprocessor(arch: str, registers: int, threads: int, blocks: int) -> None:
    """By registers, handed out by eights in each of four parts, and by threads in whole warps; no more than can be."""
    assert resident_blocks(arch, registers, threads) == blocks
