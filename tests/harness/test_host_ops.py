"""Ops with kernels for the CPU alone, on a machine with a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from opgauge.harness.case.case import Case
from opgauge.harness.cli.run import host_cases
from opgauge.harness.gate.selection import _default_devices, _host_only, _trials_of
from opgauge.ops import find_op
from opgauge.ops._core import registry


def inventory(*available: str) -> dict[str, Any]:
    """Two ops, one of them for the CPU alone, with a case each."""
    backends = {"both": ("cpu", "cuda"), "host": ("cpu",)}
    keys = [(op, backend) for op, names in backends.items() for backend in names]
    return {
        "available": list(available),
        "kernels": [
            {"op": op, "backend": backend, "dtype": "float32", "implementation": "optimized", "folder": ""}
            for op, backend in keys
        ],
        "cases": [{"op": op, "name": "a", "id": op, "dtype": "float32"} for op in backends],
    }


@pytest.mark.parametrize(
    ("available", "expected"),
    [(("cpu", "cuda"), {("both", "cuda:0"), ("host", "cpu")}), (("cpu",), {("both", "cpu"), ("host", "cpu")})],
)
def test_the_gate_measures_them_on_the_cpu(available: tuple[str, ...], expected: set[tuple[str, str]]) -> None:
    """Without a named device an op is gated on the GPU if it has kernels for it, else on the CPU; never on both."""
    found = inventory(*available)
    host_only = _host_only([found])
    names = [{"cuda": "cuda:0"}.get(name, name) for name in _default_devices(found, host_only)]
    trials = _trials_of(found, found["cases"], names, host_only).trials
    assert {(subject.op, subject.device) for subject in trials} == expected


def test_a_run_measures_them_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` adds the CPU for cases of such ops alone, and only where it is not among the devices."""
    kept = {key: item for key, item in registry._KERNELS.items() if (key.op, key.backend) != ("dot", "cuda")}
    monkeypatch.setattr(registry, "_KERNELS", kept)
    cases = [Case(op, "a", {"x": (4,)}, "float32", find_op(op).params()) for op in ("dot", "sign")]
    assert host_cases(cases, ["cuda:0"]) == cases[:1]
    assert host_cases(cases, ["cpu"]) == []
