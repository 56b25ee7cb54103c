"""`python -m harness`: the command line, for a harness that is not installed."""

from harness.cli import main

main()
