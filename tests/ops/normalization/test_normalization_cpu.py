"""normalization on the CPU, in each of its layouts: rows, lines of several rows, columns, whole channels."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.ops.normalization import cpu
from tests.draws import drawn_of
from tests.ops.attempts import complaint, inputs_of
from tests.ops.normalization.test_normalization import OP, Shape, case


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4096, 1), (294, 1), (1200, 5), (257 * 16, 3), (4099, 2), (300, 33)])
def test_few_channels_on_the_cpu(shape: Shape, training: bool) -> None:
    """Several rows are one line of a vector loop, all of them if they are fewer than fit; far from zero too."""
    for dtype in drawn_of(OP, ("float32", "float64", "bfloat16")):
        made = case(shape, dtype, moving=True, add=True, axis=1, training=training)
        assert complaint(made, inputs_of(made), "optimized") == "", dtype
        if training and dtype != "bfloat16":
            x = 1000 + np.random.default_rng(1).standard_normal(shape)
            assert complaint(made, inputs_of(made, x=x), "optimized") == "", dtype


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(4096, 1), (294, 1), (3, 5, 1)])
def test_one_channel_on_the_cpu(monkeypatch: pytest.MonkeyPatch, shape: Shape, threads: int) -> None:
    """A single channel is one row for one thread, and lines of several elements for more."""
    monkeypatch.setattr(cpu, "count", lambda *_: threads)
    made = case(shape, "float32", moving=True, add=True, axis=-1, training=True)
    x = 1000 + np.random.default_rng(1).standard_normal(shape)
    assert complaint(made, inputs_of(made), "optimized") == ""
    assert complaint(made, inputs_of(made, x=x), "optimized") == ""


@pytest.mark.parametrize("post", [3, 16, 17, 1 << 12])
def test_channels_first_by_rows_on_the_cpu(monkeypatch: pytest.MonkeyPatch, post: int) -> None:
    """Rows of a few elements, of more, and of so many that channels are trained one by one; all as columns, too."""
    made = case((3, 12, post), "float32", moving=True, add=True, axis=1, training=True)
    x = 1000 + np.random.default_rng(1).standard_normal((3, 12, post))
    for columns in (False, True):
        monkeypatch.setattr(cpu, "_are_columns", lambda *_, columns=columns, **__: columns)
        assert complaint(made, inputs_of(made), "optimized") == ""
        assert complaint(made, inputs_of(made, x=x), "optimized") == ""
