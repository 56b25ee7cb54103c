"""conv_data_grad on the CPU by columns: products of several images at once by BLAS, and a fold into dx."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.op import Array
from opgauge.ops._cpu.blas import has_small_products, matmul
from opgauge.ops._cpu.threads import count
from opgauge.ops._cpu.tile import narrowed, widened
from opgauge.ops.conv_data_grad.op import ConvGeometry, reach_of, three

STEP_BYTES = 1 << 18
"""Bytes of the columns and results of small images that are computed in one step."""
FEW_ROWS, LEAST_FILTER = 3, 1 << 16
"""Pixels of a 1x1 convolution up to which each is a product of its own, and least numbers of its filter.

BLAS copies the filter for a product of two rows or more: of 512 to 8192 channels two pixels take 740 µs, 246 apart.
"""
FEW_PIXELS, MANY_PIXELS, MOST_STEP_BYTES = 12, 64, 1 << 26
"""Pixels of an image below which images share a product; pixels of a step that may take more bytes; their maximum."""
SHORT_ROW, SHORT_STRIDED, MOST_LINKS = 8, 24, 1 << 17
"""Outputs of a row below which additions are listed, without and with strides, and their maximum number in a list."""
SMALL_BYTES, FEW_IMAGES, LARGE_BYTES = 4_000_000, 3, 1 << 21
"""Maximum size of a filter times pixels, and images and size of a filter in float32 for one pixel each, for which a
product per image is faster: small ones, and those by one column, read the filter as it lies, others pack it."""
SHALLOW, PACKED_BYTES = 24, 3 << 13
"""Channels of dy, and size of a group's filter, up to which it is faster where BLAS packs small ones too."""
LEAST_PRODUCTS = 1 << 11
"""Channels of dx times channels of dy from which an addition of NumPy for each tap pays."""


class Tensors(NamedTuple):
    """Arrays of one call; wide: dtype of the sums."""

    dy: Any
    weight: Any
    dx: Any
    addend: Any
    wide: Any


def has_links(found: ConvGeometry) -> bool:
    """Whether additions of columns are listed: not for rows that vectors pay for, nor for very long lists."""
    if found.is_pointwise or not found.out_size:
        return False
    if found.out_size[-1] >= (SHORT_ROW if found.strides[-1] == 1 else SHORT_STRIDED):
        return False
    return prod((*found.kernel, *found.out_size)) <= MOST_LINKS


def links_of(found: ConvGeometry) -> tuple[Array, Array]:
    """Offsets in a channel's columns, and in its dx, of all that is added."""
    rank = len(found.size)
    taps, outs = (np.indices(lengths).reshape(rank, -1) for lengths in (found.kernel, found.out_size))
    strides, padding, dilation, size = (
        np.array(values).reshape(rank, 1, 1) for values in (found.strides, found.padding, found.dilation, found.size)
    )
    places = outs[:, None] * strides - padding + taps[:, :, None] * dilation
    inside = ((places >= 0) & (places < size)).all(axis=0)
    return np.flatnonzero(inside), np.ravel_multi_index(tuple(places[:, inside]), found.size)


def share_products(found: ConvGeometry) -> bool:
    """Whether images, channels first, have so few pixels that each would read the filter for little."""
    return not found.channels_last and found.batch > 1 and prod(found.out_size) < FEW_PIXELS


def images_at_once(found: ConvGeometry, wide: Any) -> tuple[int, int]:
    """Images per step, whose columns and results fit the second-level cache, and threads that pay for their fold."""
    columns = found.channels * prod(found.kernel) * prod(found.out_size)
    nbytes = wide.itemsize * (columns + found.channels * prod(found.size))
    enough = MANY_PIXELS // max(prod(found.out_size), 1) if MANY_PIXELS * nbytes <= MOST_STEP_BYTES else 1
    at_once = min(max(STEP_BYTES // max(nbytes, 1), enough, 1), max(found.batch, 1))
    return at_once, count(at_once * nbytes)


def _are_apart(nbytes: int, images: int, pixels: int, rows: Any) -> bool:
    """Whether images of few pixels have a product each; nbytes: of one group's filter."""
    if pixels > 1:
        if has_small_products():
            return nbytes * pixels <= SMALL_BYTES
        return nbytes <= PACKED_BYTES or rows.shape[2] <= SHALLOW
    return images <= FEW_IMAGES and rows.dtype == np.float32 and nbytes >= LARGE_BYTES


def columns_of(rows: Any, given: Any, out: Any = None) -> Any:
    """Products (images, groups, C / groups * taps, pixels), by BLAS.

    Images of so few pixels that each would read the filter for little share one product.
    """
    images, groups, outs, pixels = given.shape
    if images == 1 or pixels >= FEW_PIXELS or _are_apart(rows.size // groups * rows.itemsize, images, pixels, rows):
        return matmul(rows, given, out=out)
    if pixels == 1:  # columns of an image are a row of the transposed product, which needs no copies
        columns = np.empty((images, groups, rows.shape[1], 1), given.dtype) if out is None else out
        matmul(given[..., 0].transpose(1, 0, 2), rows.transpose(0, 2, 1), out=columns[..., 0].transpose(1, 0, 2))
        return columns
    beside = given.transpose(1, 2, 0, 3).reshape(groups, outs, images * pixels)
    found = matmul(rows, beside).reshape(groups, -1, images, pixels).transpose(2, 0, 1, 3)
    if out is None:
        return np.ascontiguousarray(found)
    out[...] = found
    return out


def by_columns(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Products by BLAS and a fold, of wide copies of tensors in 16 bits."""
    before: list[Bound] = []
    after: list[Bound] = []
    wide = tensors.wide
    dy, weight = (widened(array, wide, before) for array in (tensors.dy, tensors.weight))
    addend = None if tensors.addend is None else widened(tensors.addend, wide, before)
    given = Tensors(dy, weight, narrowed(tensors.dx, wide, after), addend, wide)
    compute = (_columns_last if found.channels_last else _columns_first)(found, given)

    def run() -> None:
        for step in (*before, compute, *after):
            step()

    return run if before or after else compute


def _rows(weight: Any, found: ConvGeometry) -> Any:
    """The filter, channels first, as (groups, C / groups * taps, Co / groups)."""
    first = np.moveaxis(weight, -1, 1) if found.channels_last else weight
    return first.reshape(found.groups, found.out_channels // found.groups, -1).transpose(0, 2, 1)


def _some_images(found: ConvGeometry, links: Any, threads: int, rows: Any, given: Any, addend: Any, dx: Any) -> None:
    """Some images: a product by BLAS, then a fold into dx, channels first, while the columns are in the cache.

    given: dy or a view of it, (images, groups, Co / groups, pixels).
    """
    from opgauge.ops.conv_data_grad import jit_fold as jit

    if found.is_pointwise:
        columns_of(rows, given, dx.reshape(len(dx), found.groups, -1, given.shape[3]))
        if addend is not None:
            jit.add_in_place.on(threads)(dx.reshape(-1), addend.reshape(-1))
        return
    sizes = (*three(found.size, 1), *three(found.kernel, 1), *three(found.out_size, 1))
    column = columns_of(rows, given).reshape(-1)
    added = np.empty(0, dx.dtype) if addend is None else addend.reshape(-1)
    if links is not None:
        block = prod(found.kernel) * prod(found.out_size)
        apart = found.channels, found.channels * block, block
        jit.fold_links.on(threads)(column, added, dx.reshape(-1), len(dx) * found.channels, apart, *links)
        return
    strides, padding, dilation = three(found.strides, 1), three(found.padding, 0), three(found.dilation, 1)
    planes = len(dx) * found.channels * sizes[0]
    jit.fold.on(threads)(column, added, dx.reshape(-1), planes, sizes, strides, padding, dilation)


def _columns_first(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels first, some images at a time."""
    dy, weight, dx, addend, wide = tensors
    links, (at_once, threads) = links_of(found) if has_links(found) else None, images_at_once(found, wide)

    def run() -> None:
        rows = _rows(weight, found)
        for first in range(0, found.batch, at_once):
            now = slice(first, first + at_once)
            given = dy[now].reshape(-1, found.groups, found.out_channels // found.groups, prod(found.out_size))
            _some_images(found, links, threads, rows, given, None if addend is None else addend[now], dx[now])

    return run


def _columns_last(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels last, some images at a time: BLAS takes dy transposed, dx is transposed back; 1x1 is one product."""
    dy, weight, dx, addend, wide = tensors
    links, (at_once, threads) = links_of(found) if has_links(found) else None, images_at_once(found, wide)
    if found.is_pointwise:
        return _one_product(found, tensors)
    if are_rows(found):
        return _columns_as_rows(found, tensors)

    def run() -> None:
        rows = _rows(weight, found)
        for first in range(0, found.batch, at_once):
            now = slice(first, first + at_once)
            laid = dy[now].reshape(-1, prod(found.out_size), found.groups, found.out_channels // found.groups)
            given = laid.transpose(0, 2, 3, 1)
            target = np.empty((len(given), found.channels, *found.size), wide)
            _some_images(found, links, threads, rows, given, None, target)
            moved = np.moveaxis(target, 1, -1)
            dx[now] = moved if addend is None else moved + addend[now]

    return run


def are_rows(found: ConvGeometry) -> bool:
    """Whether columns are rows of a product with the filter as it lies, channels last.

    They have at most half as many elements as the filter, which takes longer to transpose than to read, and enough of a
    tap. Of 373 random convolutions for which that may pay it took 0.6 of the time in the mean, and 1.7 at most.
    """
    if not found.channels_last or found.groups > 1 or prod(found.kernel) == 1:
        return False
    few = 0 < 2 * found.batch * prod(found.out_size) <= found.out_channels
    return few and found.channels * found.out_channels >= LEAST_PRODUCTS


def _columns_as_rows(found: ConvGeometry, tensors: Tensors) -> Bound:
    """Channels last, without groups: one product of all pixels, whose rows are taps and channels, added tap by tap."""
    dy, weight, dx, addend, wide = tensors
    columns = np.empty((found.batch * prod(found.out_size), prod(found.kernel) * found.channels), wide)
    given, matrix = dy.reshape(-1, found.out_channels), weight.reshape(found.out_channels, -1)
    add = add_taps(found, columns, dx, addend)

    def run() -> None:
        matmul(given, matrix, out=columns)
        add()

    return run


def add_taps(found: ConvGeometry, columns: Any, dx: Any, addend: Any) -> Bound:
    """A call that adds columns, whose rows are taps and channels of an output, to dx tap by tap, channels last."""
    places = []
    by_tap: Any = columns.reshape(found.batch, *found.out_size, prod(found.kernel), found.channels)
    for number, tap in enumerate(np.ndindex(*found.kernel)):
        into, pixel = reach_of(found, tap)
        target, part = dx[(slice(None), *into)], by_tap[(slice(None), *pixel, number)]
        if part.size:
            places.append((target, part))

    def run() -> None:
        dx[...] = 0 if addend is None else addend
        for target, part in places:
            np.add(target, part, out=target)

    return run


def is_strided_pixels(found: ConvGeometry) -> bool:
    """Whether it is a 1x1 convolution with strides, without padding and channels last: a product of dy's pixels."""
    return found.channels_last and not found.is_pointwise and prod(found.kernel) == 1 and not any(found.padding)


def _one_product(found: ConvGeometry, tensors: Tensors) -> Bound:
    """A 1x1 convolution, channels last: one product over all pixels per group, then the addend."""
    from opgauge.ops.conv_data_grad import jit_fold as jit

    dy, weight, dx, addend, _ = tensors
    threads, groups = count(2 * dx.nbytes), found.groups

    def run() -> None:
        matrix = weight.reshape(groups, found.out_channels // groups, -1)
        given = dy.reshape(-1, groups, found.out_channels // groups)
        total = dx.reshape(-1, groups, found.channels // groups)
        if groups == 1 and len(given) <= FEW_ROWS and matrix.size >= LEAST_FILTER:
            for row, into in zip(given[:, 0], total[:, 0], strict=True):
                matmul(row, matrix[0], out=into)
        else:
            matmul(given.transpose(1, 0, 2), matrix, out=total.transpose(1, 0, 2))
        if addend is not None:
            jit.add_in_place.on(threads)(total.reshape(-1), addend.reshape(-1))

    return run
