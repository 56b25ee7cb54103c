"""Configurations of matrix products: a decision table, and what holds for all of a lattice of problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import pytest

from opgauge.ops._cuda.gemm import hopper
from opgauge.ops._cuda.gemm.launch import TEMPLATES
from opgauge.ops._cuda.gemm.problem import SPLITS, TF32, TRANSPOSE, Alignment, GemmConfig, GemmProblem, Matrix
from opgauge.ops._cuda.gemm.select import DTYPES, select, supported
from opgauge.ops._cuda.source import Gpu
from opgauge.ops._cuda.struct import pack
from tests.launches import H200

A100, SM_120, T4 = Gpu(108, 80, 163 * 1024), Gpu(188, 120, 99 * 1024), Gpu(40, 75, 64 * 1024)
HALF = "float16"


def first(channels: int, images: int, pixels: int, depth: int, dtype: str = HALF, **more: Any) -> GemmProblem:
    """Filter and dy of a 1x1 convolution to dx, (N, C, P)."""
    groups = more.get("groups", 1)
    dy = Matrix(pixels, image=groups * depth * pixels, post=pixels, group=depth * pixels)
    d = Matrix(pixels, image=groups * channels * pixels, post=pixels, group=channels * pixels)
    weight, size = Matrix(channels, group=depth * channels), (channels, images * pixels, depth)
    return GemmProblem(dtype, dtype, size, weight, dy, d, **{"workspace": TRANSPOSE, **more})


def last(channels: int, pixels: int, depth: int, dtype: str = HALF, **more: Any) -> GemmProblem:
    """dy and filter of a 1x1 convolution to dx, (N P, C)."""
    groups = more.get("groups", 1)
    dy, weight = Matrix(groups * depth, group=depth, k_major=True), Matrix(channels, group=depth * channels)
    return GemmProblem(
        dtype, dtype, (pixels, channels, depth), dy, weight, Matrix(groups * channels, group=channels), **more
    )


def plain(rows: int, columns: int, depth: int, dtype: str = HALF, **more: Any) -> GemmProblem:
    """K-major factors, as for the gradient of a filter, with splits of the depth."""
    factor = Matrix(depth, k_major=True)
    return GemmProblem(
        dtype, dtype, (rows, columns, depth), factor, factor, Matrix(columns), **{"workspace": SPLITS, **more}
    )


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        (first(512, 32, 784, 256), "a_stationary_registers<__half, 4, true>"),
        (first(256, 32, 3136, 64), "a_stationary_registers<__half, 1, false>"),
        (first(128, 32, 3136, 192), "a_stationary_registers<__half, 3, true>"),
        (first(512, 32, 792, 256), "a_stationary_registers<__half, 4, true>"),
        (first(512, 32, 784, 256, added=True), "ping_pong<__half, 8, false>"),
        (first(512, 32, 788, 256), "ping_pong<__half, 4, false>"),
        (first(512, 320, 80, 256), "ping_pong<__half, 8, false>"),
        (first(512, 10, 784, 256), "ping_pong<__half, 8, false>"),
        (first(512, 32, 784, 320), "persistent<__half, 2, 2, 8, false>"),
        (first(576, 32, 784, 256), "persistent<__half, 1, 2, 8, false>"),
        (first(512, 32, 784, 96), "persistent_wgmma<__half, false, 2>"),
        (first(2048, 32, 49, 512), "cooperative<__half, false, 1, 208>"),
        (first(2048, 32, 81, 512), "gemm<__half, __half, false, false, 8, 1, 1, 3, 128>"),
        (first(2112, 32, 49, 512), "gemm<__half, __half, false, false, 8, 1, 1, 3, 128>"),
        (first(1024, 32, 4, 512), "persistent<__half, 2, 2, 4, false>"),
        (last(512, 25088, 128), "b_stationary_shared<__half>"),
        (last(512, 25088, 128, added=True), "persistent<__half, 2, 2, 8, true>"),
        (last(512, 25088, 64), "persistent<__half, 2, 2, 8, true>"),
        (last(512, 1568, 128), "persistent<__half, 2, 2, 8, true>"),
        (last(512, 8448, 128, groups=2), "b_stationary_shared<__half>"),
        (last(512, 8448, 128), "persistent<__half, 2, 2, 8, true>"),
        (last(1024, 6272, 256, added=True), "cooperative<__half, true, 2, 192>"),
        (last(1024, 6272, 256), "b_stationary_shared<__half>"),
        (last(512, 25088, 256, added=True), "ping_pong<__half, 8, true>"),
        (last(2048, 1568, 512), "cooperative<__half, true, 1, 208>"),
        (last(128, 6272, 512), "cooperative<__half, true, 1, 208>"),
        (last(1088, 6272, 512), "persistent<__half, 2, 1, 8, true>"),
        (last(96, 25088, 64), "persistent_wgmma<__half, true, 2>"),
        (last(96, 1568, 64), "gemm<__half, __half, true, false, 8, 8, 8, 3, 64>"),
        (last(64, 6272, 64, "float32"), "gemm<float, float, true, false, 4, 4, 4, 3, 64>"),
        (last(1024, 6272, 64, "float32"), "gemm<float, float, true, false, 4, 4, 4, 3, 128>"),
        (last(63, 6272, 64, "float32"), "gemm<float, float, true, false, 4, 1, 1, 3, 128>"),
        (last(64, 6272, 64, "float32", parts=TF32), "gemm<float, float, true, false, 4, 4, 4, 1, 128>"),
        (plain(128, 128, 4096), "gemm<__half, float, true, true, 8, 8, 4, 3, 128>"),
        (plain(2048, 2048, 4096), "gemm<__half, __half, true, true, 8, 8, 8, 3, 128>"),
    ],
)
def test_a_problem_has_its_template(problem: GemmProblem, kernel: str) -> None:
    """The decision table on an H200; elsewhere only `gemm` is selected."""
    found = select(problem, H200)
    assert found.kernel == kernel
    assert str(found).startswith(kernel)
    assert str(found).endswith(found.reason)
    assert select(problem, A100).template == select(problem, SM_120).template == "gemm"


@pytest.mark.parametrize(
    ("problem", "template"),
    [
        (replace(last(512, 25088, 256), result="float32"), "gemm"),
        (replace(last(512, 25088, 256), workspace=SPLITS), "gemm"),
        (replace(last(512, 25088, 256), alignment=Alignment(a=2)), "gemm"),
        (replace(last(512, 25088, 256), d=Matrix(512, image=512, post=64)), "persistent_wgmma"),
        (replace(first(512, 32, 784, 256), alignment=Alignment(d=8)), "ping_pong"),
        (replace(first(512, 32, 784, 256), d=Matrix(800, image=512 * 800, post=784)), "ping_pong"),
        (replace(first(512, 32, 784, 256), b=Matrix(784)), "ping_pong"),
        (replace(first(2048, 32, 49, 512), alignment=Alignment(workspace=8)), "gemm"),
        (replace(first(2048, 32, 49, 512), workspace=""), "gemm"),
        (first(1024, 70_000, 40, 512), "persistent"),
    ],
)
def test_other_layouts_have_other_templates(problem: GemmProblem, template: str) -> None:
    """Other dtypes of d, splits, odd addresses, gaps between rows, and too many images to transpose."""
    assert select(problem, H200).template == template


def check_shares(problem: GemmProblem, found: GemmConfig, multiprocessors: int) -> None:
    """Persistent blocks cover all tiles, and are resident at once, save by `gemm`."""
    numbers, (rows, columns) = found.numbers, found.tile
    channels, pixels, _ = hopper._sides(problem)
    wide, high = (columns, rows) if problem.a.k_major else (rows, columns)
    blocks = prod(found.grid)
    if found.template == "gemm":
        assert numbers["row_tiles"] * rows >= problem.size[0] > (numbers["row_tiles"] - 1) * rows
        assert found.grid[0] * rows * columns >= problem.size[0] * problem.size[1]
        assert found.splits * numbers["share"] >= problem.size[2] > (found.splits - 1) * numbers["share"]
        assert found.splits == found.grid[2]
    elif found.template in {"persistent_wgmma", "cooperative"}:
        assert numbers["count"] * rows * columns >= channels * pixels or numbers.get("images")
        assert found.grid[0] <= min(numbers["count"], 4 * multiprocessors)
    else:
        shares, tiles = numbers["resident"], numbers["strips" if "strips" in numbers else "tiles"]
        assert shares * wide == channels
        assert tiles * high >= pixels
        assert found.grid[0] == shares * numbers["step"]
        assert numbers["step"] <= tiles
        assert blocks <= max(4 * multiprocessors, shares * problem.groups)


@pytest.mark.parametrize("gpu", [H200, A100, Gpu(7, 90, 227 * 1024), T4, SM_120])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_configuration_can_be_launched(dtype: str, gpu: Gpu) -> None:
    """Over the lattice: a declared instance within the device's limits, whose struct is complete, covers d."""
    sizes = list(product((3, 64, 96, 128, 256, 512, 2048), (1, 3, 32), (7, 49, 196, 784), (8, 64, 128, 192, 512, 1024)))
    problems = [
        problem
        for (channels, images, pixels, depth), added, groups in product(sizes, (False, True), (1, 3))
        for problem in (
            first(channels, images, pixels, depth, dtype, added=added, groups=groups),
            last(channels, images * pixels, depth, dtype, added=added, groups=groups),
        )
    ]
    problems += [plain(*size, dtype) for size in product((1, 200, 2048), (5, 128, 3000), (64, 1000, 100_000))]
    problems += [replace(one, alignment=Alignment(*[at] * 5)) for one in problems[::7] for at in (4, 8)]
    if not supported(dtype, gpu):
        assert gpu in {T4, SM_120}
        return
    for problem in problems:
        found = select(problem, gpu)
        template = TEMPLATES[found.template]
        assert found.kernel in template.source.expressions
        assert found.shared_bytes <= gpu.shared_memory_bytes
        assert found.threads <= 1024
        assert all(0 < size < 1 << (31 if at == 0 else 16) for at, size in enumerate(found.grid))
        assert pack(template.struct, found.numbers).dtype == template.struct
        assert found.reason
        check_shares(problem, found, gpu.multiprocessors)
        partial = 4 * found.splits * problem.groups * prod(problem.size[:2])
        if found.extra_grid:
            assert found.workspace_bytes == (
                partial if found.splits > 1 else 2 * problem.groups * prod(problem.size[1:])
            )
        else:
            assert found.splits == 1
            assert not found.workspace_bytes


@pytest.mark.parametrize(
    ("problem", "tile", "count"),
    [
        (last(2048, 1568, 512), (208, 128), 128),
        (last(1024, 6272, 512), (192, 256), 132),
        (last(128, 6272, 512), (208, 128), 31),
    ],
)
def test_cooperative_tiles_leave_few_multiprocessors_idle(
    problem: GemmProblem, tile: tuple[int, int], count: int
) -> None:
    """At the sites of ResNet-50 each multiprocessor of an H200 has at most one tile."""
    found = select(problem, H200)
    assert (found.tile, found.numbers["count"]) == (tile, count)


def test_two_persistent_blocks_prefetch_addends() -> None:
    """At a depth of 128, two blocks with a whole tile of the addend are what a multiprocessor has shared memory for."""
    found = select(last(512, 25088, 128, added=True), H200)
    assert found.numbers["slots"] == 2
    assert hopper.MULTIPROCESSOR // (found.shared_bytes + hopper.RESERVED) == 2
    assert select(last(512, 25088, 64), H200).numbers["slots"] == 1


def test_addends_are_prefetched_if_they_fit_l2() -> None:
    """Up to 24 MB, aligned to 16 bytes: `ping_pong` prefetches the addend at once."""
    small, large = first(512, 16, 784, 256, added=True), first(512, 64, 784, 256, added=True)
    assert select(small, H200).numbers["ahead"] == 2 * 512 * 16 * 784
    assert select(large, H200).numbers["ahead"] == 0
    assert select(replace(small, alignment=Alignment(addend=8)), H200).numbers["ahead"] == 0
