"""`opgauge project`: settings and commits of the projects in a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opgauge.harness.cli.options import Database, database_url
from opgauge.harness.counting import counted

project = typer.Typer(help="Settings and commits of projects.", no_args_is_help=True)


@project.command("list")
def list_(db: Database = None) -> None:
    """List the projects that have runs, with their settings.

    Example: opgauge project list
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.projects import find_project, list_projects

    with Store.open(database_url(db)) as store:
        for name, count, started in list_projects(store.engine):
            found = find_project(store.engine, name)
            keeps = "all samples" if found.samples_days is None else f"samples for {found.samples_days} days"
            branch = found.default_branch or "default branch"
            shown = name or "(unnamed)"
            runs = f"{counted(count, 'run'):>11}, latest {started:%Y-%m-%d}"
            typer.echo(f"{shown:24} {runs}  {branch}  {keeps}  {found.forge}")


@project.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="Name of the project in its runs.")],
    default_branch: Annotated[
        str | None, typer.Option("--default-branch", help="Branch whose clean runs are the history.")
    ] = None,
    forge: Annotated[
        str | None, typer.Option("--forge", help="Address of a commit, with {sha} in it; commits are linked to it.")
    ] = None,
    samples_days: Annotated[
        int | None, typer.Option("--samples-days", help="Days until db prune drops raw samples; 0: never.", min=0)
    ] = None,
    db: Database = None,
) -> None:
    """Change settings of a project; omitted options are left unchanged.

    Example: opgauge project set kernels --forge https://forge.example/kernels/commit/{sha}
    """
    from dataclasses import replace

    from opgauge.harness.errors import SettingsError
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.project_state import change_state
    from opgauge.harness.store.projects import find_project, save_project

    if forge and not (forge.startswith(("https://", "http://")) and "{sha}" in forge):
        msg = f"--forge should be an address with {{sha}} in it, not {forge!r}"
        raise SettingsError(msg)
    with Store.open(database_url(db)) as store:
        found = find_project(store.engine, name)
        if default_branch is not None:
            found = replace(found, default_branch=default_branch)
        if forge is not None:
            found = replace(found, forge=forge)
        if samples_days is not None:
            found = replace(found, samples_days=samples_days or None)
        save_project(store.engine, found)
        change_state(store.engine, name)
        add_audit(store.engine, "", "set project", name, str(found))
    typer.echo(f"project {name}: {found}")


@project.command("commits")
def commits(
    name: Annotated[str, typer.Argument(help="Name of the project in its runs.")],
    tree: Annotated[Path, typer.Option("--tree", help="The repository.", exists=True, file_okay=False)] = Path(),
    limit: Annotated[int, typer.Option("--limit", help="Latest commits to read.", min=1)] = 5000,
    db: Database = None,
) -> None:
    """Read commits of a repository: their order, authors and subjects appear in histories.

    Runs of commits that a branch has lost, by a rebase for example, leave its history.

    Example: opgauge project commits kernels --tree ~/kernels
    """
    from opgauge.harness.report.commits import read_commits, read_tips
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.project_state import change_state
    from opgauge.harness.store.projects import add_commits

    found = read_commits(tree, limit)
    with Store.open(database_url(db)) as store:
        added = add_commits(store.engine, name, found)
        change_state(store.engine, name, tips=read_tips(tree))
        add_audit(store.engine, "", "read commits", name, f"{added} new")
    typer.echo(f"project {name}: {counted(added, 'new commit')} of {len(found)}")
