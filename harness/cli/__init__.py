"""The command line: `opgauge VERB`. One verb per file; large modules are imported when a verb runs."""

from opgauge.harness.cli.app import app, main

__all__ = ["app", "main"]
