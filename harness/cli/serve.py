"""`opgauge serve`: the dashboard and the API."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from opgauge.harness.cli.options import Database, database_url, waiver_file

LAG_S = 1.0
"""Seconds between checks for new data."""
USUAL_WORKERS = 2
"""Default number of processes."""


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)] = 8000,
    db: Database = None,
    public_read: Annotated[bool, typer.Option("--public-read", help="Permit reading without a token.")] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Number of processes; by default 2, or 1 on one core.", min=1, max=64),
    ] = None,
    waivers: Annotated[
        Path | None, typer.Option("--waivers", help="Waiver file to show; that of the shipped cases if none.")
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", help="Path below which a proxy serves this, for example /opgauge.")
    ] = "",
    public_url: Annotated[
        str, typer.Option("--public-url", help="Address by which others reach this; links in notifications need it.")
    ] = "",
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option("--trusted-proxy", help="Address of a proxy whose X-Forwarded headers count; repeatable."),
    ] = None,
) -> None:
    """Serve the dashboard and the API; writing always needs a token.

    On an address that other machines can reach, reading needs a token too, unless --public-read is given.

    Example: opgauge serve --port 8000
    """
    from opgauge.harness.errors import SettingsError
    from opgauge.harness.settings import load_settings
    from opgauge.harness.store import Store
    from opgauge.harness.store.tokens import count_tokens

    settings = replace(load_settings(), database=database_url(db))
    is_open = public_read or is_loopback(host)
    with Store.open(settings.database) as store:
        if not is_open and not count_tokens(store.engine):
            msg = (
                f"{host} can be reached from other machines: create a token (opgauge token create NAME --scope read) "
                "or permit reading with --public-read"
            )
            raise SettingsError(msg)
        url = store.url
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"opgauge: http://{shown}:{port}/ over {url}, reading {'open' if is_open else 'by token'}")
    # imported by name, since harness must not depend on web
    importlib.import_module("opgauge.web.workers").serve_by(
        min(USUAL_WORKERS, os.cpu_count() or 1) if workers is None else workers,
        settings,
        lag_s=LAG_S,
        guarded=not is_open,
        waivers=waivers or waiver_file(),
        host=host,
        port=port,
        trusted=frozenset(trusted_proxy or ()),
        root_path="/" + root_path.strip("/") if root_path.strip("/") else "",
        base_url=public_url.rstrip("/"),
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
