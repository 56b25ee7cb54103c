"""`opgauge` without an interpreter of its own, whose start and imports take longer than most verbs."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from opgauge.harness.cli import main
from opgauge.ops._core import tuning


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str, cwd: Path, variables: Mapping[str, str]) -> Done:
    """Run `opgauge` in this process, in folder `cwd`, with these variables besides those that there are.

    It ends as the console script would: with a traceback on stderr and 1 for what is no error of the harness's own.
    """
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    out, errors = streams
    with ExitStack() as stack:
        stack.enter_context(chdir(cwd))
        stack.enter_context(patch.dict(os.environ, variables))
        stack.callback(tuning.use, None)  # a verb may have read the file that OPGAUGE_TUNING names
        stack.enter_context(patch.object(sys, "argv", ["opgauge", *arguments]))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(errors))
        code = _code()
    printed = [stream.detach().getvalue().decode() for stream in streams]
    return Done(code, *printed)


def _code() -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:  # noqa: BLE001  the interpreter would print it and end with 1
        traceback.print_exc()
        return 1
    return 0
