"""conv_data_grad on the CPU group by group: copies of a group's channels, as a convolution without groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops.conv_data_grad.cpu_columns import Tensors
from opgauge.ops.conv_data_grad.op import ConvGeometry


def one_group(found: ConvGeometry) -> ConvGeometry:
    """The convolution of one group."""
    groups = found.groups
    return replace(found, channels=found.channels // groups, out_channels=found.out_channels // groups, groups=1)


def in_groups(found: ConvGeometry, tensors: Tensors, select: Callable[[ConvGeometry, Tensors], Bound]) -> Bound:
    """A call that copies the channels of each group, convolves them as `select` does, and copies the result back."""
    from opgauge.ops._cpu.jit import storage

    one, axis = one_group(found), -1 if found.channels_last else 1

    def parts(array: Any, axis: int) -> tuple[list[Any], Any]:
        """The bits of each group's part, and an array for a copy of one."""
        bits = np.split(storage(array), found.groups, axis)
        return bits, np.empty(bits[0].shape, bits[0].dtype).view(array.dtype)

    pairs = [parts(tensors.dy, axis), parts(tensors.weight, 0)]
    if tensors.addend is not None:
        pairs.append(parts(tensors.addend, axis))
    results, dx = parts(tensors.dx, axis)
    dy, weight, *addend = (copy for _, copy in pairs)
    step = select(one, Tensors(dy, weight, dx, addend[0] if addend else None, tensors.wide))
    copies, result = [(storage(copy), given) for given, copy in pairs], storage(dx)

    def run() -> None:
        for group in range(found.groups):
            for copy, given in copies:
                np.copyto(copy, given[group])
            step()
            np.copyto(results[group], result)

    return run
