"""`opgauge token`: who may write to the service."""

from __future__ import annotations

from typing import Annotated

import typer
from opgauge.harness.cli.options import AsJson, Database, database_url
from opgauge.harness.scope import Scope

token = typer.Typer(help="Say who may write to the service.", no_args_is_help=True)


@token.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is: a machine or a person.")],
    scope: Annotated[Scope, typer.Option("--scope", help="submit runs, acknowledge regressions, or both.")],
    db: Database = None,
) -> None:
    """Create a token and show it, once: only a hash of it is stored.

    Example: opgauge token create gpu-host-1 --scope submit
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.tokens import create_token

    with Store.open(database_url(db)) as store:
        secret = create_token(store.engine, name, scope)
    typer.echo(f"token {name} ({scope}); it is not shown again. Use it as OPGAUGE_TOKEN:", err=True)
    typer.echo(secret)


@token.command("list")
def list_(db: Database = None, as_json: AsJson = False) -> None:
    """List the tokens, revoked ones too.

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
            }
            for one in found
        ]
        typer.echo(json.dumps(listed, indent=1))
        return
    for one in found:
        state = f"revoked {one.revoked:%Y-%m-%d}" if one.revoked else "good"
        typer.echo(f"{one.name:24} {one.scope:6} {one.created:%Y-%m-%d}  {state}")
    if not found:
        typer.echo("no token yet; make one with: opgauge token create NAME --scope submit")


@token.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="The token's name.")], db: Database = None) -> None:
    """Make a token useless, at once.

    Example: opgauge token revoke gpu-host-1
    """
    from opgauge.harness.store import Store
    from opgauge.harness.store.tokens import revoke_token

    with Store.open(database_url(db)) as store:
        revoke_token(store.engine, name)
    typer.echo(f"token {name} is revoked")
