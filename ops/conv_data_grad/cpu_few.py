"""conv_data_grad on the CPU for few outputs: a product that reads the filter once, as it lies, and a fold into dx.

BLAS copies the filter for two outputs or more, and tiles pack it; so does neither here, in 16 bits either.
"""

from __future__ import annotations

from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import PRODUCT_SPEED, narrowed, scratch, widened
from opgauge.ops.conv_data_grad.cpu_columns import Tensors, add_taps, links_of
from opgauge.ops.conv_data_grad.cpu_product_costs import ADDED_PIXEL_NS, ADDED_TAP_NS, FLOAT_BYTES, LISTED_NS
from opgauge.ops.conv_data_grad.cpu_rows import flat, threads_for
from opgauge.ops.conv_data_grad.op import ConvGeometry

MOST_OUTPUTS, MOST_LINKS = 16, 1 << 12
"""Maximum outputs of all images, whose sums a near cache holds, and pairs of a tap and an output."""
SPANS, LEAST_SPAN = 4, 64
"""Minimum spans per thread, unless they have fewer columns than this."""
START_NS, GROUP_NS, ROW_NS, READ_NS, PAIR_NS = 1200, 18, 5, 0.02, 0.045
"""Time in all and per group; per channel of dy for each two outputs; per number of the filter, of reading it, and of a
product with two outputs, in float32."""


def few_ns(found: ConvGeometry, wide: np.dtype[Any]) -> float:
    """Expected time of `by_few` on one thread; infinite where it does not apply."""
    outputs, taps = found.batch * prod(found.out_size), prod(found.kernel)
    if not 0 < outputs <= MOST_OUTPUTS or outputs * taps > MOST_LINKS or (found.channels_last and found.groups > 1):
        return inf
    filters = taps * found.channels * found.out_channels // found.groups
    scale, pairs = wide.itemsize / FLOAT_BYTES, -(-outputs // 2)
    each = GROUP_NS * found.groups + ROW_NS * found.out_channels * pairs
    multiplied = START_NS + each + scale * filters * (READ_NS + PAIR_NS * pairs)
    if found.channels_last:
        return multiplied + taps * (ADDED_TAP_NS + ADDED_PIXEL_NS * outputs)
    return multiplied + scale * LISTED_NS[False] * taps * found.channels * outputs


def by_few(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A call: dy as rows of outputs, the products of all groups, and their sums in dx."""
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.conv_data_grad import jit_few as jit
    from opgauge.ops.conv_data_grad import jit_fold as fold

    pixels, wide = prod(found.out_size), tensors.wide
    outputs, columns = found.batch * pixels, prod(found.kernel) * found.channels
    even, threads = outputs + outputs % 2, threads_for(found, tensors, PRODUCT_SPEED)
    rows, sums = np.zeros((even, found.out_channels), wide), scratch(even * columns, wide)
    weight = storage(tensors.weight).reshape(-1)
    given = rows[:outputs].reshape(found.batch, pixels, -1)
    laid = tensors.dy.reshape(found.batch, *((pixels, -1) if found.channels_last else (-1, pixels)))
    span = jit.SPAN_BYTES // wide.itemsize
    while threads > 1 and span > LEAST_SPAN and columns < SPANS * threads * span:
        span //= 2
    before, after = list[Bound](), list[Bound]()
    dx = narrowed(tensors.dx, wide, after)
    addend = None if tensors.addend is None else widened(tensors.addend, wide, before)
    before += [
        partial(np.copyto, given, laid if found.channels_last else laid.transpose(0, 2, 1)),
        partial(jit.multiply_few.on(threads), rows.reshape(-1), weight, found.groups, sums, even, span),
    ]
    if found.channels_last:
        before.append(add_taps(found, sums[: outputs * columns].reshape(outputs, -1), dx, addend))
    else:
        source, target = links_of(found)
        apart = found.channels, pixels * columns, prod(found.kernel)
        arrays = sums, flat(addend, dx), flat(dx, dx), found.batch * found.channels, apart
        places = source % pixels * columns + source // pixels, target
        before.append(partial(fold.fold_links.on(count(2 * dx.nbytes)), *arrays, *places))

    def run() -> None:
        for step in (*before, *after):
            step()

    return run
