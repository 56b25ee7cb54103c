"""Execute the notebook of the documentation, and write what its cells print.

`python -m tools.notebook` runs the cells of `docs/notebook.ipynb` in order, in a process and a folder of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"
PATIENCE_S = 240
"""Seconds that all cells may take."""
PROGRAM = """
import contextlib, io, json, sys
printed, names = [], {"__name__": "__main__"}
for source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile(source, "cell", "exec"), names)
    printed.append(text.getvalue())
json.dump(printed, sys.stdout)
"""
"""Program that runs the cells in a process of its own and prints what each printed, as JSON."""


def executed(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of a new execution; raises CalledProcessError where a cell fails."""
    found: dict[str, Any] = deepcopy(dict(notebook))
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    sources = json.dumps(["".join(cell["source"]) for cell in cells])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM],
            cwd=folder,
            input=sources,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
    for number, (cell, text) in enumerate(zip(cells, json.loads(done.stdout), strict=True), start=1):
        lines = text.splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    return found


if __name__ == "__main__":
    text = json.dumps(executed(json.loads(NOTEBOOK.read_text(encoding="utf-8"))), indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(f"{text}\n", encoding="utf-8")
