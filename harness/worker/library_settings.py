"""Library settings: threads, precision and modes of loaded libraries, and functions that restore them."""

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


def torch_state() -> tuple[Any, ...] | None:
    """Threads, precision and modes of torch; None if it is not loaded."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "get_num_threads"):
        return None
    return (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )


def put_back_torch(old: tuple[Any, ...]) -> None:
    """Restore torch's threads, precision and modes."""
    torch: Any = sys.modules["torch"]
    torch.set_num_threads(old[0])
    torch.set_grad_enabled(old[1])
    torch.use_deterministic_algorithms(old[2])
    torch.set_default_dtype(getattr(torch, old[3].removeprefix("torch.")))
    torch.set_float32_matmul_precision(old[4])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old[5:]


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
