"""Which dtypes one run of the tests takes: float32, and others drawn at random.

Numba compiles a kernel for each dtype, which is most of what tests of kernels cost. Over several runs all dtypes are
drawn. A run prints its seed; `OPGAUGE_TEST_SEED` repeats it, and `OPGAUGE_TEST_SEED=all` takes every dtype.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from random import Random, SystemRandom
from typing import TYPE_CHECKING, TypeVar

from opgauge.ops import DTYPES, FLOATS
from tests.shares import share_of

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
ALL = "all"
"""Seed of a run that takes every dtype."""
ALWAYS = "float32"
"""Dtype that every run takes; with it one more of the floats for every third op, of the others as many as follows."""
OTHERS = 2


def seed() -> str:
    """Seed of the run. Workers of pytest-xdist inherit it, so all of them collect the same tests."""
    return os.environ.setdefault("OPGAUGE_TEST_SEED", str(SystemRandom().randrange(1_000_000)))


def drawn(share: str, dtypes: Iterable[str]) -> tuple[str, ...]:
    """The given dtypes that this run takes, at least one.

    They are alike in all tests of a share (`share_of`), which use the same kernels.
    """
    given = tuple(dtypes)
    if seed() == ALL:
        return given
    random = Random(f"{seed()} {share}")  # noqa: S311  no secret
    others = [name for name in DTYPES if name not in FLOATS]
    floats = [random.choice([name for name in FLOATS if name != ALWAYS])] * (random.randrange(3) == 0)
    taken = {ALWAYS, *floats, *random.sample(others, OTHERS)}
    return tuple(name for name in given if name in taken) or (random.choice(given),)


def drawn_of(op: str, dtypes: Iterable[str]) -> tuple[str, ...]:
    """The given dtypes that this run takes in tests of an op."""
    return drawn(share_of(f"tests/ops/{op}/"), dtypes)


def some(name: str, values: Sequence[T], count: int) -> tuple[T, ...]:
    """`count` values that this run takes, in their order. name: of what is drawn."""
    if seed() == ALL or count >= len(values):
        return tuple(values)
    picked = Random(f"{seed()} {name}").sample(range(len(values)), count)  # noqa: S311  no secret
    return tuple(values[number] for number in sorted(picked))


def some_of_each(name: str, values: Iterable[T], group: Callable[[T], Hashable], count: int) -> tuple[T, ...]:
    """`count` values that this run takes of each group, in their order. name: of what is drawn."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    given = tuple(values)
    for value in given:
        groups[group(value)].append(value)
    taken = {value for key, members in groups.items() for value in some(f"{name} {key}", members, count)}
    return tuple(value for value in given if value in taken)


def rounds(count: int) -> int:
    """How many of `count` repetitions at random moments this run takes: a fourth, with moments of its own."""
    return count if seed() == ALL else -(-count // 4)


def left_out(items: Iterable[pytest.Item]) -> set[str]:
    """Node ids of tests on the CPU that differ from another one in the dtype alone, which this run does not take."""
    groups: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for item in items:
        callspec = getattr(item, "callspec", None)
        dtype = callspec.params.get("dtype") if callspec else None
        if dtype in DTYPES and compiles(item.nodeid) and not item.get_closest_marker("gpu"):
            name, _, parameters = item.nodeid.partition("[")
            groups[name, parameters.replace(dtype, "", 1)][dtype] = item.nodeid
    found = set()
    for (name, parameters), group in groups.items():
        taken = drawn(share_of(f"{name}[{parameters}"), group)
        found |= {nodeid for dtype, nodeid in group.items() if dtype not in taken}
    return found


def compiles(nodeid: str) -> bool:
    """Whether a test may compile kernels of the CPU."""
    return nodeid.startswith(("tests/test_contract.py", "tests/ops/")) and "/test_cuda_" not in nodeid
