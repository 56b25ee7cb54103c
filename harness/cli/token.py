"""`opgauge token`: access tokens of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opgauge.harness.cli.options import AsJson, Database, database_url
from opgauge.harness.scope import Scope

if TYPE_CHECKING:
    from opgauge.harness.store.tokens import Token

token = typer.Typer(help="Create, list and revoke access tokens.", no_args_is_help=True)


@token.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name: a machine or a person.")],
    scope: Annotated[Scope, typer.Option("--scope", help="read, submit runs, acknowledge regressions, or everything.")],
    project: Annotated[
        str | None, typer.Option("--project", help="The only project that it is valid for; all if none.")
    ] = None,
    days: Annotated[int | None, typer.Option("--days", help="Days until it expires; never if none.", min=1)] = None,
    db: Database = None,
) -> None:
    """Create a token and print it once: only its hash is stored.

    Example: opgauge token create gpu-host-1 --scope submit
    """
    from datetime import UTC, datetime, timedelta

    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.tokens import create_token

    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with Store.open(database_url(db)) as store:
        secret = create_token(store.engine, name, scope, project=project, expires=expires)
        add_audit(store.engine, "", "create token", name, f"scope {scope}")
    typer.echo(f"token {name} ({scope}); it is not shown again. Use it as OPGAUGE_TOKEN:", err=True)
    typer.echo(secret)


@token.command("list")
def list_(db: Database = None, as_json: AsJson = False) -> None:
    """List all tokens, including revoked ones.

    Example: opgauge token list
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.tokens import list_tokens

    with Store.open(database_url(db)) as store:
        found = list_tokens(store.engine)
    if as_json:
        import json

        listed = [
            {
                "name": one.name,
                "scope": str(one.scope),
                "created": one.created.isoformat(),
                "revoked": one.revoked.isoformat() if one.revoked else None,
                "project": one.project,
                "expires": one.expires.isoformat() if one.expires else None,
                "last_used": one.last_used.isoformat() if one.last_used else None,
            }
            for one in found
        ]
        typer.echo(json.dumps(listed, indent=1))
        return
    for one in found:
        used = f"last used {one.last_used:%Y-%m-%d %H:%M}" if one.last_used else "never used"
        where = "" if one.project is None else f"  project {one.project}"
        typer.echo(f"{one.name:24} {one.scope:6} {one.created:%Y-%m-%d}  {_state(one)}  {used}{where}")
    if not found:
        typer.echo("no token yet; make one with: opgauge token create NAME --scope submit")


def _state(one: Token) -> str:
    if one.revoked:
        return f"revoked {one.revoked:%Y-%m-%d}"
    if one.expires is None:
        return "valid"
    return f"{'valid until' if one.is_valid else 'expired'} {one.expires:%Y-%m-%d}"


@token.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="The token's name.")], db: Database = None) -> None:
    """Invalidate a token at once.

    Example: opgauge token revoke gpu-host-1
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.audit import add_audit
    from opgauge.harness.store.tokens import revoke_token

    with Store.open(database_url(db)) as store:
        revoke_token(store.engine, name)
        add_audit(store.engine, "", "revoke token", name)
    typer.echo(f"token {name} is revoked")
