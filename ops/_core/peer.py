"""Peers: a user's alternatives to our kernels. Imports torch only when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compile_peer(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` of `function`, specialized for the shapes of its first call.

    Dynamo caches compiled code by code object and, past a handful of shapes, falls back to
    eager mode silently; it is reset here, so that a compiled peer is always compiled.
    """
    import torch

    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled
