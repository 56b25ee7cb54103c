"""Every error that `ops` raises.

OpError
├── OpNotFoundError        no op of that name
├── KernelNotFoundError    no kernel under that key; lists the existing keys
├── DuplicateError         an op or kernel key claimed twice; names both claims
├── ParameterError         a parameter outside its domain (also a ValueError)
│   └── AxisError          an axis out of range
├── ShapeError             shapes that do not match (also a ValueError)
├── DtypeError             a dtype that the op does not take (also a TypeError)
├── BackendError           a backend or device that this machine does not have
├── CompileError           NVRTC rejected a source; carries its log
├── DefinitionError        an incompletely defined op or implementation
├── TuningError            an unreadable tuning file, or an unknown launch parameter
└── GraphError             a graph that is not well formed
"""

from __future__ import annotations


class OpError(Exception):
    """The root of this library's errors."""


class OpNotFoundError(OpError):
    """No op of that name."""


class KernelNotFoundError(OpError):
    """No kernel under that key."""


class DuplicateError(OpError):
    """An op or a kernel key was claimed twice."""


class ParameterError(OpError, ValueError):
    """A parameter outside its domain."""


class AxisError(ParameterError):
    """An axis outside [-rank, rank - 1]."""


class ShapeError(OpError, ValueError):
    """Shapes that do not match the op or each other."""


class DtypeError(OpError, TypeError):
    """A dtype that the op or kernel does not take."""


class BackendError(OpError):
    """A backend or device that this machine does not have."""


class CompileError(OpError):
    """A CUDA source that does not compile; the message carries the compiler's log."""


class TuningError(OpError):
    """A tuning file that cannot be read, or an unknown launch parameter."""


class DefinitionError(OpError):
    """An op or an implementation that is not completely defined; the message says what to add."""


class GraphError(OpError):
    """A graph that is not well formed: a cycle, a missing producer, a value written twice."""
