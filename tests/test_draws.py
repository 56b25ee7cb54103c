"""A run tests part of the dtypes; all runs together test all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opgauge.ops import DTYPES, FLOATS
from tests import draws, postgresql

SEEDS = range(60)


def items(test: str, *dtypes: str, marker: str = "") -> Any:
    """Tests that differ in their dtype."""
    return [
        SimpleNamespace(
            nodeid=f"{test}[p_norm-{dtype}]",
            callspec=SimpleNamespace(params={"dtype": dtype}),
            get_closest_marker=lambda name: name == marker,
        )
        for dtype in dtypes
    ]


def test_runs_draw_every_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has float32, two others, and a third of them another float; none is left out by all."""
    seen, counts = set(), []
    for number in SEEDS:
        monkeypatch.setenv("OPGAUGE_TEST_SEED", str(number))
        found = draws.drawn_of("p_norm", DTYPES)
        assert found == draws.drawn_of("p_norm", DTYPES)
        assert "float32" in found
        assert len(set(found) - set(FLOATS)) == 2
        assert set(draws.drawn_of("p_norm", FLOATS)) == set(found) & set(FLOATS)
        counts.append(len(set(found) & set(FLOATS)))
        seen |= set(found)
    assert seen == set(DTYPES)
    assert set(counts) == {1, 2}
    assert len(SEEDS) / 6 < counts.count(2) < len(SEEDS) / 2


def test_a_test_with_a_dtype_of_its_own_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no other dtype tests is kept, and so are tests on a GPU and those that compile nothing."""
    for number in SEEDS:
        monkeypatch.setenv("OPGAUGE_TEST_SEED", str(number))
        assert not draws.left_out(items("tests/ops/p_norm/test_kernels.py::test_a", "float16"))
        assert not draws.left_out(items("tests/ops/p_norm/test_kernels.py::test_a", *FLOATS, marker="gpu"))
        assert not draws.left_out(items("tests/ops/p_norm/test_cuda_plans.py::test_a", *FLOATS))
        assert len(draws.left_out(items("tests/ops/p_norm/test_kernels.py::test_a", "float16", "bfloat16"))) == 1


def test_tests_of_one_op_draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract, the meaning of an op and its gradient compile the same kernels."""
    for number in SEEDS:
        monkeypatch.setenv("OPGAUGE_TEST_SEED", str(number))
        found = [
            {name.rpartition("-")[2] for name in draws.left_out(items(test, *FLOATS))}
            for test in ("tests/ops/p_norm/test_kernels.py::test_a", "tests/ops/p_norm/test_bounds.py::test_b")
        ]
        assert found[0] == found[1] == {f"{name}]" for name in set(FLOATS) - set(draws.drawn_of("p_norm", FLOATS))}


def test_all_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OPGAUGE_TEST_SEED=all` takes every value."""
    monkeypatch.setenv("OPGAUGE_TEST_SEED", draws.ALL)
    assert draws.drawn_of("p_norm", DTYPES) == tuple(DTYPES)
    assert draws.some("a", range(9), 2) == tuple(range(9))
    assert not draws.left_out(items("tests/ops/p_norm/test_kernels.py::test_a", *FLOATS))


def test_a_fourth_of_the_rounds_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 45 rounds 12, of one that one; all of them with `all`."""
    monkeypatch.setenv("OPGAUGE_TEST_SEED", "1")
    assert [draws.rounds(count) for count in (45, 5, 1)] == [12, 2, 1]
    monkeypatch.setenv("OPGAUGE_TEST_SEED", draws.ALL)
    assert draws.rounds(45) == 45


def test_some_of_many_are_drawn_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as asked for; over runs each of them."""
    seen = set()
    for number in SEEDS:
        monkeypatch.setenv("OPGAUGE_TEST_SEED", str(number))
        found = draws.some("a", range(9), 3)
        assert list(found) == sorted(set(found))
        assert len(found) == 3
        seen |= set(found)
    assert seen == set(range(9))


def test_some_of_each_group_are_drawn_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group is left out by a run, and no value by all of them; `all` takes every one."""
    seen = set()
    for number in SEEDS:
        monkeypatch.setenv("OPGAUGE_TEST_SEED", str(number))
        found = draws.some_of_each("a", range(20), lambda value: value > 16, 2)
        assert list(found) == sorted(set(found))
        assert [value > 16 for value in found] == [False, False, True, True]
        seen |= set(found)
    assert seen == set(range(20))
    monkeypatch.setenv("OPGAUGE_TEST_SEED", draws.ALL)
    assert draws.some_of_each("a", range(20), lambda value: value > 16, 2) == tuple(range(20))


def test_runs_on_postgresql_take_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's each time, half of the service's, and over runs all that are not of its processes."""
    seen = set()
    for number in SEEDS:
        monkeypatch.setenv("OPGAUGE_TEST_SEED", str(number))
        seen |= set(postgresql.chosen())
    assert all((postgresql.ROOT / name).is_file() for name in seen)
    files = {f"tests/web/{path.name}" for path in (postgresql.ROOT / "tests/web").glob("test_*.py")}
    assert {name for name in seen if name.startswith("tests/web/")} == files - {"tests/web/test_serve.py"}
    assert len(postgresql.chosen()) < len(seen)
    monkeypatch.setenv("OPGAUGE_TEST_SEED", draws.ALL)
    assert set(postgresql.chosen()) == seen
