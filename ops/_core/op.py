"""Definition of an operator: parameters, shape rule, inputs, reference, least work, tolerance.

An op is a value, created once per operator in `ops/<op>/op.py` and registered with
`opgauge.ops._core.registry.register`. It does not say how to compute; kernels
do. Nothing here needs a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Array = NDArray[Any]
Params = Any  # an instance of the op's own frozen dataclass (`Op.params`)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype name of one tensor.

    `view_of` names the input that an output is a view of: it then has no buffer of its
    own and the kernel returns it (flatten without a copy).
    """

    shape: Shape
    dtype: str
    view_of: str | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Shapes:
    """Result of the shape rule: every input present (given or derived) and every output, in order."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class Work:
    """The least work that any implementation must do.

    Each input is read once and each output written once. `bytes_read` and
    `bytes_written` in bytes; `flops` in floating-point operations (a multiply-add is 2).
    """

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


Distribution = Literal["normal", "uniform", "integers", "constant"]


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an op, and its default distribution in a benchmark.

    `low`/`high` bound `uniform` and `integers` (both ends included for integers),
    `mean`/`std` shape `normal`, `value` is for `constant`.
    `required`: must be among a case's shapes. An input that is neither required nor
    derived by the shape rule is absent unless the case gives its shape.
    """

    name: str
    required: bool = True
    kind: Distribution = "normal"
    low: float = -1.0
    high: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    value: float = 0.0
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """An operator.

    name: as in the design documents.
    params: a frozen dataclass with a default for every field; its `__post_init__` raises
        ParameterError for a value outside the domain. Fields hold plain values only
        (bool, int, float, str, None, tuples of int).
    dtypes: dtype names that the op is defined for.
    inputs, outputs: in API order. An output that the shape rule leaves out is absent.
    infer(shapes, dtype, params): the shape rule. `shapes` has the inputs that a case
        gives; the result has all inputs, derived ones too, and all outputs. Raises
        ShapeError, AxisError, ParameterError or DtypeError.
    reference(arrays, params): outputs by name, from float64 inputs (complex128 for
        complex, the integer dtype itself for integers and bool), written independently
        of every kernel, in NumPy. Integer and bool outputs are exact.
    derive(arrays, params): for inputs whose values depend on others (y of p_norm_grad
        is p_norm of x): takes the float64 arrays of all inputs and returns those to
        replace, in float64. None where inputs are independent.
    work(shapes, params): least work.
    bound(arrays, outputs, params, dtype): per output, the largest absolute error that a
        correct kernel may show, an array that broadcasts against the output (float64), or
        0 for exact; negative where partial results may overflow (`ops/_core/overflow.py`).
        `arrays` are the float64 inputs, `outputs` the reference's.
        The checker adds one rounding to the output's dtype by itself.
    propose(random, elements): shapes and parameters by name of a random case whose largest tensor has about so
        many elements, for `opgauge explore`; None where drawing by the shape rule alone finds valid cases.
    summary: one line. source: where the formula comes from.
    """

    name: str
    params: type
    dtypes: tuple[str, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    infer: Callable[[Mapping[str, Shape], str, Params], Shapes]
    reference: Callable[[Mapping[str, Array], Params], dict[str, Array]]
    work: Callable[[Shapes, Params], Work]
    bound: Callable[[Mapping[str, Array], Mapping[str, Array], Params, str], dict[str, Array | float]]
    derive: Callable[[Mapping[str, Array], Params], dict[str, Array]] | None = None
    propose: Callable[[Random, int], tuple[dict[str, Shape], dict[str, Any]]] | None = None
    summary: str = ""
    source: str = ""
    errata: tuple[str, ...] = field(default=())

    def expected(self, arrays: Mapping[str, Array], params: Params) -> dict[str, Array]:
        """Outputs of the reference as arrays. Numbers are taken too: arithmetic makes them of arrays without axes."""
        given = {name: np.asarray(value) for name, value in arrays.items()}
        return {name: np.asarray(value) for name, value in self.reference(given, params).items()}

    def input(self, name: str) -> Input:
        """The input called `name`; raises KeyError."""
        for item in self.inputs:
            if item.name == name:
                return item
        raise KeyError(name)


def tensor_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of all tensors of `specs`, views left out."""
    from opgauge.ops._core.dtype import dtype_info

    return sum(spec.size * dtype_info(spec.dtype).itemsize for spec in specs.values() if spec.view_of is None)
