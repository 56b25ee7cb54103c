"""`opgauge list`: what there is to measure."""

from __future__ import annotations

import typer
from opgauge.harness.cli.options import AsJson, Ops


def list_(
    op: Ops = None,
    as_json: AsJson = False,
) -> None:
    """List ops and their kernels, those for CUDA too where there is no GPU.

    Example: opgauge list --op p_norm_grad
    """
    from opgauge.ops import find_op, kernels

    for name in op or ():
        find_op(name)
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for item in kernels():
        if op and item.key.op not in op:
            continue
        backends = groups.setdefault((item.key.op, item.key.implementation), {})
        backends.setdefault(item.key.backend, []).append(item.key.dtype)
    if as_json:
        import json

        listed = [{"op": name, "implementation": made, "backends": found} for (name, made), found in groups.items()]
        typer.echo(json.dumps(listed, indent=1))
        return
    last = ""
    for (name, implementation), backends in groups.items():
        if name != last:
            typer.echo(f"{name}: {find_op(name).summary}")
            last = name
        everywhere = "; ".join(f"{backend}: {' '.join(dtypes)}" for backend, dtypes in backends.items())
        typer.echo(f"  {implementation:15} {everywhere}")
