"""Graph execution: shape inference, placement of values in one arena, binding of kernels.

Values with disjoint lifetimes share memory. Graph inputs are never written; graph
outputs are written directly to the caller's buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opgauge.ops._core.dtype import dtype_info
from opgauge.ops._core.errors import GraphError
from opgauge.ops._core.graph import Graph, Node
from opgauge.ops._core.kernel import Bound, Kernel
from opgauge.ops._core.op import Array, Shapes, TensorSpec
from opgauge.ops._core.registry import find_op

ALIGNMENT = 256
"""Bytes that each value of the arena is aligned to."""
FindKernel = Callable[[Node, str], Kernel]


def align(size: int) -> int:
    """`size` in bytes, rounded up to a whole number of cache-line groups."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class MemoryPlan:
    """Memory layout of a graph.

    shapes: by node. specs: by value. offsets: bytes into the arena by value, without graph inputs and
    outputs. arena_bytes: for the values; the kernels' workspaces follow them, because
    their content persists from run to run.
    """

    graph: Graph
    dtype: str
    shapes: Mapping[str, Shapes]
    specs: Mapping[str, TensorSpec]
    offsets: Mapping[str, int]
    arena_bytes: int


def infer_shapes(
    graph: Graph, inputs: Mapping[str, TensorSpec], dtype: str
) -> tuple[dict[str, Shapes], dict[str, TensorSpec]]:
    """Shapes by node and specs by value; raises GraphError if an op and its inputs do not match."""
    specs = {name: inputs[name] for name in graph.inputs}
    shapes: dict[str, Shapes] = {}
    for name in graph.order:
        node = graph.by_name[name]
        given = {key: specs[value] for key, value in node.inputs.items()}
        found = find_op(node.op).infer({key: spec.shape for key, spec in given.items()}, dtype, node.params)
        for key, spec in given.items():
            if found.inputs[key] != spec:
                msg = f"{name}.{key} is {spec.dtype}{list(spec.shape)}, not what {node.op} takes: {found.inputs[key]}"
                raise GraphError(msg)
        missing = set(node.outputs) ^ set(found.outputs)
        if missing:
            msg = f"{name} lists outputs {list(node.outputs)}, {node.op} gives {list(found.outputs)}"
            raise GraphError(msg)
        shapes[name] = found
        specs.update({node.value(output): spec for output, spec in found.outputs.items()})
    return shapes, specs


def plan(graph: Graph, inputs: Mapping[str, TensorSpec], dtype: str) -> MemoryPlan:
    """Place the values of `graph` in one arena so that values with overlapping lifetimes do not overlap."""
    shapes, specs = infer_shapes(graph, inputs, dtype)
    returned = set(graph.outputs.values())
    offsets: dict[str, int] = {}
    arena_bytes = 0
    lives = _lives(graph)
    for value, (born, dies) in lives.items():
        if value in returned:
            continue
        size = align(_bytes(specs[value]))
        taken = sorted(
            (offsets[other], offsets[other] + align(_bytes(specs[other])))
            for other in offsets
            if lives[other][0] <= dies and born <= lives[other][1]
        )
        offset = 0
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[value] = offset
        arena_bytes = max(arena_bytes, offset + size)
    return MemoryPlan(graph, dtype, shapes, specs, offsets, arena_bytes)


def workspace_bytes(plan: MemoryPlan, find: FindKernel) -> int:
    """Bytes that `bind` needs for values and for the kernels' own workspaces."""
    return plan.arena_bytes + sum(align(_scratch(plan, name, find)) for name in plan.graph.order)


def bind(
    plan: MemoryPlan, find: FindKernel, inputs: Mapping[str, Any], out: Mapping[str, Any], workspace: Any
) -> Bound:
    """A callable that runs the whole graph once, node by node, on these buffers.

    workspace: `workspace_bytes` bytes (uint8), zeroed once. Raises GraphError if a graph
    output is not produced by a node, or one value is returned under two names.
    """
    graph = plan.graph
    values: dict[str, Any] = {name: inputs[name] for name in graph.inputs}
    for value, offset in plan.offsets.items():
        values[value] = _view(workspace, offset, plan.specs[value])
    for name, value in graph.outputs.items():
        if value in values:
            msg = f"output {name} is {value!r}, which is a graph input or returned twice"
            raise GraphError(msg)
        values[value] = out[name]
    steps: list[Bound] = []
    offset = plan.arena_bytes
    for name in graph.order:
        node = graph.by_name[name]
        size = _scratch(plan, name, find)
        arrays = {key: values[value] for key, value in node.inputs.items()}
        buffers = {output: values[node.value(output)] for output in node.outputs}
        scratch = workspace[offset : offset + size] if size else None
        offset += align(size)
        steps.append(find(node, plan.dtype).bind(arrays, node.params, buffers, scratch))

    def run() -> None:
        for step in steps:
            step()

    return run


def reference(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every value of the graph in float64, computed by the reference of each node's op."""
    values = dict(inputs)
    for name in graph.order:
        node = graph.by_name[name]
        arrays = {key: values[value] for key, value in node.inputs.items()}
        found = find_op(node.op).expected(arrays, node.params)
        values.update({node.value(output): found[output] for output in node.outputs})
    return values


def _lives(graph: Graph) -> dict[str, tuple[int, int]]:
    """First and last step of each value that a node produces."""
    step = {name: index for index, name in enumerate(graph.order)}
    lives: dict[str, tuple[int, int]] = {}
    for name in graph.order:
        node = graph.by_name[name]
        for output in node.outputs:
            lives[node.value(output)] = (step[name], step[name])
        for value in node.inputs.values():
            if value in lives:
                lives[value] = (lives[value][0], step[name])
    return lives


def _scratch(plan: MemoryPlan, name: str, find: FindKernel) -> int:
    node = plan.graph.by_name[name]
    wanted = find(node, plan.dtype).workspace
    return 0 if wanted is None else wanted(plan.shapes[name], node.params)


def _bytes(spec: TensorSpec) -> int:
    return spec.size * dtype_info(spec.dtype).itemsize


def _view(arena: Any, offset: int, spec: TensorSpec) -> Any:
    flat = arena[offset : offset + _bytes(spec)]
    return flat.view(np.dtype(dtype_info(spec.dtype).numpy)).reshape(spec.shape)
