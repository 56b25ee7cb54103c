"""Settings of torch that a kernel has changed are told by name and put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from opgauge.harness.worker.state import observe, restore
from opgauge.harness.worker.torch_settings import SETTINGS

torch: Any = pytest.importorskip("torch")
LEFT: list[Any] = []


def enter(mode: Any) -> None:
    """Enter a context and do not leave it; destroyed, some contexts leave themselves."""
    mode.__enter__()
    LEFT.append(mode)


def mode_of_functions() -> Any:
    kind = import_module("torch.overrides").TorchFunctionMode
    return type("Mode", (kind,), {"__torch_function__": lambda _, call, __, given=(), named=None: call(*given)})()


CHANGES: dict[str, Callable[[], Any]] = {
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "gradients": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "autocast": lambda: enter(torch.autocast("cpu", dtype=torch.bfloat16)),
    "dtype of autocast": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "precision of mkldnn matmul": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "precision of generic all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "oneDNN": lambda: torch._C._set_mkldnn_enabled(False),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
    "modes of functions": lambda: enter(mode_of_functions()),
    "profiler": lambda: enter(torch.autograd.profiler.profile()),
    "hooks of saved tensors": lambda: enter(torch.autograd.graph.save_on_cpu()),
    "stance of the compiler": lambda: torch.compiler.set_stance("force_eager"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_told_and_put_back(name: str) -> None:
    """Later peers would be slower, or wrong; the process is replaced besides."""
    before = observe()
    CHANGES[name]()
    old, new = before.torch_state or {}, observe().torch_state or {}
    differing = [one for one in SETTINGS if new[one] != old[one]]
    found = restore(before)
    assert name in differing  # other precisions may follow one
    assert all(one in found.text for one in differing[:3])
    assert found.is_lasting
    assert observe().torch_state == before.torch_state
    torch.get_float32_matmul_precision()  # raises an exception where settings contradict each other


@pytest.mark.parametrize("name", ["default dtype", "autocast", "modes of functions"])
def test_settings_of_a_kernel_that_imports_torch_are_told(name: str) -> None:
    """No state of torch is known before the trial."""
    before = replace(observe(), torch_state=None)
    restore(before)  # precisions that other tests have set
    assert not restore(before).text
    CHANGES[name]()
    assert name in restore(before).text
    assert not restore(before).text


def test_inference_mode_is_told() -> None:
    """Nothing but its context leaves it, so that the process is replaced."""
    before = observe()
    with torch.inference_mode():
        found = restore(before)
        assert "inference mode" in found.text
        assert found.is_lasting


@pytest.mark.parametrize("is_loaded", [False, True])
def test_options_of_the_compiler_are_put_back_in_silence(*, is_loaded: bool) -> None:
    """Later peers are compiled as others are; torch sets some options itself, for which no kernel is at fault."""
    dynamo: Any = import_module("torch._dynamo.config")
    inductor: Any = import_module("torch._inductor.config")
    before = observe() if is_loaded else replace(observe(), torch_state=None)
    dynamo.disable, inductor.cpp.simdlen, inductor.compile_threads = True, 1, 3
    assert not restore(before).text
    assert (dynamo.disable, inductor.cpp.simdlen, inductor.compile_threads) == (False, None, 3)
    inductor.compile_threads = None
