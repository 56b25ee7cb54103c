"""Inner loop of a tile's product in x86 assembly.

LLVM unrolls that loop and loads the operands of several steps before it multiplies, which exceeds the registers:
sums spill to the stack at every step, twice as slow if the stack is not aligned to a cache line.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from llvmlite import ir

MOST_REACH = 4
"""Rows that one pointer can address: 0 to 3 rows further on."""
FACTORS = 2
"""Registers that alternate in holding a row's factor."""
CLOBBERED = ("~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}")
"""Registers and memory that the assembly overwrites."""


@dataclass(frozen=True)
class Product:
    """Operands of a product: pointers to a tile's first elements, distances in bytes, and the depth.

    a: one pointer per group of up to MOST_REACH rows.
    """

    a: list[Any]
    a_row: Any
    a_step: Any
    b: Any
    b_step: Any
    depth: Any


@dataclass(frozen=True)
class Listed:
    """Operands of a product of listed vectors: pointers to a's rows, to b and to places of 64 bits, and the depth."""

    a: Any
    b: Any
    places: Any
    depth: Any


@dataclass(frozen=True)
class PairRuns:
    """Operands of a product of pairs of bfloat16: pointers to the first row and vector, distances in bytes, and counts.

    places: a pointer to the distances of each run, of 64 bits, in a and in b. pairs: of each run, at least one.
    """

    a: Any
    a_row: Any
    b: Any
    b_step: Any
    places: Any
    runs: Any
    pairs: Any


def _assembled(
    builder: Any,
    lines: list[str],
    operands: tuple[list[Any], list[Any]],
    shape: tuple[int, int],
    vector: Any,
    *,
    wide: bool,
    scratch: int = 0,
) -> list[list[Any]]:
    """The sums of a tile by row and vector, `shape` of them, which lines of assembly leave in the first registers.

    operands: those that the lines overwrite, all of one type, and others. The lines number registers of sums, vectors
    and factors first, then the former operands, `scratch` more of their type, the former again as they come in, and
    the others.
    """
    (changed, given), (rows, vectors) = operands, shape
    registers, numbers = rows * vectors + vectors + FACTORS, len(changed) + scratch
    constraints = [
        *["=&v" if wide else "=&x"] * registers,
        *["=&r"] * numbers,
        *(str(registers + place) for place in range(len(changed))),
        *["r"] * len(given),
        *CLOBBERED,
    ]
    outputs = ir.LiteralStructType([vector] * registers + [changed[0].type] * numbers)
    kind = ir.FunctionType(outputs, [value.type for value in [*changed, *given]])
    found = builder.asm(kind, "\n".join(lines), ",".join(constraints), [*changed, *given], side_effect=True)
    return [[builder.extract_value(found, row * vectors + column) for column in range(vectors)] for row in range(rows)]


def sums_of(builder: Any, product: Product, rows: int, vectors: int, vector: Any, *, wide: bool) -> list[list[Any]]:
    """The sums of a tile by row and vector, accumulated in order by fused multiply-adds.

    vector: LLVM type of a register. wide: 64 bytes (AVX-512), not 32.
    """
    number = product.depth.type
    changed = [*product.a, product.b, product.depth]
    three_rows = builder.mul(product.a_row, ir.Constant(number, MOST_REACH - 1))
    given = [product.a_row, three_rows, product.a_step, product.b_step]
    lines = _lines(rows, vectors, len(product.a), vector, wide=wide)
    return _assembled(builder, lines, (changed, given), (rows, vectors), vector, wide=wide)


def listed_sums_of(builder: Any, operands: Listed, rows: int, vectors: int, vector: Any, *, wide: bool) -> list[Any]:
    """The sums of a tile as `sums_of` returns them, of vectors of b at the listed places."""
    changed = [operands.a, operands.places, operands.depth]
    lines = _listed_lines(rows, vectors, vector, wide=wide)
    return _assembled(builder, lines, (changed, [operands.b]), (rows, vectors), vector, wide=wide, scratch=1)


def _listed_lines(rows: int, vectors: int, vector: Any, *, wide: bool) -> list[str]:
    """Instructions; operands are numbered as `listed_sums_of` lists them."""
    suffix, nbytes = ("d", 8) if isinstance(vector.element, ir.DoubleType) else ("s", 4)
    registers = rows * vectors + vectors + FACTORS
    names = [f"${{{number}}}" for number in range(registers + 8)]
    sums, columns, factors = names[: rows * vectors], names[rows * vectors : -8 - FACTORS], names[-8 - FACTORS : -8]
    a, places, left, at, *_, b = names[-8:]
    clear = "vpxord" if wide else "vxorps"
    lines = [f"{clear} {held}, {held}, {held}" for held in sums]
    lines += [f"test {left}, {left}", "jle 2f", "1:", f"mov ({places}), {at}"]
    for number, held in enumerate(columns):
        lines.append(f"vmovup{suffix} {number * vector.count * nbytes}({b},{at},{nbytes}), {held}")
    for row in range(rows):
        factor = factors[row % FACTORS]
        lines.append(f"vbroadcasts{suffix} {row * nbytes}({a}), {factor}")
        for number, held in enumerate(columns):
            lines.append(f"vfmadd231p{suffix} {held}, {factor}, {sums[row * vectors + number]}")
    return [*lines, f"add $${rows * nbytes}, {a}", f"add $$8, {places}", f"dec {left}", "jg 1b", "2:"]


def _lines(rows: int, vectors: int, bases: int, vector: Any, *, wide: bool) -> list[str]:
    """Instructions; operands are numbered as `sums_of` lists them."""
    suffix, nbytes = ("d", 8) if isinstance(vector.element, ir.DoubleType) else ("s", 4)
    numbers = iter(range(rows * vectors + vectors + FACTORS + 2 * (bases + 2) + 4))

    def take(count: int) -> list[str]:
        return [f"${{{next(numbers)}}}" for _ in range(count)]

    reach = rows // bases
    sums, columns, factors = take(rows * vectors), take(vectors), take(FACTORS)
    pointers, (b, left), _, (row, three_rows, a_step, b_step) = take(bases), take(2), take(bases + 2), take(4)
    clear = "vpxord" if wide else "vxorps"
    lines = [f"{clear} {held}, {held}, {held}" for held in sums]
    lines += [f"test {left}, {left}", "jle 2f", "1:"]
    lines += [f"vmovup{suffix} {at * vector.count * nbytes}({b}), {held}" for at, held in enumerate(columns)]
    for number in range(rows):
        factor, pointer = factors[number % FACTORS], pointers[number // reach]
        place = (f"({pointer})", f"({pointer},{row})", f"({pointer},{row},2)", f"({pointer},{three_rows})")
        lines.append(f"vbroadcasts{suffix} {place[number % reach]}, {factor}")
        for column, held in enumerate(columns):
            lines.append(f"vfmadd231p{suffix} {held}, {factor}, {sums[number * vectors + column]}")
    lines += [f"add {a_step}, {pointer}" for pointer in pointers]
    return [*lines, f"add {b_step}, {b}", f"dec {left}", "jg 1b", "2:"]


def run_sums_of(builder: Any, operands: PairRuns, rows: int, vectors: int, vector: Any) -> list[list[Any]]:
    """The sums of a tile as `sums_of` returns them, of the pairs of all runs, by dot products of AVX512_BF16."""
    number = operands.runs.type
    changed = [operands.places, operands.runs]
    three_rows = builder.mul(operands.a_row, ir.Constant(number, MOST_REACH - 1))
    given = [operands.a, operands.b, operands.a_row, three_rows, operands.b_step, operands.pairs]
    lines, scratch = _run_lines(rows, vectors), -(-rows // MOST_REACH) + 2
    return _assembled(builder, lines, (changed, given), (rows, vectors), vector, wide=True, scratch=scratch)


def _run_lines(rows: int, vectors: int) -> list[str]:
    """Instructions; operands are numbered as `run_sums_of` lists them."""
    bases = -(-rows // MOST_REACH)
    numbers = iter(range(rows * vectors + vectors + FACTORS + bases + 12))

    def take(count: int) -> list[str]:
        return [f"${{{next(numbers)}}}" for _ in range(count)]

    sums, columns, factors = take(rows * vectors), take(vectors), take(FACTORS)
    (places, runs), pointers, (at, left), _ = take(2), take(bases), take(2), take(2)
    a, b, row, three_rows, b_step, pairs = take(6)
    lines = [f"vpxord {held}, {held}, {held}" for held in sums]
    lines += [f"test {runs}, {runs}", "jle 3f", "1:"]
    lines += [f"mov ({places}), {pointers[0]}", f"mov 8({places}), {at}", f"mov {pairs}, {left}"]
    lines += [f"add {a}, {pointers[0]}", f"add {b}, {at}"]
    lines += [f"lea ({before},{row},{MOST_REACH}), {now}" for before, now in pairwise(pointers)]
    lines += ["2:", *(f"vmovups {number * 64}({at}), {held}" for number, held in enumerate(columns))]
    for number in range(rows):
        factor, pointer = factors[number % FACTORS], pointers[number // MOST_REACH]
        place = (f"({pointer})", f"({pointer},{row})", f"({pointer},{row},2)", f"({pointer},{three_rows})")
        lines.append(f"vbroadcastss {place[number % MOST_REACH]}, {factor}")
        for column, held in enumerate(columns):
            lines.append(f"vdpbf16ps {held}, {factor}, {sums[number * vectors + column]}")
    lines += [*(f"add $$4, {pointer}" for pointer in pointers), f"add {b_step}, {at}", f"dec {left}", "jg 2b"]
    return [*lines, f"add $$16, {places}", f"dec {runs}", "jg 1b", "3:"]
