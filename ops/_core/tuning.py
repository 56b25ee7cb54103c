"""Launch parameters that depend on the device: declared with a safe default, tuned by `opgauge tune`, stored in files.

Host code declares a `Parameter` at module level and reads its `value` when it binds. Values come from
`ops/tuning/<model>.json`; a file given to `use` takes precedence, and `override` over both. An unknown device,
file, name or value leaves the default: no tuning file can make a kernel fail, and `notes` reports
ignored entries. A number that correctness depends on is not a parameter: it stays in the code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from opgauge.ops._core.backend import BACKENDS, cuda_device_count, cupy, device_model
from opgauge.ops._core.errors import DuplicateError, TuningError
from opgauge.ops._core.listening import listening

FOLDER = Path(__file__).parent.parent / "tuning"
"""Folder of the tuning files that ship with the package."""
_PARAMETERS: dict[str, Parameter] = {}
_LISTENERS: list[dict[str, int]] = []


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number whose best value depends on the device; every candidate is correct on all of them.

    default: the safe choice. ops: those whose cases depend on it. why: its trade-off, in one line.
    """

    name: str
    default: int
    candidates: tuple[int, ...]
    backend: str
    ops: tuple[str, ...]
    why: str

    def value(self) -> int:
        """Value in force on the current device; a look-up, meant for binding a kernel."""
        chosen = _values(self.backend, _current(self.backend))[self.name]
        for heard in _LISTENERS:
            heard[self.name] = chosen
        return chosen

    def covers(self, number: int) -> bool:
        """Whether `number` is no larger than the value, which is queried only if candidates disagree."""
        if number <= min(self.candidates) or number > max(self.candidates):
            return number <= min(self.candidates)
        return number <= self.value()

    def cap(self, number: int, unit: int = 1) -> int:
        """`number`, but no more than the value times `unit`; queried only if some candidate is less."""
        return number if number <= min(self.candidates) * unit else min(number, self.value() * unit)


class _Resolved(NamedTuple):
    values: dict[str, int]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Given:
    """Overrides of the shipped file."""

    file: Path | None = None
    values: Mapping[str, int] = field(default_factory=dict)


_GIVEN = _Given()


def declare(
    name: str, default: int, candidates: tuple[int, ...], *, backend: str, ops: tuple[str, ...], why: str
) -> Parameter:
    """Declare a parameter.

    Raises DuplicateError if the name is taken, TuningError if the default is not a candidate.
    """
    if name in _PARAMETERS:
        msg = f"parameter {name!r} is declared twice"
        raise DuplicateError(msg)
    if default not in candidates or len(set(candidates)) < len(candidates) or backend not in BACKENDS:
        msg = f"{name}: {default} on {backend} is no choice of {_listed(candidates)} on {' or '.join(BACKENDS)}"
        raise TuningError(msg)
    made = _PARAMETERS[name] = Parameter(name, default, candidates, backend, ops, why)
    _forget()
    return made


def parameters(backend: str | None = None) -> tuple[Parameter, ...]:
    """Every parameter (of a backend), by name."""
    found = (_PARAMETERS[name] for name in sorted(_PARAMETERS))
    return tuple(item for item in found if backend in {None, item.backend})


def shipped(model: str) -> Path:
    """The tuning file of a device, by its vendor's name: `NVIDIA H200` has `nvidia-h200.json`."""
    plain = re.sub(r"\((r|tm|c)\)", " ", model.lower())
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', plain).strip('-') or 'unknown'}.json"


def read(path: Path) -> dict[str, Any]:
    """The `values` of a tuning file; raises TuningError, with the reason, if it has none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise TuningError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path}: no JSON: {error}"
        raise TuningError(msg) from error
    values = held.get("values") if isinstance(held, dict) else None
    if not isinstance(values, dict):
        msg = f"{path}: not a tuning file: it should be an object with `values`, numbers by parameter"
        raise TuningError(msg)
    return values


def use(file: Path | None) -> None:
    """Give `file` precedence over the shipped ones, on every device. If it cannot be read, `notes` says so."""
    _GIVEN.file = file
    _forget()


@contextmanager
def override(values: Mapping[str, int]) -> Iterator[None]:
    """Give `values` precedence over all files in this context."""
    before, _GIVEN.values = _GIVEN.values, {**_GIVEN.values, **values}
    _forget()
    try:
        yield
    finally:
        _GIVEN.values = before
        _forget()


def recording() -> AbstractContextManager[dict[str, int]]:
    """Every parameter that is queried in this context, with its value."""
    return listening(_LISTENERS, {})


def in_force(backend: str, model: str) -> dict[str, int]:
    """The value of every parameter on a device of `model`."""
    return dict(_resolve(backend, model).values)


def notes(backend: str, model: str) -> tuple[str, ...]:
    """Entries of the files that were ignored for a device of `model`, one sentence each."""
    return _resolve(backend, model).notes


def fingerprint(backend: str, model: str) -> str:
    """12 hexadecimal digits for the values that differ from the default; `defaults` if none does."""
    found = {name: value for name, value in in_force(backend, model).items() if value != _PARAMETERS[name].default}
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12] if found else "defaults"


def find(name: str) -> Parameter:
    """The parameter called `name`; raises TuningError with the nearest name."""
    if name not in _PARAMETERS:
        msg = f"no parameter {name!r}{_nearest(name)}"
        raise TuningError(msg)
    return _PARAMETERS[name]


def _current(backend: str) -> int:
    return int(cupy().cuda.runtime.getDevice()) if backend == "cuda" and cuda_device_count() else 0


@cache
def _values(backend: str, index: int) -> dict[str, int]:
    return _resolve(backend, device_model(backend, index)).values


@cache
def _resolve(backend: str, model: str) -> _Resolved:
    values = {item.name: item.default for item in parameters(backend)}
    found: list[str] = []
    own = shipped(model)
    for file in (own if own.is_file() else None, _GIVEN.file):
        if file is None:
            continue
        try:
            given = read(file)
            if file == own:  # of all shipped ops, which a user's project may not have loaded
                given = {name: value for name, value in given.items() if name in _PARAMETERS}
            _take(given, str(file), backend, values, found)
        except TuningError as error:
            found.append(f"{error}; the file is passed over")
    _take(_GIVEN.values, "given values", backend, values, found)
    return _Resolved(values, tuple(found))


def _take(given: Mapping[str, Any], source: str, backend: str, values: dict[str, int], found: list[str]) -> None:
    for name, value in given.items():
        parameter = _PARAMETERS.get(name)
        if parameter is None:
            found.append(f"{source}: there is no parameter {name!r}{_nearest(name)}")
        elif parameter.backend != backend:
            continue
        elif type(value) is int and value in parameter.candidates:
            values[name] = value
        else:
            allowed = _listed(parameter.candidates)
            found.append(f"{source}: {name} is {value!r}, not one of {allowed}; it stays {values[name]}")


def _nearest(name: str) -> str:
    near = get_close_matches(name, _PARAMETERS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _listed(candidates: tuple[int, ...]) -> str:
    return ", ".join(map(str, candidates))


def _forget() -> None:
    _values.cache_clear()
    _resolve.cache_clear()
