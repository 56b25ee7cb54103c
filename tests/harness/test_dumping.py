"""Runs as JSON text: spliced from what the database holds, and the same as if it had been read and written again."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pydantic_core
import pytest

from opgauge.harness.store import dumping
from tests.hostile import KEYS

PACKED = (array("d", [1.5, 2.0, 1e-7, 1e22]).tobytes(), b"", array("d", [1980.0]).tobytes())
(SAMPLES,) = dumping._samples([PACKED])
EMPTY: dict[str, list[float]] = {name: [] for name in dumping.SAMPLES_OF}
TRICKS: tuple[dict[str, Any], ...] = (
    {},
    {"extra": {}},
    {"log": '"block": 0, "extra": {', "x": {"block": 0, "extra": {}}},
    {"measurement": {**EMPTY}, "y": {"measurement": {**EMPTY}, "quantiles_ns": [1]}},
    {'"samples_ns': [], "cpu_ns": [], "clock_mhz": []},
    {"log": 'back\\slash " quote, é, \U0001f680, \u2028, {[]}'},
    {"measurement": None},
    *({key: 1, "log": key} for key in KEYS if key != "quantiles_ns"),
)


def stored(extra: dict[str, Any], reason: str, *, measured: bool) -> dict[str, Any]:
    """A result as `opgauge.harness.store.result_rows.result_values` makes it."""
    found: dict[str, Any] = {"status": "ok", "reason": reason, "check": {"ok": True, "reason": reason}, "bytes": 1}
    found |= {"block": 3, "extra": extra, "profile": None, "ruler": None, "measurement": None}
    if measured:
        found["measurement"] = {"timer": "events/1", "footprint": {"kernels": [reason]}, **EMPTY}
        found["quantiles_ns"] = [1.0, 1.5, 2.0, 4]
    return found


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("extra", TRICKS, ids=str)
def test_spliced_text_is_what_reading_and_writing_gives(extra: dict[str, Any], measured: bool) -> None:
    """Whatever a submission calls its entries, by either writer of JSON."""
    for reason in ("", '", "block": 0, "extra": {', '"measurement": null}', "\\", '\\"'):
        data = stored(extra, reason, measured=measured)
        whole = json.loads("{" + dumping._rewritten(json.dumps(data), PACKED))
        assert (whole["measurement"] or {}).get("samples_ns") == ([1.5, 2.0, 1e-7, 1e22] if measured else None)
        for text in (json.dumps(data), json.dumps(data, ensure_ascii=False), pydantic_core.to_json(data).decode()):
            spliced = dumping._body(text, SAMPLES)
            assert spliced or dumping._HALF in text
            assert json.loads("{" + (spliced or dumping._rewritten(text, PACKED))) == whole


@pytest.mark.parametrize(
    "text",
    [
        '{"extra": {}, "block": 0, "measurement": null}',
        '{"block": 0, "extra": {}, "measurement": null, "profile": null}',
        '{"block": 0, "extra": {"log": "\\ud800"}, "measurement": null}',
        '{"block": 0, "extra": {}, "measurement": {"samples_ns": [], "cpu_ns": [], "clock_mhz": [], "hot_ns": 1}}',
    ],
)
def test_what_is_in_another_order_is_written_again(text: str) -> None:
    """An older or newer version may have written it, or it holds half a character."""
    assert dumping._body(text, SAMPLES) == ""
    again = json.loads("{" + dumping._rewritten(text, PACKED))
    assert again["block"] == 0
