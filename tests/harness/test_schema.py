"""The JSON Schema of case files: complete, and no stricter than the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from opgauge.harness.case.document import read_documents
from opgauge.harness.case.file import load_cases
from opgauge.harness.case.schema import case_schema
from opgauge.ops import all_ops

CASES = Path(__file__).parents[2] / "cases"
FILES = sorted(CASES.glob("*.yaml"))


def validator() -> Draft202012Validator:
    """Checks documents against the schema."""
    return Draft202012Validator(case_schema())


def document(op: str = "p_norm", **case: Any) -> dict[str, Any]:
    """A document with one case."""
    return {"op": op, "cases": [{"name": "a", "dtype": "float32", "shapes": {"x": [2, 3]}, **case}]}


def test_the_schema_is_a_schema() -> None:
    """It follows draft 2020-12 and is plain JSON."""
    Draft202012Validator.check_schema(case_schema())
    json.dumps(case_schema(), allow_nan=False)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_file_names_the_schema_and_keeps_to_it(file: Path) -> None:
    """Editors find the schema by the first line, and have nothing to complain of."""
    if file.name in ("waivers.yaml", "policy.yaml"):
        pytest.skip("holds no cases")
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    assert first == "# yaml-language-server: $schema=schema/case.schema.json"
    for tree in read_documents(file, []):
        assert [error.message for error in validator().iter_errors(tree.plain)] == []


def test_the_shipped_cases_load() -> None:
    """Every shipped file is free of mistakes, also all of them together."""
    assert load_cases([CASES])


def test_every_op_and_its_fields_are_described() -> None:
    """Editors complete ops, parameters and inputs, and say what they are."""
    schema = case_schema()
    assert schema["properties"]["op"]["enum"] == [op.name for op in all_ops()]
    case = schema["$defs"]["p_norm.case"]["properties"]
    assert "order of the norm" in case["params"]["properties"]["porder"]["description"]
    assert set(case["shapes"]["properties"]) == {"x"}
    assert "params.porder" in case["zip"]["properties"]


@pytest.mark.parametrize(
    "right",
    [
        document(),
        document(dtype=["float32", "float16"]),
        document(params={"porder": [2, "fro", "-inf", 0.5], "axis": [[0, 1], -1, None]}),
        document(params={"axis": [0, 1], "keepdim": [True, False]}),
        document(shapes={"x": [[2, 3], []]}),
        document(zip={"params.axis": [0, [0, 1]], "shapes.x": [[2, 3], [4, 5]]}),
        document(inputs={"x": {"kind": ["uniform", "normal"], "layout": "offset"}}),
        document(gate={"threshold": 0.03, "max_launches": 1}, published={"device": "P4", "ms": 1.5}),
        {**document(), "defaults": {"tags": ["smoke"], "note": "x"}},
    ],
)
def test_what_the_loader_takes_the_schema_takes(right: dict[str, Any]) -> None:
    """Sweeps, pairs, infinities and zip are valid."""
    assert [error.message for error in validator().iter_errors(right)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"op": "p_norm"},
        {"op": "p_nrm", "cases": [{"name": "a"}]},
        {"op": "p_norm", "cases": []},
        {**document(), "extra": 1},
        {**document(), "defaults": {"dtypes": "float32"}},
        {"op": "p_norm", "cases": [{"dtype": "float32"}]},
        document(dtype="flot32"),
        document(params={"pordr": 2}),
        document(params={"porder": "banana"}),
        document(params={"porder": True}),
        document(params={"axis": 1.5}),
        document(params={"porder": []}),
        document(shapes={"q": [1]}),
        document(shapes={"x": [-1]}),
        document(shapes={"x": 3}),
        document(inputs={"x": {"kind": "unifrm"}}),
        document(gate={"min_sped": 1}),
        document(zip={"params.pordr": [1]}),
        document(published={"ms": [1]}),
        document(tags="smoke"),
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(wrong: dict[str, Any]) -> None:
    """An editor underlines the mistakes that need no shape rule."""
    assert list(validator().iter_errors(wrong))
