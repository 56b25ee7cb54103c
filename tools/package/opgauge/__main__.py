"""`python -m opgauge`: the command line."""

from opgauge.harness.cli import main

main()
