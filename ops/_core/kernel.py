"""A kernel: one function registered under (op, implementation, backend, dtype)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

from opgauge.ops._core.op import Params, Shapes

Bound = Callable[[], Any]
"""One run of a kernel on the arrays that it was bound to: writes `out`, or returns a tuple of outputs."""


class KernelKey(NamedTuple):
    """Key of a registered kernel; look-up is by exact match."""

    op: str
    implementation: str
    backend: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op}/{self.implementation}/{self.backend}/{self.dtype}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel and how to call it.

    function: takes every present input by its name, every parameter by its name, `out`
        (a dict of output buffers by name, in the op's order) and, where `workspace` is
        given, `workspace`; all by keyword. It writes `out` and returns None. It does not
        print, log, synchronise or time.
    prepare: True if `function` does not run but returns the zero-argument callable
        that runs (chooses launch parameters, compiles, builds an autograd graph). What it
        precomputes may depend on shapes, dtypes, parameters and addresses; never
        on the inputs' values, save in peers that must run a forward pass first.
    arrays: "numpy" (NumPy on cpu, CuPy on cuda) or "torch" (the caller converts, without a copy).
    workspace: bytes of scratch memory, from (shapes, params); zeroed once at
        allocation, and left by each run in a state in which the next run works. Only what
        `bind` returns keeps it: launches that know its address alone must hold it as well.
    strided: accepts inputs that are not C-contiguous.
    deterministic: gives the same bits run after run.
    exact: False if it computes in less precision than the dtype promises (TF32): it is
        then checked against `relaxed` times the op's bound, and the result says so.
    captures_inputs: binding depends on the inputs' values (a peer's forward pass). Such a kernel is not varied while it
        is timed, and its result says so.
    experimental: not yet verified on its device: runs only if named, and is not gated.
    path: file that registered it.
    variant: compared with others, but gated only if named.
    """

    key: KernelKey
    function: Callable[..., Any]
    prepare: bool = False
    arrays: str = "numpy"
    workspace: Callable[[Shapes, Params], int] | None = None
    strided: bool = False
    deterministic: bool = True
    relaxed: float = 1.0
    note: str = ""
    experimental: bool = False
    path: str = ""
    captures_inputs: bool = False
    variant: bool = False

    def bind(
        self,
        inputs: Mapping[str, Any],
        params: Params,
        out: Mapping[str, Any],
        workspace: Any = None,
    ) -> Bound:
        """Fix the arguments; each call of the result runs the kernel once.

        `params` is the op's dataclass; a parameter whose name is also a present input (a
        weight given as a tensor) is left to the input.
        """
        arguments = param_values(params)
        arguments.update(inputs)
        arguments["out"] = out
        if self.workspace is not None:
            arguments["workspace"] = workspace
        if self.prepare:
            bound: Bound = self.function(**arguments)
            return bound
        return partial(self.function, **arguments)


def param_values(params: Params) -> dict[str, Any]:
    """The fields of an op's parameters by name, not deep-copied."""
    if not is_dataclass(params) or isinstance(params, type):
        msg = f"not a parameter dataclass: {params!r}"
        raise TypeError(msg)
    return {item.name: getattr(params, item.name) for item in fields(params)}
