"""Files of self-tests: findings of `aa`, `inject`, `agree` and of cheats, from one database for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from opgauge.harness.result.strict import SubmissionError, check_plain
from opgauge.harness.result.submission import FORMAT
from opgauge.harness.store.self_tests import KINDS, SelfTest

KEY = "self_tests"
"""Name of the list, which tells such a file from one of a run."""
MOST = 1000
"""Most self-tests of a file."""
TEXTS = {"kind": 16, "commit": 64, "device": 16}
"""Most characters of each text."""


def self_test_file(tests: Iterable[SelfTest]) -> dict[str, Any]:
    """The content of a file, as JSON."""
    listed = [
        {
            "kind": one.kind,
            "created": one.created.isoformat(),
            "commit": one.commit,
            "device": one.device,
            "data": one.data,
        }
        for one in tests
    ]
    return {"opgauge": FORMAT, KEY: listed}


def has_self_tests(data: Any) -> bool:
    """Whether parsed JSON is such a file."""
    return isinstance(data, Mapping) and "opgauge" in data and KEY in data


def read_self_tests(data: Mapping[str, Any]) -> list[SelfTest]:
    """The self-tests of a file; raises SubmissionError for a wrong form."""
    listed = data[KEY]
    if data["opgauge"] != FORMAT or not isinstance(listed, list) or len(listed) > MOST:
        msg = f"must be a list of at most {MOST}, in a file of format {FORMAT}"
        raise SubmissionError(KEY, msg)
    return [_read(one, f"{KEY}[{number}]") for number, one in enumerate(listed)]


def _read(data: Any, path: str) -> SelfTest:
    fields = SelfTest.__slots__
    if not isinstance(data, Mapping) or data.keys() != set(fields):
        msg = f"must have the fields {', '.join(fields)} and no others"
        raise SubmissionError(path, msg)
    rules = {name: (_is_text(data[name], most), f"a text of at most {most} characters") for name, most in TEXTS.items()}
    rules["kind"] = (data["kind"] in KINDS, f"one of {', '.join(KINDS)}")
    rules["created"] = (_time(data["created"]) is not None, "a time with its time zone, in ISO 8601")
    rules["data"] = (isinstance(data["data"], Mapping), "an object")
    for name, (holds, rule) in rules.items():
        if not holds:
            place, msg = f"{path}.{name}", f"must be {rule}"
            raise SubmissionError(place, msg)
    check_plain(data["data"], f"{path}.data")
    return SelfTest(**{**data, "created": _time(data["created"])})


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most


def _time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None
