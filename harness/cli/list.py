"""`opgauge list`: list of ops and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from opgauge.harness.cli.options import AsJson, Ops, tell_unconfigured

if TYPE_CHECKING:
    from opgauge.ops import Op

Dtypes = Mapping[str, list[str]]
"""Dtypes of an implementation by backend."""


def list_(
    op: Ops = None,
    as_json: AsJson = False,
) -> None:
    """List ops and their kernels, including those for CUDA on machines without a GPU.

    With --op also parameters with types and defaults, inputs, outputs, and errata of the op's source.

    Example: opgauge list --op p_norm_grad
    """
    from opgauge.harness.case.filters import matches_any, require_matches
    from opgauge.ops import all_ops, find_op, kernels

    tell_unconfigured()
    require_matches({"--op": op}, {"--op": [one.name for one in all_ops()]})
    groups: dict[str, dict[str, dict[str, list[str]]]] = {}
    for item in kernels():
        if matches_any(op, [item.key.op]):
            backends = groups.setdefault(item.key.op, {}).setdefault(item.key.implementation, {})
            backends.setdefault(item.key.backend, []).append(item.key.dtype)
    if as_json:
        import json

        listed = [
            {"op": name, "implementation": implementation, "backends": backends}
            for name, implementations in groups.items()
            for implementation, backends in implementations.items()
        ]
        typer.echo(json.dumps(listed, indent=1))
        return
    for name, implementations in groups.items():
        summary = find_op(name).summary
        typer.echo(f"{name}: {summary}" if summary else name)
        for line in details(find_op(name)) if op else ():
            typer.echo(f"  {line}")
        for implementation, backends in implementations.items():
            typer.echo(f"  {implementation:15} {_dtypes(backends)}")


def details(op: Op) -> list[str]:
    """Parameters, inputs, outputs and errata of an op, a line each."""
    from opgauge.harness.case.hint import describe, record_docs, record_hints, show
    from opgauge.ops import param_values

    docs = record_docs(op.params)
    defaults: Mapping[str, Any] = param_values(op.params())
    lines = [f"source: {op.source}"] if op.source else []
    for name, hint in record_hints(op.params).items():
        text = f"parameter {name}: {describe(hint)}; default {show(defaults[name])}"
        lines.append(f"{text}. {docs[name]}" if docs.get(name) else text)
    for item in op.inputs:
        needed = "" if item.required else " (optional or derived)"
        lines.append(f"input {item.name}{needed}: {item.doc or item.kind}")
    lines.append(f"outputs: {', '.join(op.outputs)}")
    return lines + [f"erratum: {text}" for text in op.errata]


def _dtypes(backends: Dtypes) -> str:
    return "; ".join(f"{backend}: {' '.join(dtypes)}" for backend, dtypes in backends.items())
