"""The instrumented process of `python -m tests.fuzz`: libFuzzer ends it, so that nothing can follow in it."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Run libFuzzer on one target with its options and folders, as the program that started this process."""
    atheris = import_module("atheris")
    program, name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["opgauge.harness", "opgauge.web", "opgauge.ops._core.tuning"]):
        from tests.fuzz.targets import attempt
    atheris.Setup([program, *options], lambda data: attempt(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
