"""Selection of `opgauge run`: cases, implementations and devices, as given or as a resumed run had them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer

from opgauge.harness.cli.options import load, select, tell_unconfigured

if TYPE_CHECKING:
    from opgauge.harness.case.case import Case
    from opgauge.harness.store.store import Run

PROGRAM, VERB = "opgauge", "run"
"""First word and verb of the commands whose selection can be used again."""


@dataclass(frozen=True)
class RunSelection:
    """Options of `run` that select trials, under the names of its parameters; None or empty where not given."""

    paths: Sequence[Path] | None = None
    op: Sequence[str] | None = None
    tag: Sequence[str] | None = None
    dtype: Sequence[str] | None = None
    name: Sequence[str] | None = None
    case: Sequence[str] | None = None
    implementation: Sequence[str] | None = None
    device: Sequence[str] | None = None

    @classmethod
    def of_parameters(cls, parameters: dict[str, Any]) -> Self:
        """The selection among the parsed parameters of a command."""
        values = {field.name: list(parameters[field.name] or ()) for field in fields(cls)}
        return cls(**{**values, "paths": [Path(one) for one in values["paths"]]})

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        options = [
            word
            for field in fields(self)[1:]
            for value in getattr(self, field.name) or ()
            for word in (f"--{field.name}", value)
        ]
        return shlex.join([*map(str, self.paths or ()), *options]) or "every case by every implementation"

    def load_cases(self, notify: Callable[[str], None]) -> list[Case]:
        """The selected cases; where no project is configured, those shipped, which is announced.

        Raises FilterError or NothingError, as `select` does.
        """
        if not self.paths:
            tell_unconfigured(notify)
        found = load(self.paths, ops=self.op)
        return select(found, ops=self.op, tags=self.tag, dtypes=self.dtype, names=self.name, patterns=self.case)


def selection_to_resume(
    given: RunSelection, resume: str, url: str, notify: Callable[[str], None]
) -> tuple[RunSelection, str]:
    """The selection to measure, and the id of the run that is resumed.

    It is the one given, else that of the resumed run, which is announced. Raises BadParameter if the command of that
    run has no selection that can be read.
    """
    if given:
        return given, resume
    from opgauge.harness.store import Store

    with Store.open(url) as store:
        found = store.find_run(resume)
    selection = selection_of_run(found)
    notify(f"resuming run {found.id[:8]} with its selection: {selection}")
    return selection, found.id


def selection_of_run(run: Run) -> RunSelection:
    """The selection in the stored command of a run. Raises BadParameter if there is none."""
    parameters = _parsed(run.command)
    selection = None if parameters is None else RunSelection.of_parameters(parameters)
    # a command that resumed another run without a selection used that run's, not every case
    if selection is None or (parameters and parameters["resume"] and not selection):
        msg = (
            f"the selection of run {run.id[:8]} cannot be read from its command ({run.command or 'none stored'}): "
            "give paths, --op, --tag, --dtype, --name, --case, --implementation or --device"
        )
        raise typer.BadParameter(msg, param_hint="--resume")
    return selection


def _parsed(command: str) -> dict[str, Any] | None:
    """The parameters of an `opgauge run` command; None for any other, and for one that this version does not accept."""
    from opgauge.harness.cli.app import app, program_options_first

    group: Any = typer.main.get_command(app)
    try:
        program, *words = shlex.split(command)
        words = program_options_first(words)
        # options before the verb have effects when parsed, such as the installation of a completion
        outer = group.make_context(PROGRAM, list(words), resilient_parsing=True)
        rest = list(outer.args)
        if program != PROGRAM or words[len(words) - len(rest) - 1] != VERB:
            return None
        parameters: dict[str, Any] = group.get_command(outer, VERB).make_context(VERB, rest, parent=outer).params
    except Exception:  # noqa: BLE001  the classes of a parser's errors depend on the version of typer
        return None
    return parameters
