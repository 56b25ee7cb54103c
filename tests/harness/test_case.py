"""Cases: what their identity rests on, and that JSON keeps them whole."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgauge.harness.case.case import Case, GatePolicy, InputSpec, Kind, Layout
from opgauge.harness.case.casejson import case_from_json, case_to_json
from opgauge.harness.errors import CaseError, HarnessError
from opgauge.ops import FLOATS, find_op

PNormParams = find_op("p_norm").params


def make_case(**changes: Any) -> Case:
    """A case of p_norm."""
    plain = {
        "op": "p_norm",
        "name": "a",
        "shapes": {"x": (3, 4)},
        "dtype": "float32",
        "params": PNormParams(),
    }
    return Case(**{**plain, **changes})


def test_identity_is_the_content() -> None:
    """Name, tags, note, published figures, policy and place do not change the id."""
    case = make_case()
    other = replace(
        case,
        name="b",
        tags=("seed",),
        note="x",
        published={"ms": 1.0},
        gate=GatePolicy(threshold=0.1),
        file="f",
        line=3,
    )
    assert other.id == case.id


@pytest.mark.parametrize(
    "change",
    [
        {"op": "p_norm_grad"},
        {"shapes": {"x": (4, 3)}},
        {"dtype": "float64"},
        {"params": PNormParams(porder=3.0)},
        {"params": PNormParams(porder=math.inf)},
        {"params": PNormParams(porder="fro")},
        {"params": PNormParams(axis=(0, 1))},
        {"inputs": {"x": InputSpec(kind="uniform")}},
    ],
)
def test_a_change_of_content_changes_the_identity(change: dict[str, Any]) -> None:
    """Op, shapes, dtype, parameters and distributions enter the id."""
    assert make_case(**change).id != make_case().id


def test_equal_numbers_are_one_case() -> None:
    """2 and 2.0, given or by default, and an input that departs from nothing, give one id."""
    ids = {
        make_case(params=PNormParams(porder=2)).id,
        make_case(params=PNormParams(porder=2.0)).id,
        make_case(inputs={"x": InputSpec()}).id,
        make_case().id,
    }
    assert len(ids) == 1
    assert make_case(params=PNormParams(porder=3)).id == make_case(params=PNormParams(porder=3.0)).id


def test_the_identity_is_what_it_always_was() -> None:
    """Stored results are found by this hash: it must not change between versions."""
    case = make_case(shapes={"x": (300, 250, 250)}, params=PNormParams(porder=-math.inf, axis=(0, 1)))
    assert case.id == "27be20fd844ebc70"


exponents = st.floats(width=32, allow_nan=False, allow_subnormal=False) | st.sampled_from([2.0, -0.0])
numbers = st.floats(allow_nan=False) | st.sampled_from([math.inf, -math.inf, 2.0, 0.0, -0.0])
finite = st.floats(-1e6, 1e6)
texts = st.text(max_size=8)


@st.composite
def input_specs(draw: st.DrawFn) -> InputSpec:
    """Any distribution that makes sense."""
    kind: Kind = draw(st.sampled_from(get_args(Kind)))
    layout: Layout = draw(st.sampled_from(get_args(Layout)))
    if kind in ("uniform", "integers"):
        low, high = sorted((draw(finite), draw(finite)))
        return InputSpec(kind=kind, low=low, high=high, layout=layout)
    if kind == "normal":
        return InputSpec(kind=kind, mean=draw(finite), std=abs(draw(finite)), layout=layout)
    return InputSpec(kind=kind, value=draw(numbers), layout=layout)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case of p_norm or p_norm_grad."""
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4)))
    axes = st.integers(-len(shape), len(shape) - 1)
    pairs = st.tuples(axes, axes).filter(lambda pair: (pair[0] - pair[1]) % len(shape))
    axis = draw(st.none() | axes | pairs if len(shape) > 1 else st.none() | axes)
    porder = draw(exponents.filter(lambda p: p != 0 or not isinstance(axis, tuple)) | st.just("fro"))
    positive = st.none() | st.floats(1e-6, 1e6)
    return Case(
        op=draw(st.sampled_from(["p_norm", "p_norm_grad"])),
        name=draw(texts),
        shapes={"x": shape},
        dtype=draw(st.sampled_from(FLOATS)),
        params=PNormParams(porder=porder, axis=axis, keepdim=draw(st.booleans())),
        inputs=draw(st.just({}) | input_specs().map(lambda spec: {"x": spec})),
        tags=tuple(draw(st.lists(texts, max_size=3))),
        note=draw(texts),
        published=draw(st.dictionaries(texts, texts | finite, max_size=2)),
        gate=GatePolicy(threshold=draw(positive), max_launches=draw(st.none() | st.integers(0, 9))),
        file=draw(texts),
        line=draw(st.integers(0, 99)),
    )


@given(cases())
def test_json_keeps_a_case_whole(case: Case) -> None:
    """Writing and reading gives an equal case with the same id, infinities and negative zeros included."""
    text = json.dumps(case_to_json(case), allow_nan=False)
    back = case_from_json(json.loads(text))
    assert back == case
    assert repr(back.params) == repr(case.params)
    assert back.id == case.id == json.loads(text)["id"]


def test_nan_survives_json() -> None:
    """An input may be filled with NaN."""
    case = make_case(inputs={"x": InputSpec(kind="constant", value=math.nan)})
    back = case_from_json(json.loads(json.dumps(case_to_json(case), allow_nan=False)))
    assert math.isnan(back.inputs["x"].value or 0.0)
    assert back.id == case.id


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"op": "p_nrm"}, "did you mean 'p_norm'?"),
        ({"op": 3}, "op should be text, not 3"),
        ({"shape": {}}, "unknown key 'shape' of a case; did you mean 'shapes'?"),
        ({"dtype": "flot32"}, "did you mean 'float32'?"),
        ({"shapes": {"x": [2.5]}}, "shapes.x should be a list of whole numbers"),
        ({"shapes": {"x": [-1]}}, "negative length"),
        ({"shapes": {"q": [1]}}, "no input 'q'"),
        ({"shapes": [3]}, "shapes should be a mapping"),
        ({"params": {"porder": "banana"}}, "params.porder should be a number or 'fro'"),
        ({"params": {"porder": True}}, "not true"),
        ({"params": {"pordr": 2}}, "did you mean 'porder'?"),
        ({"params": {"axis": 5}}, "axis 5 is out of range"),
        ({"inputs": {"x": {"kind": "unifrm"}}}, "did you mean 'uniform'?"),
        ({"inputs": {"q": {}}}, "no input 'q'"),
        ({"inputs": {"x": {"lo": 1}}}, "did you mean 'low'?"),
        ({"gate": {"min_sped": 1}}, "did you mean 'min_speedup'?"),
        ({"gate": {"threshold": -1}}, "a positive number"),
        ({"published": {"ms": [1]}}, "published.ms should be a number or text"),
        ({"tags": "smoke"}, "tags should be a list of texts"),
        ({"name": None}, "name should be text, not null"),
    ],
)
def test_json_is_read_as_strictly_as_yaml(change: dict[str, Any], part: str) -> None:
    """What is wrong is a CaseError that says what would be right."""
    with pytest.raises(CaseError) as caught:
        case_from_json({**case_to_json(make_case()), **change})
    assert part in str(caught.value)
    assert isinstance(caught.value, HarnessError)


@pytest.mark.parametrize("key", ["name", "dtype", "op"])
def test_a_missing_key_of_the_json_is_an_error(key: str) -> None:
    """Nothing that decides a case is made up."""
    data = case_to_json(make_case())
    del data[key]
    with pytest.raises(CaseError, match=key):
        case_from_json(data)


def test_parameters_at_their_default_are_left_out() -> None:
    """An `ops` without a new parameter can still read the case, as long as it has its default."""
    assert case_to_json(make_case())["params"] == {}
    assert case_to_json(make_case(params=PNormParams(porder=-math.inf)))["params"] == {"porder": "-inf"}
