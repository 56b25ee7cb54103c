"""Coverage-guided fuzzing by atheris (the extra `fuzz`): `python -m tests.fuzz TARGET [-max_total_time=60]`."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Fuzz one target until the time is over; a crash is printed and its input kept in the current folder."""
    atheris = import_module("atheris")
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["opgauge.harness"]):
        from tests.fuzz.targets import attempt, corpus
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(corpus(name)):
            (Path(folder) / str(number)).write_bytes(content)
        atheris.Setup([sys.argv[0], *(options or ["-max_total_time=60"]), folder], lambda data: attempt(name, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
