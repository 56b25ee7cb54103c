"""All verbs together, and how errors end: one line on stderr and the error's exit code, never a traceback."""

from __future__ import annotations

import sys

import typer

from harness.cli.aa import aa
from harness.cli.agree import agree
from harness.cli.check import check
from harness.cli.compile import compile_
from harness.cli.database import database
from harness.cli.export import export
from harness.cli.gate import gate
from harness.cli.history import history
from harness.cli.importing import import_
from harness.cli.inject import inject
from harness.cli.list import list_
from harness.cli.push import push
from harness.cli.run import run
from harness.cli.schema import schema
from harness.cli.serve import serve
from harness.cli.show import show
from harness.cli.token import token
from harness.cli.tune import tune
from harness.cli.version import version

app = typer.Typer(
    name="opgauge",
    help="Measure GPU operators, check them, and stop regressions.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("list")(list_)
app.command("check")(check)
app.command("compile")(compile_)
app.command("run")(run)
app.command("show")(show)
app.command("gate")(gate)
app.command("aa")(aa)
app.command("inject")(inject)
app.command("tune")(tune)
app.command("history")(history)
app.command("agree")(agree)
app.command("export")(export)
app.command("import")(import_)
app.command("push")(push)
app.command("schema")(schema)
app.add_typer(database, name="db")
app.add_typer(token, name="token")
app.command("serve")(serve)
app.command("version")(version)


def main() -> None:
    """Run the command line; the console script."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        from harness.errors import HarnessError
        from ops import OpError  # not before: a worker can start meanwhile

        if not isinstance(error, HarnessError | OpError):
            raise
        print(f"opgauge: {error}", file=sys.stderr)  # noqa: T201  the one place that speaks for errors
        sys.exit(getattr(error, "exit_code", 2))
