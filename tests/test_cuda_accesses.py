"""Pointwise kernels on CUDA move 16 bytes at a time: seen in PTX, without a GPU.

A vector that is put together from what is not in registers, or comes from several branches, the compiler may take apart
into words again. The results are right, and fills took 1.3 times as long.
"""

from __future__ import annotations

import re

import pytest

from opgauge.ops._cuda import fill
from opgauge.ops._cuda.source import CudaSource
from opgauge.ops.add_n import cuda as add_n
from opgauge.ops.flatten import cuda as flatten
from opgauge.ops.lerp import cuda as lerp
from opgauge.ops.normalization import passes
from opgauge.ops.scale import cuda as scale
from opgauge.ops.sign import cuda as sign
from tests.translation import translate

ENDS = {"add_n": 1, "copy": 1, "fill": 1, "lerp_flat<Blend": 1, "lerp_flat<Gradients": 2, "scale": 1, "sign": 1}
"""Narrow stores of what lies before and behind whole vectors."""
KERNELS = [
    (add_n.SOURCE, "add_n"),
    (fill.SOURCE, "fill"),
    (flatten.SOURCE, "copy"),
    (lerp.SOURCE, "lerp_flat<Blend"),
    (lerp.SOURCE, "lerp_broadcast<Blend"),
    (lerp.SOURCE, "lerp_flat<Gradients"),
    (lerp.SOURCE, "lerp_broadcast<Gradients"),
    (passes.SOURCE, "apply_rows"),
    (scale.SOURCE, "scale"),
    (sign.SOURCE, "sign"),
]
ONE_BY_ONE = re.compile(r"<[\w ]+(?:, \w+)*>?, 1\b")
NARROWER = re.compile(r"_broadcast<\w+<((__half|__nv_bfloat16)[^>]*>, [24],|float[^>]*>, 2,)")
"""Kernels for rows that only vectors of less than 16 bytes divide."""
SINGLE = re.compile(r"lerp_broadcast<[\w<, ]+>, 1, 1, [1-3]\b")
"""Kernels of one element per thread, for few elements."""
STORE = re.compile(r"\bst\.global\S*")
WIDE = re.compile(r"v4\.\w32$|v2\.\w64$")


@pytest.mark.parametrize(("source", "kernel"), KERNELS, ids=[kernel for _, kernel in KERNELS])
def test_packs_are_stored_whole(source: CudaSource, kernel: str) -> None:
    """All stores have 16 bytes but those of ends, of which there are none where all elements are in vectors."""
    wanted = tuple(
        one
        for one in source.expressions
        if re.match(rf"{kernel}\b", one) and not (ONE_BY_ONE.search(one) or NARROWER.search(one)) and "APART" not in one
    )
    translated = translate(source, "sm_90a", wanted, draft=False)
    assert wanted
    for expression in wanted:
        stores = STORE.findall(translated.body(expression))
        narrow = [store for store in stores if not WIDE.search(store)]
        assert len(narrow) < len(stores), expression
        assert len(narrow) == (0 if "VECTORS" in expression else ENDS.get(kernel, 0)), (expression, narrow)


def test_few_elements_are_broadcast_without_branches() -> None:
    """Parameters that are read after a branch arrive late: a launch of a microsecond would wait for them."""
    wanted = tuple(one for one in lerp.SOURCE.expressions if SINGLE.match(one))
    translated = translate(lerp.SOURCE, "sm_90a", wanted, draft=False)
    assert len(wanted) == len(lerp.CTYPES) * 3 * 3
    assert [one for one in wanted if re.search(r"\bbra\b", translated.body(one))] == []
