"""Any file, any shapes: a case or a mistake, never a traceback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opgauge.harness.case.case import Case, InputSpec
from opgauge.harness.case.file import load_cases
from opgauge.harness.case.hint import read_value, record_hints
from opgauge.harness.case.rules import USED_BY, build_case, field_hints
from opgauge.harness.errors import CaseError, CaseFileError
from opgauge.ops import all_ops, find_op

CASES = Path(__file__).parents[2] / "cases"
SHIPPED = [file.read_text(encoding="utf-8") for file in sorted(CASES.glob("*.yaml"))]

scalars = st.sampled_from([None, True, False, 0, 1, -1, 2.5, "inf", "-inf", "nan", "fro", "float32", "x", ""])
values = scalars | st.integers(-3, 9) | st.lists(st.integers(-2, 6), max_size=4)


@pytest.mark.parametrize("op", [op.name for op in all_ops()])
@settings(max_examples=60)
@given(data=st.data())
def test_any_values_of_any_op_give_a_case_or_a_case_error(op: str, data: st.DataObject) -> None:
    """Shape rules raise the library's own errors, whatever the shapes, axes and numbers."""
    given_values: dict[str, Any] = {"dtype": data.draw(st.sampled_from(find_op(op).dtypes))}
    for path, hint in field_hints(op).items():
        section = path.partition(".")[0]
        if section == "shapes":
            drawn: Any = tuple(data.draw(st.lists(st.integers(0, 6), max_size=5)))
        elif section == "params":
            drawn = data.draw(values)
        else:
            continue
        if not data.draw(st.booleans()):
            continue
        try:
            given_values[path] = read_value(drawn, hint)
        except ValueError:
            continue
    try:
        case = build_case(find_op(op), given_values, name="a")
    except CaseError:
        return
    assert isinstance(case, Case)
    assert len(case.id) == 16


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_garbled_file_gives_cases_or_mistakes(tmp_path: Path, data: st.DataObject) -> None:
    """Cut, doubled or altered anywhere, a shipped file either loads or is a CaseFileError."""
    text = data.draw(st.sampled_from(SHIPPED))
    at = data.draw(st.integers(0, len(text)))
    until = data.draw(st.integers(at, min(at + 40, len(text))))
    instead = data.draw(st.text(max_size=6) | st.sampled_from(["[", "{", "*x", "&x ", "- ", ": ", "\t", '"', "!!x "]))
    file = tmp_path / "garbled.yaml"
    file.write_bytes((text[:at] + instead + text[until:]).encode("utf-8", errors="surrogatepass"))
    try:
        load_cases([file])
    except CaseFileError as error:
        for mistake in error.mistakes:
            assert mistake.place.line >= 1
            assert mistake.place.column >= 1
            assert "\n" not in mistake.text


@given(st.binary(max_size=200))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_mistake(tmp_path: Path, data: bytes) -> None:
    """What is not a case file is told so."""
    file = tmp_path / "bytes.yaml"
    file.write_bytes(data)
    with pytest.raises(CaseFileError):
        load_cases([file])


def test_every_field_of_a_distribution_has_its_kinds() -> None:
    """A new field of InputSpec must say which kinds use it."""
    assert set(USED_BY) == set(record_hints(InputSpec)) - {"kind", "layout"}


def test_an_op_of_one_dtype_needs_none() -> None:
    """A case without a dtype has the only one, and is the same case as with it; of several, one has to be named."""
    op, values = replace(find_op("dot"), dtypes=("float64",)), {"shapes.x": (3, 4), "shapes.y": (3, 4)}
    found = build_case(op, values, name="a")
    assert found == build_case(op, {**values, "dtype": "float64"}, name="a")
    with pytest.raises(CaseError, match="dtype is missing; dot takes float16"):
        build_case(find_op("dot"), values, name="a")
