"""residual_block and resnet50_adds: as written and fused agree with the reference, twice on the same buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opgauge import ops
from opgauge.ops.residual.op import written


def measure(op_name: str, implementation: str, dtype: str, shapes: dict[str, Any], **params: Any) -> list[float]:
    """Largest error in units of the bound, of a first and of a second run on the same buffers."""
    op = ops.find_op(op_name)
    chosen = op.params(**params)
    found = op.infer(shapes, dtype, chosen)
    random = np.random.default_rng(3)
    arrays = {
        name: random.normal(size=spec.shape).astype(ops.dtype_info(spec.dtype).numpy)
        for name, spec in found.inputs.items()
    }
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    reference = op.reference(wide, chosen)
    bound = op.bound(wide, reference, chosen, dtype)
    kernel = ops.find_kernel(op_name, implementation, "cpu", dtype)
    workspace = np.zeros(kernel.workspace(found, chosen), np.uint8) if kernel.workspace else None
    out = {name: np.empty(spec.shape, ops.dtype_info(spec.dtype).numpy) for name, spec in found.outputs.items()}
    run = kernel.bind(arrays, chosen, out, workspace)
    worst = []
    for _ in range(2):
        for array in out.values():
            array.fill(np.nan)
        run()
        errors = []
        for name, array in out.items():
            epsilon = ops.dtype_info(found.outputs[name].dtype).epsilon
            allowed = bound[name] + epsilon * np.abs(reference[name])
            errors.append(np.max(np.abs(array.astype(np.float64) - reference[name]) / allowed))
        worst.append(float(max(errors)))
    return worst


@pytest.mark.parametrize("implementation", ["baseline", "as_written", "optimized"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_block_is_right_twice(implementation: str, dtype: str, layout: str) -> None:
    """One block agrees with the reference, and again when run on the same buffers."""
    shapes = {"x": (3, 8, 5, 7), "dy": (3, 4, 5, 7)}
    if layout == "channels_last":
        shapes = {"x": (3, 5, 7, 8), "dy": (3, 5, 7, 4)}
    worst = measure("residual_block", implementation, dtype, shapes, data_format=layout)
    assert max(worst) <= 1


@pytest.mark.parametrize("implementation", ["as_written", "optimized"])
def test_all_additions_are_right_twice(implementation: str) -> None:
    """A whole network's additions, small, agree with the reference twice."""
    assert max(measure("resnet50_adds", implementation, "float32", {}, batch=2, image=32)) <= 1


def test_fused_graph_has_no_additions_and_a_smaller_arena() -> None:
    """Fusion leaves 32 nodes of 64, and no buffer between a producer and its addition."""
    params = ops.find_op("resnet50_adds").params(batch=2, image=32)
    shapes = ops.find_op("resnet50_adds").infer({}, "float32", params)
    assert len(written(params).nodes) == 64
    sizes = {
        name: ops.find_kernel("resnet50_adds", name, "cpu", "float32").workspace for name in ("as_written", "optimized")
    }
    bytes_of = {name: size(shapes, params) for name, size in sizes.items() if size is not None}
    assert bytes_of["optimized"] < bytes_of["as_written"]


def test_shapes_that_do_not_fit_are_refused() -> None:
    """x and dy must agree in all but channels; given shapes must be those that follow."""
    op = ops.find_op("residual_block")
    with pytest.raises(ops.ShapeError, match="differ in channels only"):
        op.infer({"x": (2, 8, 5, 7), "dy": (2, 4, 5, 6)}, "float32", op.params())
    with pytest.raises(ops.ShapeError, match="filter is"):
        op.infer({"x": (2, 8, 5, 7), "dy": (2, 4, 5, 7), "filter": (4, 8, 3, 3)}, "float32", op.params())
