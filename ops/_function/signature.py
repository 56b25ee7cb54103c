"""Signature of a reference function: positional arguments are inputs, keyword-only arguments are parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from types import SimpleNamespace, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from opgauge.ops._core.dtype import DTYPES
from opgauge.ops._core.errors import DefinitionError
from opgauge.ops._core.op import Input
from opgauge.ops._core.params import make_plain

PLAIN = (bool, int, float, str, type(None))
"""Types of parameter values."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters: inputs, and those that a case cannot name."""


class Signature(NamedTuple):
    """Inputs in order, the dtypes of those whose annotation names one, and the dataclass of the parameters."""

    inputs: tuple[Input, ...]
    dtypes: Mapping[str, str]
    params: type


def read_signature(function: Callable[..., Any], name: str, given: Mapping[str, Input]) -> Signature:
    """Read the signature of a reference function.

    An input whose default is None is optional. An annotation such as `index: "int64"` gives an input a dtype of its
    own. given: distributions of inputs by name. Raises DefinitionError for anything that a case cannot express.
    """
    inputs, dtypes, params = [], {}, {}
    for item in inspect.signature(function).parameters.values():
        if item.kind in VARIADIC:
            msg = f"op {name}: *{item.name} cannot be given in a case; name every input and parameter"
            raise DefinitionError(msg)
        if item.kind in POSITIONAL:
            inputs.append(_input(name, item, given))
            dtype = str(item.annotation).strip("'\"")
            if dtype in DTYPES:
                dtypes[item.name] = dtype
        else:
            params[item.name] = _default(name, item)
    if not inputs:
        msg = f"op {name}: the reference has no positional argument, and so no input"
        raise DefinitionError(msg)
    unknown = sorted(given.keys() - {item.name for item in inputs})
    if unknown:
        msg = f"op {name}: inputs= names {', '.join(unknown)}, which the reference does not take"
        raise DefinitionError(msg)
    return Signature(tuple(inputs), dtypes, _params_class(function, name, params))


def _input(name: str, item: inspect.Parameter, given: Mapping[str, Input]) -> Input:
    if item.default not in (inspect.Parameter.empty, None):
        msg = f"op {name}: input {item.name} has the default {item.default!r}; write parameters after a `*`"
        raise DefinitionError(msg)
    required = item.default is inspect.Parameter.empty
    known = given.get(item.name)
    if known is None:
        return Input(item.name, required=required)
    settings = {key: getattr(known, key) for key in ("kind", "low", "high", "mean", "std", "value", "doc")}
    return Input(item.name, required=required, **settings)


def _default(name: str, item: inspect.Parameter) -> Any:
    if item.default is inspect.Parameter.empty:
        msg = f"op {name}: parameter {item.name} has no default; a case may leave it out"
        raise DefinitionError(msg)
    return item.default


def _params_class(function: Callable[..., Any], name: str, defaults: Mapping[str, Any]) -> type:
    hints = _hints(function, name, defaults)
    fields = [(key, hints.get(key, type(value)), field(default=value)) for key, value in defaults.items()]
    for key, hint, _ in fields:
        if not _is_plain(hint):
            msg = (
                f"op {name}: parameter {key} is {_described(key, hint, hints)}; a case file can give bool, int, float, "
                "str, None, Literal, tuples of these, and unions"
            )
            raise DefinitionError(msg)
    return make_dataclass(f"{name}_params", fields, frozen=True, slots=True, namespace={"__post_init__": make_plain})


def _described(key: str, hint: Any, annotated: Mapping[str, Any]) -> str:
    return f"annotated {hint!r}" if key in annotated else f"by default a {hint.__name__}"


def _hints(function: Callable[..., Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations of the parameters alone: those of inputs may name array types that are not imported."""
    raw = getattr(function, "__annotations__", {})
    holder = SimpleNamespace(__annotations__={key: value for key, value in raw.items() if key in defaults})
    try:
        return get_type_hints(holder, globalns=getattr(function, "__globals__", {}))
    except NameError as error:
        msg = f"op {name}: {error}, in the annotation of a parameter"
        raise DefinitionError(msg) from error


def _is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal or hint in PLAIN or hint is Ellipsis:
        return True
    return origin in (tuple, Union, UnionType) and all(_is_plain(part) for part in get_args(hint))
