"""residual_block and resnet50_adds as graphs: original, and after FuseAddToOutput.

baseline: the original graph, each node by its own composite. as_written: the original graph, each node by its
optimized kernel. optimized: fused, each node by its optimized kernel. The last two differ by the
fusion alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from opgauge.ops._core.backend import BACKENDS
from opgauge.ops._core.dtype import FLOATS, dtype_name
from opgauge.ops._core.execution import FindKernel, MemoryPlan, bind, plan, workspace_bytes
from opgauge.ops._core.fusion import fuse_add_to_output
from opgauge.ops._core.graph import Node
from opgauge.ops._core.kernel import Bound, Kernel
from opgauge.ops._core.op import Params, Shapes, TensorSpec
from opgauge.ops._core.registry import find_kernel, find_op, kernel

VARIANTS = {
    "baseline": ("baseline", False),
    "as_written": ("optimized", False),
    "optimized": ("optimized", True),
}
"""Implementation of each node and whether the graph is fused, by variant."""


def _finder(implementation: str, backend: str) -> FindKernel:
    def find(node: Node, dtype: str) -> Kernel:
        return find_kernel(node.op, implementation, backend, dtype)

    return find


@cache
def _plan(params: Params, fuse: bool, inputs: tuple[tuple[str, TensorSpec], ...], dtype: str) -> MemoryPlan:  # noqa: FBT001
    from opgauge.ops.residual.op import written

    graph = written(params)
    return plan(fuse_add_to_output(graph).graph if fuse else graph, dict(inputs), dtype)


def _register(op: str, implementation: str, backend: str) -> None:
    nodes, fuse = VARIANTS[implementation]
    find = _finder(nodes, backend)

    def workspace(shapes: Shapes, params: Params) -> int:
        dtype = next(iter(shapes.outputs.values())).dtype
        return workspace_bytes(_plan(params, fuse, tuple(shapes.inputs.items()), dtype), find)

    def run(*, out: dict[str, Any], workspace: Any, **arguments: Any) -> Bound:
        names = {item.name for item in find_op(op).inputs}
        arrays = {name: value for name, value in arguments.items() if name in names}
        params = find_op(op).params(**{name: value for name, value in arguments.items() if name not in names})
        specs = tuple((name, TensorSpec(array.shape, dtype_name(array.dtype))) for name, array in arrays.items())
        dtype = dtype_name(next(iter(out.values())).dtype)
        return bind(_plan(params, fuse, specs, dtype), find, arrays, out, workspace)

    run.__qualname__ = f"{op}_{implementation}_{backend}"
    decorate: Callable[..., Any] = kernel(op, implementation, backend, FLOATS, prepare=True, workspace=workspace)
    decorate(run)


for _op in ("residual_block", "resnet50_adds"):
    for _implementation in VARIANTS:
        for _backend in BACKENDS:
            _register(_op, _implementation, _backend)
