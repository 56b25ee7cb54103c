"""Launches whose arguments are constants of the kernel, where these decide how long it takes.

A kernel is compiled once for all sizes. For launches of few threads there is an instance of its own, in which sizes,
strides and numbers are literals: comparisons and index arithmetic are folded, and nothing waits for arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opgauge.ops._core.backend import cupy, may_overlap
from opgauge.ops._core.kernel import Bound
from opgauge.ops._core.single_call import is_single_call
from opgauge.ops._core.tuning import declare
from opgauge.ops._cuda.multiprocessor import resident_blocks
from opgauge.ops._cuda.source import Compiled, CudaSource, Resources, compile_source, device_arch, handed_out
from opgauge.ops._cuda.struct import Argument

_CONSTANT_THREADS = declare(
    "cuda.constant_threads",
    1 << 20,
    (0, 1 << 14, 1 << 17, 1 << 20),
    backend="cuda",
    ops=(
        *("add_n", "conv_data_grad", "deformable_conv", "deformable_conv_grad", "dot", "fill_any_like", "flatten"),
        *("lerp", "lerp_grad", "mean", "normalization", "p_norm", "p_norm_grad", "scale", "sign"),
    ),
    why="maximum threads of a launch that is compiled for its sizes and numbers; 0 compiles once for all",
)
MOST_LOADED = 1024
"""Programs that stay loaded, beside those of launches that are still there."""


class _Known(NamedTuple):
    """The 32-bit words of an argument's bytes, with 0 for addresses, and these by the member that has them."""

    words: tuple[int, ...]
    addresses: dict[str, np.uint64]


def bind_launch(
    source: CudaSource,
    expression: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: Sequence[Any],
    *,
    shared: int = 0,
) -> Bound:
    """A callable that launches `expression` of `source` with arguments: arrays, None, NumPy scalars and structs.

    shared: bytes of dynamic shared memory. Nothing is compiled for a single call.
    """
    is_small = not is_single_call() and _CONSTANT_THREADS.covers(prod(grid) * prod(block))
    if is_small and expression not in source.clustered:
        known = [_known(argument) for argument in arguments]
        program = _program(source, expression, grid, block, known, _overlapping(arguments, known))
        fixed = fix(source, expression, program, prod(block))
        if fixed is not None:
            unknown = [
                [argument] if found is None else found.addresses.values()
                for argument, found in zip(arguments, known, strict=True)
            ]
            return _launch(fixed, grid, block, chain.from_iterable(unknown), shared)
    return _launch(source.function(expression), grid, block, arguments, shared)


def _launch(
    function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Iterable[Any], shared: int
) -> Bound:
    passed = tuple(arguments)
    if not shared:
        return lambda: function(grid, block, passed)
    function.max_dynamic_shared_size_bytes = shared
    return lambda: function(grid, block, passed, shared_mem=shared)


def holding(arrays: Any, run: Bound) -> Bound:
    """`run`, whose arguments have addresses of arrays that live as long as this."""

    def run_while_held(_held: Any = arrays) -> None:
        run()

    return run_while_held


def in_turn(first: Bound, second: Bound) -> Bound:
    """A callable that launches both."""

    def run() -> None:
        first()
        second()

    return run


def fix(source: CudaSource, expression: str, program: str, threads: int) -> Any:
    """The launchable kernel of a program that calls `expression`, on the current device, by blocks of `threads`.

    None if it needs the stack: it indexes its constants by numbers that it computes, which is slow.
    """
    function, resources = _loaded(source, expression, program, threads, cupy().cuda.runtime.getDevice())
    if resources is not None and resources.stack_bytes:
        return None
    return handed_out(expression, function, resources)


@lru_cache(maxsize=MOST_LOADED)
def _loaded(
    source: CudaSource, expression: str, program: str, threads: int, device: int
) -> tuple[Any, Resources | None]:
    compiled = compile_fixed(source, expression, program, threads, device_arch(device))
    (name,) = compiled.names
    module = cupy().RawModule(path=str(compiled.cubin))
    return module.get_function(compiled.names[name]), compiled.resources.get(name)


def compile_fixed(source: CudaSource, expression: str, program: str, threads: int, arch: str) -> Compiled:
    """The binary of a program whose kernel has the name of `expression` and `_fixed`.

    As many of its blocks are resident as of `expression`, which some kernels need whose blocks wait for others.
    """
    general = source.compile(arch, (expression,)).resources[expression]
    options = (*source.options, f"-DRESIDENT={resident_blocks(arch, general.registers, threads)}")
    return compile_source(source.path, (_name(expression),), arch, options, program=program)


def _name(expression: str) -> str:
    return f"{expression.partition('<')[0]}_fixed"


def _program(
    source: CudaSource,
    expression: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    known: Sequence[_Known | None],
    overlapping: Collection[int],
) -> str:
    """C++ of a kernel that takes what is not known, and calls `expression`.

    overlapping: positions of the arrays that the compiler may not take for the only pointers to their memory.
    """
    taken, lines, given = [], [f"assume_launch({_three(grid)}, {_three(block)});"], []
    for i, found in enumerate(known):
        given.append(f"a{i}")
        if found is None:
            taken.append(f"Parameter<{i}> {'' if i in overlapping else '__restrict__ '}a{i}")
            continue
        lines.append(f"auto a{i} = from_words<Parameter<{i}>>({{{', '.join(f'{word:#x}u' for word in found.words)}}});")
        for j, member in enumerate(found.addresses):
            taken.append(f"void* a{i}_{j}")
            lines.append(f"set_address(a{i}.{member}, a{i}_{j});")
    body = "\n  ".join((*lines, f"{expression}({', '.join(given)});"))
    return (
        f'#include "constants.cuh"\n#include "{source.path.name}"\n'
        f"template <int I>\nusing Parameter = typename Signature<decltype(&{expression})>::template type<I>;\n"
        f"KERNEL({prod(block)}) {_name(expression)}({', '.join(taken)}) {{\n  {body}\n}}\n"
    )


def _overlapping(arguments: Sequence[Any], known: Sequence[_Known | None]) -> set[int]:
    """Positions of arrays whose memory another argument has too."""
    arrays = [(i, argument) for i, (argument, found) in enumerate(zip(arguments, known, strict=True)) if found is None]
    pairs = ((i, j) for (i, first), (j, second) in combinations(arrays, 2) if may_overlap(first, second))
    return set(chain.from_iterable(pairs))


def _three(lengths: tuple[int, ...]) -> str:
    return f"{{{', '.join(f'{length}u' for length in (*lengths, 1, 1)[:3])}}}"


def _known(argument: Any) -> _Known | None:
    """Content of an argument; None for an array on a device."""
    if argument is None:
        return _Known((0, 0), {})
    if not isinstance(argument, Argument | np.generic):
        return None
    content, addresses = bytearray(argument.tobytes()), {}
    for member, at in _members(argument.dtype):
        value = np.frombuffer(content, np.uint64, 1, at)[0]
        if value:
            addresses[member] = value
            content[at : at + 8] = bytes(8)
    words = np.frombuffer(bytes(content) + bytes(-len(content) % 4), np.uint32)
    return _Known(tuple(words.tolist()), addresses)


def _members(dtype: Any) -> Iterator[tuple[str, int]]:
    """Members of a struct that are addresses, and their offsets in bytes."""
    for name, (kind, offset, *_) in (dtype.fields or {}).items():
        if "ctype" in (kind.metadata or {}):
            yield name, offset
        for member, at in _members(kind.base) if not kind.shape else ():
            yield f"{name}.{member}", offset + at
