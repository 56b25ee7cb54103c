"""Library settings: threads of Numba, BLAS and OpenMP libraries, and functions that restore them."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


def numba_threads() -> int:
    """Threads that Numba could use and was told not to."""
    numba: Any = sys.modules.get("numba")
    return int(numba.config.NUMBA_NUM_THREADS - numba.get_num_threads()) if hasattr(numba, "get_num_threads") else 0


def put_back_numba(old: int) -> None:
    """Restore the number of Numba's threads."""
    numba: Any = sys.modules["numba"]
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS - old)


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def blas_threads() -> tuple[tuple[str, int], ...]:
    """File and number of threads of each BLAS and OpenMP library."""
    return tuple((one.filepath, int(one.get_num_threads())) for one in _controller().lib_controllers)


def put_back_blas(old: tuple[tuple[str, int], ...]) -> None:
    """Restore the numbers of threads of BLAS and OpenMP libraries."""
    for path, count in old:
        for one in _controller().lib_controllers:
            if one.filepath == path:
                one.set_num_threads(count)
