"""JSON text read and written by pydantic's parser and writer, several times as fast as Python's own.

Importing them takes a twentieth of a second, so a command that reads little JSON does without. Input that they refuse
is passed to Python's `json`: results are the same as those of `json`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

_CORE = "pydantic_core"


def read(text: str | bytes) -> Any:
    """Parse JSON from the database, as `json.loads` does."""
    core: Any = sys.modules.get(_CORE)
    try:
        return json.loads(text) if core is None else core.from_json(text)
    except ValueError:
        return json.loads(text)


def read_strictly(text: bytes) -> Any:
    """Parse JSON from elsewhere; raises ValueError for NaN, infinities and lone surrogates."""
    return import_module(_CORE).from_json(text, allow_inf_nan=False)


def write(data: Any) -> str:
    """Serialize for the database, as `json.dumps` does."""
    core: Any = sys.modules.get(_CORE)
    try:
        return json.dumps(data) if core is None else str(core.to_json(data), "utf-8")
    except ValueError:
        return json.dumps(data)


def write_compact(data: Any) -> bytes:
    """JSON in UTF-8 without spaces, for a file. Raises ValueError for data that is not text or not finite."""
    try:
        return bytes(import_module(_CORE).to_json(data, inf_nan_mode="null"))
    except ValueError:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
