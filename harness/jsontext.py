"""JSON by the parser and writer that come with pydantic: several times as fast as Python's own, and runs are large.

They take a twentieth of a second to import, so a command that reads a little JSON goes without. What they
refuse, Python's own decides: nothing is read or written otherwise than by `json`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

_CORE = "pydantic_core"


def read(text: str | bytes) -> Any:
    """As `json.loads`, of what the database holds."""
    core: Any = sys.modules.get(_CORE)
    try:
        return json.loads(text) if core is None else core.from_json(text)
    except ValueError:
        return json.loads(text)


def read_strictly(text: bytes) -> Any:
    """As `json.loads`, but for NaN, infinities and halves of characters: raises ValueError for these."""
    return import_module(_CORE).from_json(text, allow_inf_nan=False)


def write(data: Any) -> str:
    """As `json.dumps`, for the database."""
    core: Any = sys.modules.get(_CORE)
    try:
        return json.dumps(data) if core is None else str(core.to_json(data), "utf-8")
    except ValueError:
        return json.dumps(data)


def write_compact(data: Any) -> bytes:
    """JSON in UTF-8 without spaces, for a file. Raises ValueError for what is no text or not finite."""
    try:
        return bytes(import_module(_CORE).to_json(data, inf_nan_mode="null"))
    except ValueError:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
