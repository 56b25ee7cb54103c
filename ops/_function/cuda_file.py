"""`opgauge.cuda_source`: a kernel of a plain `.cu` file, compiled by NVRTC when it is first launched."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from opgauge.ops._core.errors import DefinitionError
from opgauge.ops._cuda.source import CudaSource

Extent = int | tuple[int, ...]


class CudaKernel:
    """A kernel of a `.cu` file; `kernel[grid, block](arguments)` or `kernel[grid, block, shared_bytes](arguments)`.

    Arguments are arrays (of CuPy, torch or anything with `__cuda_array_interface__`), NumPy scalars, Python integers
    (32 bits, 64 where they need more) and floats (32 bits). It launches on CuPy's current stream.
    """

    def __init__(self, source: CudaSource, expression: str) -> None:
        self._source = source
        self._expression = expression

    def __getitem__(self, launch: tuple[Any, ...]) -> Any:
        grid, block, *rest = launch
        function = self._source.function(self._expression)
        shared = rest[0] if rest else 0

        def run(*arguments: Any) -> None:
            converted = tuple(_argument(one) for one in arguments)
            function(_extent(grid), _extent(block), converted, shared_mem=shared)

        return run


def cuda_source(file: str, kernel: str, *, options: Iterable[str] = ()) -> CudaKernel:
    """The kernel of a `.cu` file, by name or template instance (`rms_norm<float>`).

    file: relative to the file that calls. options: such as `-DNAME=VALUE` and `--use_fast_math`. Headers beside the
    file are found. Registers and spills are recorded with the results. Raises DefinitionError where the file is
    missing; the first launch raises CompileError, with NVRTC's log.
    """
    caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001  the documented way to find a caller
    path = (Path(caller).parent / file).resolve()
    if not path.is_file():
        msg = f"there is no {path}"
        raise DefinitionError(msg)
    return CudaKernel(CudaSource(str(path), path.name, (kernel,), tuple(options)), kernel)


def _extent(value: Extent) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _argument(value: Any) -> Any:
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int32(value) if -(2**31) <= value < 2**31 else np.int64(value)
    if isinstance(value, float):
        return np.float32(value)
    return value.data_ptr() if hasattr(value, "data_ptr") else value
