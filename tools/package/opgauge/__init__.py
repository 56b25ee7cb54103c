"""Benchmark and regression harness for compute kernels.

`opgauge.ops` is the operator library, `opgauge.harness` measures and judges, `opgauge.web` serves the pages.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
if Path(__file__).resolve() == _ROOT / "tools" / "package" / "opgauge" / "__init__.py":
    # In a source tree the subpackages are the folders at its root; a wheel has them here.
    __path__.append(str(_ROOT))
