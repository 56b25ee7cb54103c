"""A small library of tensor operators: what each computes, and kernels that compute it.

`from opgauge import ops` imports no GPU library, no Numba and no torch. The names below are the public interface.
"""

from __future__ import annotations

import opgauge
from opgauge.ops._core.backend import BACKENDS, Device, available
from opgauge.ops._core.call import call
from opgauge.ops._core.dtype import COMPLEX, DTYPES, FLOATS, INTS, DtypeInfo, dtype_info, dtype_name
from opgauge.ops._core.errors import (
    AxisError,
    BackendError,
    CompileError,
    DefinitionError,
    DtypeError,
    DuplicateError,
    GraphError,
    KernelNotFoundError,
    OpError,
    OpNotFoundError,
    ParameterError,
    ShapeError,
    TuningError,
)
from opgauge.ops._core.kernel import Bound, Kernel, KernelKey, param_values
from opgauge.ops._core.op import Input, Op, Shape, Shapes, TensorSpec, Work
from opgauge.ops._core.registry import (
    Found,
    all_ops,
    discover,
    find_kernel,
    find_kernel_or_cpu,
    find_op,
    kernel,
    kernels,
    register,
    register_kernel,
)

if opgauge.shipped_ops:
    discover()

__all__ = [
    "BACKENDS",
    "COMPLEX",
    "DTYPES",
    "FLOATS",
    "INTS",
    "AxisError",
    "BackendError",
    "Bound",
    "CompileError",
    "DefinitionError",
    "Device",
    "DtypeError",
    "DtypeInfo",
    "DuplicateError",
    "Found",
    "GraphError",
    "Input",
    "Kernel",
    "KernelKey",
    "KernelNotFoundError",
    "Op",
    "OpError",
    "OpNotFoundError",
    "ParameterError",
    "Shape",
    "ShapeError",
    "Shapes",
    "TensorSpec",
    "TuningError",
    "Work",
    "all_ops",
    "available",
    "call",
    "discover",
    "dtype_info",
    "dtype_name",
    "find_kernel",
    "find_kernel_or_cpu",
    "find_op",
    "kernel",
    "kernels",
    "param_values",
    "register",
    "register_kernel",
]
