"""Peers: what a user would pick instead of our kernels. Imports torch only when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compile_peer(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` of `function` for the shapes it will first be called with.

    Dynamo keeps what it compiled by code object and, past a handful of shapes, falls back to
    eager without a word; it starts afresh here, so that a compiled peer is always compiled.
    """
    import torch

    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled
