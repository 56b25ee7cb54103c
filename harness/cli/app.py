"""All verbs, and the end of the command line: an error is one line on stderr and an exit code, without traceback."""

from __future__ import annotations

import codecs
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from opgauge.harness.cli.aa import aa
from opgauge.harness.cli.agree import agree
from opgauge.harness.cli.building import Verb
from opgauge.harness.cli.check import check
from opgauge.harness.cli.cluster import cluster
from opgauge.harness.cli.compare import compare
from opgauge.harness.cli.compile import compile_
from opgauge.harness.cli.config import config
from opgauge.harness.cli.database import database
from opgauge.harness.cli.doctor import doctor
from opgauge.harness.cli.explain import explain
from opgauge.harness.cli.explore import explore
from opgauge.harness.cli.export import export
from opgauge.harness.cli.gate import gate
from opgauge.harness.cli.history import history
from opgauge.harness.cli.importing import import_
from opgauge.harness.cli.init import init
from opgauge.harness.cli.inject import inject
from opgauge.harness.cli.list import list_
from opgauge.harness.cli.project import project
from opgauge.harness.cli.push import push
from opgauge.harness.cli.run import run
from opgauge.harness.cli.runs import runs
from opgauge.harness.cli.schema import schema
from opgauge.harness.cli.serve import serve
from opgauge.harness.cli.show import show
from opgauge.harness.cli.token import token
from opgauge.harness.cli.tune import tune
from opgauge.harness.cli.version import version, version_text
from opgauge.harness.cli.webhook import webhook
from opgauge.harness.run.signals import TerminatedError, exit_code, interruptible

ASCII = {
    "µ": "u",
    "×": "x",
    "÷": "/",
    "·": "-",
    "–": "-",
    "…": "~",
    "†": "+",
    "‡": "+",
    "✗": "X",
    "✓": "v",
    "→": ">",
    "±": "~",
    "≤": "<",
    "≥": ">",
    "─": "-",
}
"""Replacements of characters that a terminal without UTF-8 may lack."""
CLOSED = 141
"""Exit code where standard output was closed early: 128 + SIGPIPE, which is no verdict."""

BUILTIN, CONFIG = "--builtin", "--config"
"""Options that select the shipped ops, and a project."""


class VerbGroup(TyperGroup):
    """Verbs that accept the options of the program after their name too, as `opgauge run --builtin`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args` with options of the program first."""
        return super().parse_args(ctx, program_options_first(args))


def program_options_first(args: list[str]) -> list[str]:
    """The words of a command with `--builtin` and `--config` first; words after `--` are left alone."""
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word == BUILTIN or word.startswith(f"{CONFIG}="):
            first.append(word)
        elif word == CONFIG:
            first += [word, *islice(words, 1)]
        else:
            rest.append(word)
    return [*first, *rest, *args[end:]]


app = typer.Typer(
    name="opgauge",
    cls=VerbGroup,
    help="Measure GPU operators, check them, and stop regressions.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


app.command("init", cls=Verb)(init)
app.command("config", cls=Verb)(config)
app.command("list", cls=Verb)(list_)
app.command("check", cls=Verb)(check)
app.command("compile", cls=Verb)(compile_)
app.command("run", cls=Verb)(run)
app.command("doctor", cls=Verb)(doctor)
app.command("show", cls=Verb)(show)
app.command("explore", cls=Verb)(explore)
app.command("gate", cls=Verb)(gate)
app.command("compare", cls=Verb)(compare)
app.command("aa", cls=Verb)(aa)
app.command("inject", cls=Verb)(inject)
app.command("tune", cls=Verb)(tune)
app.command("history", cls=Verb)(history)
app.command("agree", cls=Verb)(agree)
app.command("export", cls=Verb)(export)
app.command("import", cls=Verb)(import_)
app.command("push", cls=Verb)(push)
app.command("schema", cls=Verb)(schema)
app.add_typer(runs, name="runs")
app.add_typer(database, name="db")
app.add_typer(project, name="project")
app.add_typer(token, name="token")
app.add_typer(cluster, name="cluster")
app.add_typer(webhook, name="webhook")
app.command("serve", cls=Verb)(serve)
app.command("version", cls=Verb)(version)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    show_version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    config: Annotated[
        Path | None,
        typer.Option(
            CONFIG,
            metavar="FILE",
            help="Project configuration; default: OPGAUGE_CONFIG, or the nearest opgauge.toml or [tool.opgauge].",
        ),
    ] = None,
    builtin: Annotated[
        bool, typer.Option(BUILTIN, help="Use the ops that opgauge ships; before or after the verb.")
    ] = False,
) -> None:
    """Measure compute kernels, check them, and stop regressions."""
    if show_version:
        typer.echo(version_text())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    from opgauge.harness.project import active
    from opgauge.harness.settings import configuration_file

    active.choose(active.ProjectChoice(config or configuration_file(), builtin))


def main() -> None:
    """Run the command line; the console script."""
    codecs.register_error("opgauge", _as_ascii)
    for stream in (sys.stdout, sys.stderr):
        _tolerate(stream)
    try:
        with interruptible():
            app()
    except BrokenPipeError:
        _end_closed()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            # typer ends with 1, which is a verdict of the gate
            _end_closed()
        _end_by_signal(ended)
        raise
    except KeyboardInterrupt as error:
        sys.exit(exit_code(error))
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        text, code = explained
        print(f"opgauge: {text}", file=sys.stderr)  # noqa: T201  the one place that speaks for errors
        sys.exit(code)


def _end_closed() -> NoReturn:
    """End as a command does whose reader has gone, such as `head`."""
    # the interpreter would flush standard output again at exit, and fail again
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(CLOSED)


def _end_by_signal(ended: SystemExit) -> None:
    """End with the exit code of the signal that led to this end, if it is not Ctrl-C's, which typer knows."""
    cause: BaseException | None = ended
    while cause is not None:
        if isinstance(cause, TerminatedError):
            sys.exit(exit_code(cause))
        cause = cause.__context__


def _tolerate(stream: TextIO | None) -> None:
    """Replace characters that a stream cannot encode, instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="opgauge")


def _as_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII.get(one, "?") for one in error.object[error.start : error.end]), error.end
