"""Library settings: threads, precision and modes of loaded libraries, and functions that restore them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from operator import attrgetter
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
        *(_part(torch, read)() for read in _switches(torch)),
    )


def put_back_torch(old: tuple[Any, ...]) -> None:
    """Restore torch's threads, precision and modes."""
    torch: Any = sys.modules["torch"]
    torch.set_num_threads(old[0])
    torch.set_grad_enabled(old[1])
    torch.use_deterministic_algorithms(old[2])
    torch.set_default_dtype(getattr(torch, old[3].removeprefix("torch.")))
    torch.set_float32_matmul_precision(old[4])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old[5:7]
    for (read, write), value in zip(_switches(torch).items(), old[7:], strict=True):
        if isinstance(value, bool):
            _part(torch, write)(value)
        else:  # modes that a kernel has entered
            while _part(torch, read)() > value:
                _part(torch, write)()


def _switches(torch: Any) -> dict[str, str]:
    """The entries of `SWITCHES` that this version of torch has."""
    found = {}
    for read, write in SWITCHES.items():
        with suppress(AttributeError):
            _part(torch, read), _part(torch, write)
            found[read] = write
    return found


def _part(torch: Any, name: str) -> Callable[..., Any]:
    """A function of torch by its name."""
    found: Callable[..., Any] = attrgetter(name)(torch)
    return found


SWITCHES: Mapping[str, str] = {
    "_C._get_mkldnn_enabled": "_C._set_mkldnn_enabled",
    "is_anomaly_enabled": "_C._set_anomaly_enabled",
    "_C._len_torch_function_stack": "_C._pop_torch_function_stack",
    "_C._len_torch_dispatch_stack": "_C._pop_torch_dispatch_stack",
}
"""Functions that read a switch of torch or the number of modes that have been entered, and that set or leave them."""


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
