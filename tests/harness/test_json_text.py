"""The quick parser and writer of JSON, beside Python's own."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgauge.harness import json_text

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | numbers | st.text(st.characters(codec="utf-8"))
values = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
)


@given(values)
def test_what_is_written_is_read_again(value: object) -> None:
    """To the last bit of every number, by the quick parser and by Python's own."""
    for text in (json.dumps(value).encode(), json_text.write_compact(value)):
        assert repr(json_text.read_strictly(text)) == repr(json.loads(text)) == repr(value)
        assert repr(json_text.read(text.decode())) == repr(value)
    assert repr(json.loads(json_text.write(value))) == repr(value)


@pytest.mark.parametrize(
    "text", ["[NaN]", "[Infinity]", "[-Infinity]", '["\\ud800"]', "[01]", "[1] x", "", '["\x01"]', "[1_0]"]
)
def test_no_json_is_refused(text: str) -> None:
    """What JSON has not, halves of characters, and more than one value."""
    with pytest.raises(ValueError):  # noqa: PT011  the message is not ours
        json_text.read_strictly(text.encode())


def test_the_database_takes_what_python_does() -> None:
    """Halves of characters and numbers that are not finite, as databases of earlier versions may hold them."""
    data = {"half": "\ud800", "nan": math.nan, "inf": math.inf}
    assert repr(json_text.read(json_text.write(data))) == repr(json_text.read(json.dumps(data))) == repr(data)
