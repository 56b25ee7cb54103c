"""deformable_conv on the CPU: samples located once per deformable group, unfolded by Numba, multiplied by BLAS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.dtype import FLOATS
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.registry import kernel
from opgauge.ops._core.tuning import declare
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import PRODUCT_SPEED, narrowed, scratch, widened
from opgauge.ops.deformable_conv.cpu_few import by_products, gradients_by_products, share_products
from opgauge.ops.deformable_conv.op import DeformableConvParams, geometry
from opgauge.ops.deformable_conv.sampling import SamplingGeometry

HALF_BYTES = 2
"""Bytes of a 16-bit element."""
_BLOCK = declare(
    "deformable_conv.cpu_block_pixels",
    48,
    (24, 48, 96, 144),
    backend="cpu",
    ops=("deformable_conv",),
    why="pixels per block, in whole tiles of 6 or 12 rows: fewer reads of the filter against a larger column",
)
_DEPTH = declare(
    "deformable_conv.cpu_depth",
    512,
    (128, 256, 512, 1024, 2048),
    backend="cpu",
    ops=("deformable_conv", "deformable_conv_grad"),
    why="channels times taps sampled at a time, at least one tap: long sums against the first-level caches",
)
_SAMPLES = 1 << 14
"""Samples of a block, of all channels, with one channel per group: with their sums they fit the second-level cache."""
_GRAD_BLOCK = 96
"""Pixels per block of the gradient: more read the filter less often, fewer leave the column in cache."""
SAMPLE_OPERATIONS = 8
"""Operations of a bilinear sample."""
MOST_OUTPUTS = 8
"""Maximum outputs of a depthwise group, per channel of x, for which vectors along the channels beat products."""
LEAST_UNIT = 8
"""Minimum channels per task."""


def _wide(x: Any) -> Any:
    return np.dtype(np.float32) if x.dtype.itemsize == HALF_BYTES else x.dtype


def _image(found: SamplingGeometry, wide: Any) -> Any:
    """Scratch for the images with channels last and margins, as `lay_out` writes them."""
    height, width = found.size
    return scratch(found.batch * (height + 3) * (width + 2) * found.channels, wide)


@kernel("deformable_conv", "optimized", "cpu", FLOATS, prepare=True)
def deformable_conv(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out: dict[str, Any],
    mask: Any = None,
    **options: Any,
) -> Bound:
    """Images to channels last, filters packed, then sampling and products, one block of pixels at a time."""
    from opgauge.ops._cpu.bilinear.jit import lay_out
    from opgauge.ops._cpu.jit import storage

    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    wide, threads = _wide(x), count(x.nbytes + filter.nbytes, _operations(found, products=1))
    if _is_depthwise(found):
        return _depthwise(found, (x, offset, mask, filter, out["out"]), threads)
    taps, groups = found.taps, found.groups
    image = _image(found, wide)
    before: list[Bound] = []
    after: list[Bound] = []
    given, weight = storage(x), widened(filter.reshape(found.out_channels, -1, taps), wide, before)
    arrays = _by_tap(found, offset, mask, wide, before)
    result = narrowed(out["out"].reshape(found.batch, found.out_channels, found.pixels), wide, after)
    length = gcd(found.channels // groups, found.channels // found.deformable_groups)
    sizes = (found.channels, groups, found.deformable_groups, length, taps), _numbers(found)
    compute = by_products if share_products(found, wide) else _by_tiles
    convolve = compute(found, image, arrays, weight, result, sizes, threads)

    def run() -> None:
        for step in before:
            step()
        lay_out.on(threads)(given, image)
        convolve()
        for step in after:
            step()

    return run


def _by_tiles(
    found: SamplingGeometry, image: Any, places: tuple[Any, Any], weight: Any, result: Any, numbers: Any, threads: int
) -> Bound:
    """A call that packs `weight`, samples a block of pixels at a time and multiplies it; as `by_products`."""
    from opgauge.ops._cpu.tile.jit import tile_columns
    from opgauge.ops.deformable_conv import jit

    taps, groups, wide = found.taps, found.groups, image.dtype
    columns = tile_columns(image)
    padded = groups * -(-(found.out_channels // groups) // columns) * columns
    packed = scratch(padded * taps * (found.channels // groups), wide)
    at_once, block = min(max(_DEPTH.value() // found.channels, 1), taps), _BLOCK.value()
    tables = (np.empty((threads, block), np.int32), np.empty((threads, 7, block), wide))
    column, sums = (scratch(threads * block * size, wide) for size in (at_once * found.channels, padded))

    def run() -> None:
        jit.pack.on(threads)(weight, groups, packed)
        jit.convolve.on(threads)(image, *places, packed, result, block, at_once, *numbers, *tables, column, sums)

    return run


def _is_depthwise(found: SamplingGeometry) -> bool:
    """Whether each channel of x is a group whose outputs are so few that vectors along the channels pay."""
    return 1 < found.channels == found.groups and found.out_channels <= MOST_OUTPUTS * found.channels**2


def _depthwise(found: SamplingGeometry, arrays: tuple[Any, ...], threads: int) -> Bound:
    """One channel of x per group: samples of all channels, multiplied tap by tap.

    arrays: x, offset, mask, filter and out.
    """
    from opgauge.ops._cpu.bilinear.jit import lay_out
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.deformable_conv import jit_depthwise as jit

    x, offset, mask, weight, out = arrays
    wide, channels = _wide(x), found.channels
    several = found.out_channels // channels
    block = max(1, min(_BLOCK.value(), _SAMPLES // channels))
    image = _image(found, wide)
    packed = np.empty((several, found.taps, channels), wide)
    before: list[Bound] = []
    after: list[Bound] = []
    given = widened(weight.reshape(channels, several, found.taps), wide, before).transpose(1, 2, 0)
    places = _by_tap(found, offset, mask, wide, before)
    result = narrowed(out.reshape(found.batch, found.out_channels, found.pixels), wide, after)
    tables = (np.empty((threads, block), np.int32), np.empty((threads, 7, block), wide))
    own = (*tables, *(scratch(threads * block * size, wide) for size in (channels, found.out_channels)))
    sizes = (block, (channels, found.deformable_groups, found.taps), _numbers(found))

    def run() -> None:
        for step in before:
            step()
        lay_out.on(threads)(storage(x), image)
        np.copyto(packed, given)
        jit.convolve_depthwise.on(threads)(image, *places, packed.reshape(-1), result, *sizes, *own)
        for step in after:
            step()

    return run


def _operations(found: SamplingGeometry, products: int) -> float:
    """Work of as many matrix products and of sampling, as `count` takes it."""
    return found.product_flops / PRODUCT_SPEED * products + SAMPLE_OPERATIONS * found.samples


def _numbers(found: SamplingGeometry) -> tuple[int, ...]:
    """The geometry in the order in which compiled code reads it."""
    return (*found.size, found.out_size[1], found.kernel[1], *found.strides, *found.paddings, *found.dilations)


def _by_tap(found: SamplingGeometry, offset: Any, mask: Any, wide: Any, steps: list[Bound]) -> tuple[Any, Any]:
    """Offset (N, dg taps, 2, P) and mask (N, dg taps, P), widened; an absent mask is empty."""
    rows = found.deformable_groups * found.taps
    weights = np.empty((0, 0, 0), offset.dtype) if mask is None else mask.reshape(found.batch, rows, found.pixels)
    return widened(offset.reshape(found.batch, rows, 2, found.pixels), wide, steps), widened(weights, wide, steps)


def _unit(found: SamplingGeometry, length: int, threads: int) -> int:
    """Channels per task: a part of `length`, whole vectors if possible."""
    for split in range(1, max(length // LEAST_UNIT, 1) + 1):
        units = found.channels // length * split
        if length % split == 0 and length // split % LEAST_UNIT == 0 and (units % threads == 0 or units > 4 * threads):
            return length // split
    return length


@kernel("deformable_conv_grad", "optimized", "cpu", FLOATS, prepare=True)
def deformable_conv_grad(
    *,
    x: Any,
    offset: Any,
    filter: Any,
    out_grad: Any,
    out: dict[str, Any],
    need_x: bool,
    need_offset: bool,
    need_filter: bool,
    need_mask: bool,
    mask: Any = None,
    **options: Any,
) -> Bound:
    """By units of channels: the columns' gradient, samples, derivatives and scatter, then the filter's gradient."""
    from opgauge.ops._cpu.bilinear.jit import lay_out
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.deformable_conv import jit_depthwise, jit_grad, jit_grad_layout

    found = geometry(x.shape, filter.shape, DeformableConvParams(**options))
    products = int(need_x or need_offset or need_mask) + int(need_filter)
    threads = count(x.nbytes + filter.nbytes, _operations(found, products))
    plan = _grad_plan(found, _wide(x), threads)
    before: list[Bound] = []
    after: list[Bound] = []
    given_grad = widened(out_grad.reshape(found.batch, found.out_channels, found.pixels), plan.wide, before)
    arrays = (plan.image, *_by_tap(found, offset, mask, plan.wide, before), given_grad, plan.packed)
    weight = widened(filter.reshape(found.out_channels, -1, found.taps), plan.wide, before)
    wanted = {"x": need_x, "offset": need_offset, "mask": need_mask and mask is not None, "filter": need_filter}
    grads = {name: out[f"{name}_grad"] for name, needed in wanted.items() if needed}
    needs = (need_x, need_offset or wanted["mask"], need_filter)
    rest = (plan.numbers, needs, *plan.scratch)
    sums = (plan.image_grad, plan.slopes, plan.filter_sums, plan.shares, plan.block)
    steps: list[Bound] = [partial(lay_out.on(threads), storage(x), plan.image)]
    if need_x:
        steps.append(partial(jit_grad_layout.clear.on(threads), plan.image_grad))
    if plan.few:
        target = narrowed(grads.pop("filter"), plan.wide, after) if need_filter else None
        own = (*arrays[:4], weight), (plan.image_grad, plan.slopes, target), needs
        steps.append(gradients_by_products(found, *own, plan.unit, plan.numbers, plan.scratch, threads))
    elif plan.filter_by_unit:
        steps.append(partial(np.copyto, plan.by_channel(plan.packed)[0], plan.by_unit(weight)))
        sizes: tuple[int, ...] = (found.channels, found.deformable_groups, plan.unit, found.taps)
        steps.append(partial(jit_depthwise.differentiate_depthwise.on(threads), *arrays, *sums, sizes, *rest))
    else:
        pack = jit_grad_layout.pack_transposed.on(threads)
        steps.append(partial(pack, weight, found.groups, plan.unit, plan.at_once, plan.packed))
        sizes = (found.channels, found.groups, found.deformable_groups, plan.unit, found.taps)
        steps.append(partial(jit_grad.differentiate.on(threads), *arrays, *sums, plan.at_once, sizes, *rest))
    steps += _collecting(found, plan, grads, after, threads)

    def run() -> None:
        for step in (*before, *steps, *after):
            step()

    return run


class _GradPlan(NamedTuple):
    """Workspace and blocking of the gradient, see `jit_grad.differentiate`.

    unit: channels of a task. scratch: corners, their weights, output gradients and columns of each thread.
    few: whether products are BLAS's, of all images; scratch has their columns then, and packed, filter_sums are empty.
    filter_by_unit: of a depthwise gradient, shape of packed and of each share's filter_sums (units, outputs of a group,
    taps, channels padded to whole panels).
    """

    wide: Any
    image: Any
    image_grad: Any
    packed: Any
    slopes: Any
    filter_sums: Any
    unit: int
    shares: int
    block: int
    at_once: int
    numbers: tuple[int, ...]
    scratch: tuple[Any, Any, Any, Any]
    few: bool
    filter_by_unit: tuple[int, ...] = ()

    def by_channel(self, array: Any) -> Any:
        """Depthwise filters or their sums (shares, units, outputs of a group, taps, channels), without the padding."""
        return array.reshape(-1, *self.filter_by_unit)[..., : self.unit]

    def by_unit(self, weight: Any) -> Any:
        """View of a depthwise filter (Co, 1, taps), laid out alike."""
        units, several, taps, _ = self.filter_by_unit
        return weight.reshape(units, self.unit, several, taps).transpose(0, 2, 3, 1)


def _grad_plan(found: SamplingGeometry, wide: Any, threads: int) -> _GradPlan:
    from opgauge.ops._cpu.tile.jit import ROWS, tile_columns

    taps = found.taps
    image, image_grad = _image(found, wide), _image(found, wide)
    columns, per_group = tile_columns(image), found.out_channels // found.groups
    depthwise = _is_depthwise(found) and found.deformable_groups < found.channels
    lengths = [found.channels // found.deformable_groups, *(() if depthwise else (found.channels // found.groups,))]
    unit = _unit(found, gcd(*lengths), threads)
    units = found.channels // unit
    shares = min(-(-threads // units), max(found.batch, 1))
    few = not depthwise and share_products(found, wide)
    if few:
        at_once, block, panels = 1, found.pixels, found.taps * -(-unit // columns)
        given_size = packed_size = sums_size = 0
    elif depthwise:
        at_once, block, panels = 1, max(1, min(_GRAD_BLOCK, _SAMPLES // unit)), -(-unit // columns)
        given_size = per_group * panels * columns
        packed_size = sums_size = taps * given_size
    else:
        at_once, block = min(max(_DEPTH.value() // unit, 1), taps), _GRAD_BLOCK
        panels, chunks, given_size = -(-at_once * unit // columns), -(-taps // at_once), -(-per_group // ROWS) * ROWS
        packed_size, sums_size = (chunks * panels * rows * columns for rows in (per_group, given_size))
    packed, filter_sums = scratch(units * packed_size, wide), scratch(shares * units * sums_size, wide)
    slopes = np.empty((units, found.batch, taps, 3, found.pixels), wide)
    given, column = (scratch(threads * block * size, wide) for size in (given_size, panels * columns))
    own = (np.empty((threads, block), np.int32), np.empty((threads, 7, block), wide), given, column)
    blocks = (unit, shares, block, at_once)
    by_unit = (units, per_group, taps, panels * columns) if depthwise else ()
    return _GradPlan(wide, image, image_grad, packed, slopes, filter_sums, *blocks, _numbers(found), own, few, by_unit)


def _collecting(
    found: SamplingGeometry, plan: _GradPlan, grads: Mapping[str, Any], after: list[Bound], threads: int
) -> Iterator[Bound]:
    """Steps that collect the wanted gradients in their arrays, by the input's name."""
    from opgauge.ops._cpu.bilinear.jit import collect_image
    from opgauge.ops._cpu.jit import storage
    from opgauge.ops.deformable_conv import jit_grad_layout as layout

    by_tap = (found.batch, found.deformable_groups, found.taps)
    if "x" in grads:
        yield partial(collect_image.on(threads), plan.image_grad, storage(grads["x"]))
    for name, first, end in (("offset", 0, 2), ("mask", 2, 3)):
        if name in grads:
            grad = narrowed(grads[name].reshape(*by_tap, end - first, found.pixels), plan.wide, after)
            yield partial(layout.collect_slopes.on(threads), plan.slopes, first, end, grad)
    if "filter" in grads:
        shape = (found.out_channels, found.channels // found.groups, found.taps)
        grad = narrowed(grads["filter"].reshape(shape), plan.wide, after)
        if plan.filter_by_unit:
            yield partial(np.sum, plan.by_channel(plan.filter_sums), axis=0, out=plan.by_unit(grad))
            return
        sizes = (plan.shares, plan.unit, plan.at_once, found.groups)
        yield partial(layout.collect_filter.on(threads), plan.filter_sums, *sizes, grad)
