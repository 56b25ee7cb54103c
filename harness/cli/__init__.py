"""The command line: `opgauge VERB`. One verb a file; what is heavy is imported when a verb runs."""

from opgauge.harness.cli.app import app, main

__all__ = ["app", "main"]
