"""The notebook of the documentation: executed anew, it prints what is stored in it."""

from __future__ import annotations

import json

from tools.notebook import NOTEBOOK, executed


def test_the_notebook_prints_its_stored_outputs() -> None:
    """Calls, measurements and stored results; `python -m tools.notebook` writes the outputs."""
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert executed(stored) == stored
