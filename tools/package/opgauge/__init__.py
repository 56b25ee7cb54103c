"""Benchmark and regression harness for compute kernels.

`opgauge.op` defines an op by a reference function, `opgauge.cuda_source` compiles a `.cu` file. `opgauge.call` runs an
op, `opgauge.run` measures, `opgauge.results` reads stored results. `opgauge.ops` is the operator library,
`opgauge.harness` measures and judges, `opgauge.web` serves the pages.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opgauge.harness.library.measuring import run
    from opgauge.harness.library.reading import results
    from opgauge.ops import Input, Op, Shapes, TensorSpec, Work, kernel, register
    from opgauge.ops._core.call import call
    from opgauge.ops._function.cuda_file import cuda_source
    from opgauge.ops._function.function_op import op

_ROOT = Path(__file__).resolve().parents[3]
if Path(__file__).resolve() == _ROOT / "tools" / "package" / "opgauge" / "__init__.py":
    # In a source tree the subpackages are the folders at its root; a wheel has them here.
    __path__.append(str(_ROOT))

shipped_ops = True
"""Whether importing `opgauge.ops` registers the ops that it ships; a project may do without them."""
_PUBLIC = {
    "Input": "opgauge.ops",
    "Op": "opgauge.ops",
    "Shapes": "opgauge.ops",
    "TensorSpec": "opgauge.ops",
    "Work": "opgauge.ops",
    "call": "opgauge.ops._core.call",
    "cuda_source": "opgauge.ops._function.cuda_file",
    "kernel": "opgauge.ops",
    "op": "opgauge.ops._function.function_op",
    "register": "opgauge.ops",
    "results": "opgauge.harness.library.reading",
    "run": "opgauge.harness.library.measuring",
}
"""Modules of the public names, which are imported when they are first used."""

__all__ = [
    "Input",
    "Op",
    "Shapes",
    "TensorSpec",
    "Work",
    "call",
    "cuda_source",
    "kernel",
    "op",
    "register",
    "results",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
