"""`opgauge.op`: an op from one NumPy function, its float64 reference."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import cache
from typing import Any, NamedTuple, overload

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.errors import DefinitionError, ShapeError
from opgauge.ops._core.kernel import Kernel, KernelKey, param_values
from opgauge.ops._core.op import Array, Input, Op, Params, Shape, Shapes, TensorSpec, Work, tensor_bytes
from opgauge.ops._core.registry import register, register_kernel
from opgauge.ops._core.source import source_line
from opgauge.ops._function.code_digest import code_digest
from opgauge.ops._function.error_bound import Tolerance, check_tolerance, perturbation_bound, stated_bound
from opgauge.ops._function.implementation import Implementation
from opgauge.ops._function.near_ties import near_ties
from opgauge.ops._function.outputs import name_outputs, output_dtype
from opgauge.ops._function.signature import Signature, read_signature
from opgauge.ops._function.trace import trace

Function = Callable[..., Any]
Rule = Callable[..., Any]
DEVICES = ("cpu", "cuda")
"""Backends that an implementation can name."""


class FunctionSettings(NamedTuple):
    """Options of `op` besides the reference."""

    dtypes: tuple[str, ...]
    outputs: Mapping[str, str]
    tolerance: Tolerance | None
    shapes: Rule | None
    flops: Rule | float
    nbytes: Rule | float | None


class FunctionOp:
    """An op whose meaning is a reference function. Calling it calls the reference.

    op: the registered `Op`. reference: the function.
    """

    def __init__(
        self, reference: Function, name: str, signature: Signature, settings: FunctionSettings, texts: tuple[str, str]
    ) -> None:
        self.reference = reference
        self.name = name
        self._signature = signature
        self._settings = settings
        self._derive: Function | None = None
        self._infer = cache(self._traced)
        self._digest = cache(self._read_code)
        summary, source = texts
        named = {**settings.outputs} or self._output_names()
        self._outputs = tuple(named)
        self.op = register(
            Op(
                name=name,
                params=signature.params,
                dtypes=settings.dtypes,
                inputs=signature.inputs,
                outputs=self._outputs,
                infer=self._shape_rule,
                reference=self._reference(),
                work=self._work,
                bound=self._bound,
                derive=self._derived,
                summary=summary,
                source=source,
            )
        )

    def __call__(self, *arguments: Any, **parameters: Any) -> Any:
        """Call the reference."""
        return self.reference(*arguments, **parameters)

    def derive(self, function: Function) -> Function:
        """Decorate a function that computes inputs from others, such as valid indices.

        It takes the inputs and parameters as the reference does, in float64, and returns those to replace by name.
        """
        self._derive = function
        return function

    def implementation(
        self,
        name: str,
        *,
        device: str | Iterable[str],
        arrays: str | None = None,
        dtypes: Iterable[str] | None = None,
        inplace: str | Mapping[str, str] | None = None,
        prepare: bool = False,
        strided: bool = False,
        deterministic: bool = True,
        relaxed: float = 1.0,
        note: str = "",
        captures_inputs: bool = False,
        variant: bool = False,
    ) -> Callable[[Function], Function]:
        """Register the decorated function as an implementation; `torch`, `torch_compile` and `torchvision` are peers.

        It takes the inputs and parameters of the reference by name. It returns the output (several: a tuple in the
        op's order, or a mapping), or takes `out` and fills it (several: a tuple of arrays). A parameter called
        `stream` receives the CUDA stream to launch on, as an integer.

        device: `cpu`, `cuda` or both. arrays: type of its arrays, by default NumPy's on the CPU and
        CuPy's on CUDA: `numpy`, `cupy`, `torch`, `jax` or `numba` (CUDA arrays of Numba). dtypes: those it computes; by
        default the op's. inplace: the input that it overwrites with the output, or input by output; the time then
        includes copying that input. prepare: the function does not compute but returns a callable without arguments
        that does, so that compiling and choosing are not timed; inputs have other values meanwhile, unless
        `captures_inputs` says that it reads them. variant: measured for comparison and gated only
        where it is named. The rest is as in `opgauge.ops.kernel`. Raises DefinitionError.
        """
        devices = (device,) if isinstance(device, str) else tuple(device)
        wrong = [one for one in devices if one not in DEVICES]
        if wrong or not devices:
            msg = f"implementation {name!r} of {self.name}: device= should be cpu, cuda or both, not {device!r}"
            raise DefinitionError(msg)
        mapping = {self._outputs[0]: inplace} if isinstance(inplace, str) else dict(inplace or {})

        def decorate(function: Function) -> Function:
            made = Implementation(self.op, name, function, arrays, mapping, is_prepared=prepare)
            for one in devices:
                for dtype in self._settings.dtypes if dtypes is None else dtypes:
                    register_kernel(
                        Kernel(
                            key=KernelKey(self.name, name, one, dtype_info(dtype).name),
                            function=made.kernel(one),
                            prepare=True,
                            arrays="torch" if arrays == "torch" else "numpy",
                            strided=strided,
                            deterministic=deterministic,
                            relaxed=relaxed,
                            note=note or ("in place: the time includes a copy of the input" if mapping else ""),
                            path=source_line(function).file,
                            # JAX may copy its inputs
                            captures_inputs=captures_inputs or arrays == "jax",
                            variant=variant,
                        )
                    )
            return function

        return decorate

    def _output_names(self) -> tuple[str, ...]:
        """Names by the reference's return annotation, if it is a NamedTuple; else `out`."""
        try:
            returned = inspect.get_annotations(self.reference, eval_str=True).get("return")
        except Exception:  # noqa: BLE001  annotations of inputs need not be code
            returned = None
        return tuple(getattr(returned, "_fields", ())) or ("out",)

    def _reference(self) -> Function:
        def reference(arrays: Mapping[str, Array], params: Params) -> dict[str, Array]:
            return self._evaluate(arrays, params)

        reference.__wrapped__ = self.reference  # type: ignore[attr-defined]  # for inspect.getsource
        reference.digest = self._digest  # type: ignore[attr-defined]
        return reference

    def _read_code(self) -> str:
        """Digest of the code of the check: the reference, the rule for its inputs, and the stated options."""
        settings = self._settings
        return code_digest(self.reference, self._derive, settings.tolerance, settings.outputs, settings.shapes)

    def _evaluate(self, arrays: Mapping[str, Array], params: Params) -> dict[str, Array]:
        positional = [arrays.get(item.name) for item in self._signature.inputs]
        returned = self.reference(*positional, **param_values(params))
        return name_outputs(returned, self._outputs, self.name)

    def _complete(self, arrays: Mapping[str, Array], params: Params) -> dict[str, Array]:
        """Outputs after derived inputs have their values."""
        return self._evaluate({**arrays, **self._derived(arrays, params)}, params)

    def _derived(self, arrays: Mapping[str, Array], params: Params) -> dict[str, Array]:
        if self._derive is None:
            return {}
        positional = [arrays.get(item.name) for item in self._signature.inputs]
        return dict(self._derive(*positional, **param_values(params)))

    def _shape_rule(self, shapes: Mapping[str, Shape], dtype: str, params: Params) -> Shapes:
        self._digest()  # before a call changes what the function refers to, such as a cache
        return self._infer(tuple((name, tuple(shape)) for name, shape in shapes.items()), dtype, params)

    def _traced(self, shapes: tuple[tuple[str, Shape], ...], dtype: str, params: Params) -> Shapes:
        by_name = dict(shapes)
        specs = {
            item.name: TensorSpec(by_name[item.name], self._signature.dtypes.get(item.name, dtype))
            for item in self._signature.inputs
            if item.name in by_name
        }
        return Shapes(specs, self._output_specs(specs, dtype, params))

    def _output_specs(self, specs: Mapping[str, TensorSpec], dtype: str, params: Params) -> dict[str, TensorSpec]:
        rule, stated = self._settings.shapes, self._settings.outputs
        dtypes = {name: spec.dtype for name, spec in specs.items()}
        shapes = {name: spec.shape for name, spec in specs.items()}
        if rule is not None and all(stated.get(name) for name in self._outputs):
            found = rule(*(shapes.get(item.name) for item in self._signature.inputs), **param_values(params))
            listed = [found] if len(self._outputs) == 1 else list(found)
            return {name: TensorSpec(tuple(shape), stated[name]) for name, shape in zip(stated, listed, strict=True)}
        try:
            with redirect_stdout(sys.stderr):  # standard output may be JSON
                traced = trace(lambda arrays: self._complete(arrays, params), shapes, dtypes)
        except DefinitionError:
            raise
        except Exception as error:  # a user's function may raise any
            given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            kind = "" if isinstance(error, ValueError | IndexError) else f"{type(error).__name__}: "
            msg = f"{self.name}: the reference refuses {given}: {kind}{error}"
            raise ShapeError(msg) from error
        return {
            name: TensorSpec(one.shape, stated.get(name) or output_dtype(one.kind, one.dtype, dtype))
            for name, one in traced.items()
        }

    def _work(self, shapes: Shapes, params: Params) -> Work:
        tensors = [shapes.inputs.get(item.name) for item in self._signature.inputs]

        def figure(rule: Rule | float) -> int:
            return int(rule(*tensors, **param_values(params)) if callable(rule) else rule)

        flops, nbytes = figure(self._settings.flops), self._settings.nbytes
        written = tensor_bytes(shapes.outputs)
        read = tensor_bytes(shapes.inputs) if nbytes is None else max(figure(nbytes) - written, 0)
        return Work(read, written, flops)

    def _bound(
        self, arrays: Mapping[str, Array], outputs: Mapping[str, Array], params: Params, dtype: str
    ) -> dict[str, Array | float]:
        def call(changed: Mapping[str, Array]) -> dict[str, Array]:
            return self._evaluate(changed, params)

        tolerance = self._settings.tolerance
        if tolerance is None:
            found = perturbation_bound(call, arrays, outputs, dtype)
        else:
            found = stated_bound(tolerance, outputs, dtype)
        return found | near_ties(call, arrays, outputs, dtype)


@overload
def op(reference: Function) -> FunctionOp: ...
@overload
def op(
    *,
    name: str | None = None,
    dtypes: Iterable[str] | None = None,
    inputs: Mapping[str, Input] | None = None,
    outputs: Iterable[str] | Mapping[str, str] = (),
    shapes: Rule | None = None,
    tolerance: Tolerance | None = None,
    flops: Rule | float = 0,
    bytes: Rule | float | None = None,
    source: str = "",
) -> Callable[[Function], FunctionOp]: ...
def op(
    reference: Function | None = None,
    *,
    name: str | None = None,
    dtypes: Iterable[str] | None = None,
    inputs: Mapping[str, Input] | None = None,
    outputs: Iterable[str] | Mapping[str, str] = (),
    shapes: Rule | None = None,
    tolerance: Tolerance | None = None,
    flops: Rule | float = 0,
    bytes: Rule | float | None = None,
    source: str = "",
) -> FunctionOp | Callable[[Function], FunctionOp]:
    """Register an op that is defined by the decorated NumPy function, its reference in float64.

    Positional arguments are inputs (float64 arrays, or of the exact dtype that an annotation such as `index: "int64"`
    names; default None: optional). Keyword-only arguments are parameters, each with a default. The reference returns
    the output; several as a tuple or mapping.

    name: of the op; by default the function's. dtypes: that cases may have; by default those of `tolerance` if it is
    by dtype, else `float16`, `bfloat16`, `float32` and `float64`. inputs: `opgauge.Input` by name, where values should
    not be normally distributed. outputs: names of several outputs, or dtype by name ("" for the case's); by default
    `out`, or the fields of the NamedTuple that the reference is annotated to return. shapes: function of the input
    shapes (positional) and parameters that returns the output shapes; it is used where `outputs` gives dtypes too, and
    otherwise shapes are found by calling the reference. tolerance: relative error, (relative, absolute), or either by
    dtype; by default the bound follows from the reference under perturbed inputs (see `error_bound`). flops: a number,
    or a function of the inputs' `TensorSpec` and the parameters; bytes: likewise, by default those of all inputs and
    outputs. source: where the formula comes from. Raises DefinitionError.
    """

    def decorate(function: Function) -> FunctionOp:
        called = name or getattr(function, "__name__", "")
        if not called:
            msg = f"the reference {function!r} has no name: give one by name="
            raise DefinitionError(msg)
        listed = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, "")
        default = tuple(tolerance) if isinstance(tolerance, Mapping) else FLOATS
        settings = FunctionSettings(
            dtypes=tuple(dtype_info(one).name for one in (default if dtypes is None else dtypes)),
            outputs=listed,
            tolerance=tolerance,
            shapes=shapes,
            flops=flops,
            nbytes=bytes,
        )
        if tolerance is not None:
            check_tolerance(tolerance, settings.dtypes, called)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        return FunctionOp(function, called, read_signature(function, called, inputs or {}), settings, (summary, source))

    return decorate if reference is None else decorate(reference)
