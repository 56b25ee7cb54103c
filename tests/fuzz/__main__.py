"""Coverage-guided fuzzing by atheris (the extra `fuzz`): `python -m tests.fuzz TARGET [--keep] [-max_total_time=60]`.

Options with one dash are libFuzzer's. `--keep` adds the short inputs that reached new code to the target's corpus.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import corpus, keep, kept, valid

KEEP = "--keep"
KEPT_BYTES, KEPT_COUNT = 400, 40
"""Length and number of the inputs that are kept: the corpus is part of the repository."""
LIMITS = ("-timeout=20", "-rss_limit_mb=2048")
"""Seconds that one input may take and the memory of the process: a hang or growth beyond them is a crash."""


def main() -> int:
    """Fuzz one target until the time is over; a crash is printed, its input is written to the current folder."""
    name, *given = sys.argv[1:]
    options = [option for option in given if option != KEEP] or ["-max_total_time=60"]
    with tempfile.TemporaryDirectory() as folder:
        found, least = (Path(folder) / part for part in ("found", "least"))
        found.mkdir()
        least.mkdir()
        for number, content in enumerate(corpus(name)):
            (found / str(number)).write_bytes(content)
        program = _program(Path(folder), name)
        code = _run(program, *LIMITS, *options, str(found))
        if not code and KEEP in given:
            _run(program, "-merge=1", "-verbosity=0", str(least), str(found))
            short = sorted((file.read_bytes() for file in least.iterdir()), key=len)
            new = [content for content in short if len(content) <= KEPT_BYTES and content not in valid(name)]
            keep(name, [*kept(name), *new][:KEPT_COUNT])
    return code


def _program(folder: Path, name: str) -> Path:
    """An executable that fuzzes one target: libFuzzer starts itself again to merge corpora."""
    path = folder / "fuzz"
    command = shlex.join([sys.executable, "-m", "tests.fuzz.instrumented", str(path), name])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o700)
    return path


def _run(program: Path, *options: str) -> int:
    return subprocess.run([program, *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
