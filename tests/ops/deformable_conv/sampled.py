"""deformable_conv by torch's grid_sample in float64, and its gradients by autograd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opgauge.harness.case.case import Case
from opgauge.ops.deformable_conv.op import geometry

Array = NDArray[Any]


def by_grid_sample(case: Case, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The output; with `out_grad` among the arrays, the gradients too."""
    import torch

    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(value)).requires_grad_(name != "out_grad")
        for name, value in arrays.items()
    }
    out = _forward(case, tensors)
    found = {"out": out.detach().numpy()}
    if "out_grad" in tensors:
        out.backward(tensors["out_grad"])
        found |= {f"{name}_grad": value.grad.numpy() for name, value in tensors.items() if value.grad is not None}
    return found


def _forward(case: Case, tensors: Mapping[str, Any]) -> Any:
    import torch

    found = geometry(case.shapes["x"], case.shapes["filter"], case.params)
    (out_h, out_w), (height, width), parts = found.out_size, found.size, found.deformable_groups
    x = tensors["x"].reshape(found.batch * parts, -1, height, width)
    offset = tensors["offset"].reshape(found.batch * parts, found.taps, 2, out_h, out_w)
    mask = tensors["mask"].reshape(found.batch * parts, found.taps, 1, out_h, out_w) if "mask" in tensors else None
    rows = torch.arange(out_h, dtype=torch.float64)[:, None] * found.strides[0] - found.paddings[0]
    columns = torch.arange(out_w, dtype=torch.float64)[None] * found.strides[1] - found.paddings[1]
    total = torch.zeros(found.out_shape, dtype=torch.float64)
    for i, j in np.ndindex(*found.kernel):
        tap = i * found.kernel[1] + j
        h = rows + i * found.dilations[0] + offset[:, tap, 0]
        w = columns + j * found.dilations[1] + offset[:, tap, 1]
        # align_corners=False puts pixel k at (2 k + 1) / size - 1, whatever the size, 1 included
        grid = torch.stack([(2 * w + 1) / width - 1, (2 * h + 1) / height - 1], dim=-1)
        column = torch.nn.functional.grid_sample(x, grid, padding_mode="zeros", align_corners=False)
        column = column if mask is None else column * mask[:, tap]
        grouped = column.reshape(found.batch, found.groups, -1, out_h, out_w)
        weight = tensors["filter"][:, :, i, j].reshape(found.groups, -1, grouped.shape[2])
        total = total + torch.einsum("goc,ngchw->ngohw", weight, grouped).reshape(found.out_shape)
    return total
