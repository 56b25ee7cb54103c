"""Launch parameters: where a value comes from, what is passed over, and that every candidate is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.case.file import load_cases
from opgauge.harness.measure import timer_for
from opgauge.harness.worker.attempt import Attempt
from opgauge.harness.worker.inputs import Inputs, make_inputs
from opgauge.harness.worker.verify import Expected, expect
from opgauge.ops import BACKENDS, DTYPES, DuplicateError, TuningError, find_kernel, find_op
from opgauge.ops._core import tuning
from opgauge.ops._core.backend import device_model
from opgauge.ops._core.registry import discover
from opgauge.ops._core.tuning import Parameter
from opgauge.ops._cuda import source
from opgauge.ops._cuda.gemm.problem import SPLITS, GemmProblem, Matrix
from opgauge.ops._cuda.gemm.select import select, supported
from opgauge.ops._cuda.reduction import launch, rows
from opgauge.ops._cuda.source import Gpu
from opgauge.ops.conv_data_grad import cuda as conv_data_grad
from opgauge.ops.lerp import cuda_grad as lerp
from opgauge.ops.normalization import channels_first, channels_first_plan, channels_last, passes
from opgauge.ops.normalization.call import View
from opgauge.ops.p_norm import cuda_grad as p_norm
from tests.draws import drawn_of
from tests.launches import H200

CASES = Path(__file__).parents[3] / "cases"
MULTIPROCESSORS = 132
SIZED = (source, launch, conv_data_grad, lerp, channels_first, channels_first_plan, channels_last, passes, p_norm)
"""Modules that ask how many multiprocessors there are."""


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parameter:
    """A parameter of the CPU, and no shipped file."""
    monkeypatch.setattr(tuning, "_PARAMETERS", {})
    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    return tuning.declare("sweep.width", 4, (2, 4, 8), backend="cpu", ops=("p_norm",), why="for a test")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """No test leaves values to the next."""
    tuning.use(None)
    yield
    tuning.use(None)


@pytest.fixture
def large_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host code of CUDA kernels sees a GPU with 132 multiprocessors."""
    for module in (launch, channels_first_plan):
        monkeypatch.setattr(module, "multiprocessors", lambda: MULTIPROCESSORS)
    monkeypatch.setattr(channels_first_plan, "shared_memory_bytes", lambda: 227 * 1024)


def ship(model: str, **values: Any) -> Path:
    """A shipped file for `model`."""
    path = tuning.shipped(model)
    path.write_text(json.dumps({"values": {name.replace("__", "."): value for name, value in values.items()}}))
    tuning.use(None)
    return path


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H200", "nvidia-h200.json"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3.json"),
        ("Intel(R) Xeon(R) Platinum 8480C", "intel-xeon-platinum-8480c.json"),
        ("", "unknown.json"),
    ],
)
def test_a_model_has_one_file(model: str, name: str) -> None:
    """The file's name is the vendor's, in small letters and hyphens."""
    assert tuning.shipped(model) == tuning.FOLDER / name


def test_without_a_file_the_default_is_in_force(width: Parameter) -> None:
    """An unknown device has the safe choice, and nothing to say."""
    assert width.value() == 4
    assert tuning.in_force("cpu", "a CPU that nobody tuned for") == {"sweep.width": 4}
    assert tuning.notes("cpu", "a CPU that nobody tuned for") == ()
    assert tuning.fingerprint("cpu", "a CPU that nobody tuned for") == "defaults"


def test_the_file_of_the_device_counts(width: Parameter) -> None:
    """A shipped file holds for the model that it is named after and for no other."""
    ship(device_model("cpu"), sweep__width=8)
    assert width.value() == 8
    assert tuning.in_force("cpu", "another") == {"sweep.width": 4}


def test_a_named_file_goes_before_the_shipped_one_and_values_before_both(width: Parameter, tmp_path: Path) -> None:
    """Values given for a moment win over the file that somebody names, and that over the device's own."""
    ship(device_model("cpu"), sweep__width=8)
    named = tmp_path / "mine.json"
    named.write_text('{"values": {"sweep.width": 2}}')
    tuning.use(named)
    assert width.value() == 2
    with tuning.override({"sweep.width": 4}):
        assert width.value() == 4
    assert width.value() == 2


@pytest.mark.parametrize("value", [3, 8.0, True, "8", None])
def test_what_is_no_candidate_is_the_default_and_is_said(width: Parameter, value: Any) -> None:
    """A value that is none of the candidates, or no whole number, changes nothing; a note names all three."""
    path = ship("x", sweep__width=value)
    assert tuning.in_force("cpu", "x") == {"sweep.width": 4}
    assert tuning.notes("cpu", "x") == (f"{path}: sweep.width is {value!r}, not one of 2, 4, 8; it stays 4",)


def test_shipped_parameters_of_ops_that_are_not_loaded_are_no_fault(width: Parameter) -> None:
    """A user's project need not load the ops that a device's file is about."""
    ship("x", sweep__with=8, sweep__width=8)
    assert tuning.notes("cpu", "x") == ()
    assert tuning.in_force("cpu", "x") == {width.name: 8}


def test_shipped_files_name_declared_parameters_and_their_candidates() -> None:
    """A parameter that is renamed or given up does not stay in a device's file."""
    discover()
    declared = {found.name: found.candidates for found in tuning.parameters()}
    for path in tuning.FOLDER.glob("*.json"):
        for name, value in tuning.read(path).items():
            assert value in declared[name], path


def test_an_unknown_name_is_said_with_the_nearest(width: Parameter, tmp_path: Path) -> None:
    """A parameter that there is not, or not any more, does no harm."""
    named = tmp_path / "mine.json"
    named.write_text('{"values": {"sweep.with": 8}}')
    tuning.use(named)
    (note,) = tuning.notes("cpu", "x")
    assert note.endswith("there is no parameter 'sweep.with'; did you mean 'sweep.width'?")
    assert width.name in tuning.in_force("cpu", "x")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"values": []}', ""])
def test_a_malformed_file_is_an_error_to_read_and_a_note_to_a_kernel(
    width: Parameter, tmp_path: Path, text: str
) -> None:
    """Who asks for the file is told what is wrong with it; a kernel gets its default."""
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(TuningError, match=r"wrong\.json: (not a tuning file|no JSON|not JSON)"):
        tuning.read(path)
    tuning.use(path)
    assert width.value() == 4
    assert "passed over" in tuning.notes("cpu", "x")[0]


def test_a_missing_file_is_named(width: Parameter, tmp_path: Path) -> None:
    """A file that is not there is an error to read, and leaves the default."""
    with pytest.raises(TuningError, match=r"none\.json: No such file"):
        tuning.read(tmp_path / "none.json")
    tuning.use(tmp_path / "none.json")
    assert width.value() == 4


def test_values_of_another_backend_are_left_alone(width: Parameter) -> None:
    """One named file may serve a GPU and a CPU."""
    tuning.declare("sweep.blocks", 1, (1, 2), backend="cuda", ops=("p_norm",), why="for a test")
    ship("x", sweep__width=8, sweep__blocks=2)
    assert tuning.in_force("cpu", "x") == {"sweep.width": 8}
    assert tuning.in_force("cuda", "x") == {"sweep.blocks": 2}
    assert width.backend == "cpu"


def test_a_fingerprint_is_of_what_differs_from_the_defaults(width: Parameter) -> None:
    """Values that are the default leave no trace, others do, each its own."""
    ship("x", sweep__width=4)
    assert tuning.fingerprint("cpu", "x") == "defaults"
    found = set()
    for value in (2, 8):
        ship("x", sweep__width=value)
        found.add(tuning.fingerprint("cpu", "x"))
    assert len(found) == 2
    assert all(len(item) == 12 for item in found)
    assert width.default == 4


def test_what_cannot_be_is_not_declared(width: Parameter) -> None:
    """A name is declared once, and the default is a candidate."""
    with pytest.raises(DuplicateError, match=r"sweep\.width"):
        tuning.declare(width.name, 4, (4,), backend="cpu", ops=(), why="")
    with pytest.raises(TuningError, match="3 on cpu"):
        tuning.declare("sweep.height", 3, (2, 4), backend="cpu", ops=(), why="")


def test_only_what_matters_is_asked(width: Parameter) -> None:
    """`covers` and `cap` ask for the value only where candidates would decide differently."""
    with tuning.recording() as asked:
        assert width.covers(2)
        assert not width.covers(9)
        assert width.cap(20, 10) == 20
    assert not asked
    with tuning.recording() as asked:
        assert width.covers(4)
        assert not width.covers(5)
        assert width.cap(50, 10) == 40
    assert asked == {"sweep.width": 4}


def test_every_declaration_says_what_it_is_for() -> None:
    """Ops that exist, cases that count, candidates besides the default, a line of why."""
    cases = load_cases([CASES])
    for item in tuning.parameters():
        assert item.backend in BACKENDS
        assert len(item.candidates) > 1
        assert list(item.candidates) == sorted(item.candidates)
        assert item.why
        for op in item.ops:
            assert find_op(op)
        assert any(case.op in item.ops and {"seed", "sites", "full"} & set(case.tags) for case in cases), item.name


def test_few_numbers_are_left_to_the_device() -> None:
    """At most 12 parameters exist: each costs a user time to tune and a reader a decision."""
    assert len(tuning.parameters()) <= 12


def test_shipped_files_are_right() -> None:
    """What is shipped can be read, and is in force without a note."""
    for path in sorted(tuning.FOLDER.glob("*.json")):
        held = json.loads(path.read_text(encoding="utf-8"))
        assert tuning.shipped(held["device"]) == path
        assert tuning.notes(held["backend"], held["device"]) == ()


@cache
def small(op: str) -> tuple[tuple[Case, Inputs, Expected], ...]:
    """The small cases of an op in the dtypes that this run draws, with inputs and reference."""
    dtypes = drawn_of(op, DTYPES)
    found = [case for case in load_cases([CASES], tags=["smoke"]) if case.op == op and case.dtype in dtypes]
    prepared = ((case, make_inputs(case)) for case in found)
    return tuple((case, inputs, expect(case, inputs)) for case, inputs in prepared)


def candidates() -> list[Any]:
    """Every candidate of every parameter; those for CUDA are marked."""
    return [
        pytest.param(item, value, id=f"{item.name}={value}", marks=[pytest.mark.gpu] if item.backend == "cuda" else [])
        for item in tuning.parameters()
        for value in item.candidates
    ]


@pytest.mark.parametrize(("parameter", "value"), candidates())
def test_every_candidate_is_right(parameter: Parameter, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimized kernels pass the check of every small case with each candidate, on a device small or large."""
    timer = timer_for(parameter.backend)
    with tuning.override({parameter.name: value}), timer.session("numpy"):
        for count in (1, MULTIPROCESSORS) if parameter.backend == "cuda" else (1,):
            for module in SIZED:
                # with one multiprocessor even small cases fill the device
                monkeypatch.setattr(module, "multiprocessors", lambda count=count: count)
            for case, inputs, expected in (item for op in parameter.ops for item in small(op)):
                kernel = find_kernel(case.op, "optimized", parameter.backend, case.dtype)
                if not kernel.strided and any(spec.layout == "transposed" for spec in case.inputs.values()):
                    continue
                check = Attempt(case, kernel, inputs.values, timer).judge(expected)
                assert check.ok, f"{case.name} {case.params}: {check.reason}"


@pytest.mark.usefixtures("large_device")
def test_values_decide_launches() -> None:
    """Splits and clusters follow the values in force."""
    factor = Matrix(128)
    problem = GemmProblem("float32", "float32", (128, 128, 1 << 12), factor, factor, factor, workspace=SPLITS)
    assert select(problem, H200).splits == 32
    with tuning.override({"gemm.least_share": 512}):
        assert select(problem, H200).splits == 8
    view = View(32, 64, 56 * 56)
    assert channels_first_plan.plan_once(view, 4, 4) == (1, 8)
    with tuning.override({"normalization.largest_cluster": 2}):
        assert channels_first_plan.plan_once(view, 4, 4) is None


@pytest.mark.usefixtures("large_device")
def test_no_value_asks_for_more_shared_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with 64 KiB a block slices stay below that, whatever is in force, and a product has no room."""
    view = View(8, 512, 64 * 64)
    monkeypatch.setattr(channels_first_plan, "SLICE_BYTES", 112 * 1024)
    with tuning.override({"normalization.quarter_slice_bytes": 0}):
        assert channels_first_plan.plan_once(view, 4, 4) == (1, 2)
        assert supported("float32", Gpu(132, 86, 227 * 1024))
        monkeypatch.setattr(channels_first_plan, "shared_memory_bytes", lambda: 64 * 1024)
        assert channels_first_plan.plan_once(view, 4, 4) == (1, 4)
        assert not supported("float32", Gpu(132, 86, 64 * 1024))


def test_lanes_follow_packs_per_lane() -> None:
    """A row of 20 vectors gets 8 lanes of 4 vectors or less, 4 of 8, and a long one 32 without asking."""
    parameter = tuning.find("reduction.packs_per_lane")
    assert rows.lanes_for(parameter, 20) == 8
    with tuning.override({parameter.name: 8}):
        assert rows.lanes_for(parameter, 20) == 4
    with tuning.recording() as asked:
        assert rows.lanes_for(parameter, 1000) == 32
    assert not asked


@pytest.mark.parametrize("value", [1, 2, 4, 8])
def test_what_a_source_is_asked_for_is_declared(value: int) -> None:
    """Every cluster that a value may lead to has its compiled kernel."""
    assert value in channels_first_plan.CLUSTERS
