"""All verbs together, and how errors end: one line on stderr and the error's exit code, never a traceback."""

from __future__ import annotations

import sys

import typer
from opgauge.harness.cli.aa import aa
from opgauge.harness.cli.agree import agree
from opgauge.harness.cli.check import check
from opgauge.harness.cli.compile import compile_
from opgauge.harness.cli.database import database
from opgauge.harness.cli.explore import explore
from opgauge.harness.cli.export import export
from opgauge.harness.cli.gate import gate
from opgauge.harness.cli.history import history
from opgauge.harness.cli.importing import import_
from opgauge.harness.cli.inject import inject
from opgauge.harness.cli.list import list_
from opgauge.harness.cli.push import push
from opgauge.harness.cli.run import run
from opgauge.harness.cli.schema import schema
from opgauge.harness.cli.serve import serve
from opgauge.harness.cli.show import show
from opgauge.harness.cli.token import token
from opgauge.harness.cli.tune import tune
from opgauge.harness.cli.version import version

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
app.command("explore")(explore)
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
        from opgauge.harness.errors import HarnessError
        from opgauge.ops import OpError  # not before: a worker can start meanwhile

        if not isinstance(error, HarnessError | OpError):
            raise
        print(f"opgauge: {error}", file=sys.stderr)  # noqa: T201  the one place that speaks for errors
        sys.exit(getattr(error, "exit_code", 2))
