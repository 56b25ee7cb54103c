"""`opgauge webhook`: notifications of regressions, silent devices and dead runs."""

from __future__ import annotations

from typing import Annotated

import typer

from opgauge.harness.cli.options import Database, database_url

webhook = typer.Typer(help="Manage notifications of regressions.", no_args_is_help=True)
USUAL = ("broken", "slower", "silent", "died")
"""Events that are sent by default."""


@webhook.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the webhook.")],
    url: Annotated[str, typer.Argument(help="Address that takes the messages by POST.")],
    project: Annotated[
        str | None, typer.Option("--project", help="Project whose events are sent. Default: the only one.")
    ] = None,
    form: Annotated[str, typer.Option("--form", help="json, or slack for Slack and compatible services.")] = "json",
    event: Annotated[
        list[str] | None,
        typer.Option("--event", help="broken, slower, suspected, silent, died; repeatable. Not suspected if none."),
    ] = None,
    db: Database = None,
) -> None:
    """Add a webhook and print the secret that signs its messages.

    The header X-Opgauge-Signature is sha256= and the HMAC of X-Opgauge-Timestamp, a dot and the body.

    Example: opgauge webhook add chat https://hooks.example/x --form slack --event slower --event broken
    """
    from opgauge.harness.errors import SettingsError
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.projects import list_projects
    from opgauge.harness.store.webhooks import Event, Form, add_webhook

    try:
        chosen = frozenset(Event(one) for one in event or USUAL)
        kind = Form(form)
    except ValueError as error:
        msg = f"{error}; events are {', '.join(Event)}, forms {', '.join(Form)}"
        raise SettingsError(msg) from error
    with Store.open(database_url(db)) as store:
        known = [one for one, _, _ in list_projects(store.engine)]
        if project is None and len(known) > 1:
            msg = f"there are several projects: --project {' or '.join(one or repr('') for one in sorted(known))}"
            raise SettingsError(msg)
        chosen_project = next(iter(known), "") if project is None else project
        secret = add_webhook(store.engine, name, url, project=chosen_project, form=kind, events=chosen)
        add_audit(store.engine, "", "add webhook", name, f"{kind}, {', '.join(sorted(chosen))}")
    if known and chosen_project not in known:
        shown = ", ".join(one or "one without a name" for one in sorted(known))
        typer.echo(f"note: project {chosen_project!r} has no runs; there are: {shown}", err=True)
    typer.echo(secret)


@webhook.command("list")
def list_(db: Database = None) -> None:
    """List the webhooks, without their secrets.

    Example: opgauge webhook list
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.webhooks import list_webhooks

    with Store.open(database_url(db)) as store:
        for one in list_webhooks(store.engine):
            where = one.project or "unnamed project"
            typer.echo(f"{one.name:24} {one.form:6} {where}  {', '.join(sorted(one.events))}  {one.url}")


@webhook.command("remove")
def remove(name: Annotated[str, typer.Argument(help="Name of the webhook.")], db: Database = None) -> None:
    """Remove a webhook and the messages that wait for it.

    Example: opgauge webhook remove chat
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.webhooks import remove_webhook

    with Store.open(database_url(db)) as store:
        remove_webhook(store.engine, name)
        add_audit(store.engine, "", "remove webhook", name)
    typer.echo(f"webhook {name} is removed")
