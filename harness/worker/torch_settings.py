"""Settings of torch that a kernel may change: threads, precision, modes, and those of its compiler.

Each is read and restored by itself, since reading some raises an exception if others have been set: those of the
precision of products, which torch has twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

UNREADABLE = "unreadable"
"""Value of a setting that raises an exception when it is read."""
PRECISIONS = (
    ("generic", "all"),
    *((backend, part) for backend in ("cuda", "mkldnn") for part in ("all", "matmul", "conv", "rnn")),
)
"""Backends and operators whose precision of float32 can be set."""
COMPILERS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")
"""Modules with options of torch's compiler, and of what it consists of."""
DECIDED = ("compile_threads",)
"""Options that the compiler sets when it is first used."""


class TorchSetting(NamedTuple):
    """Function that reads a setting of torch, and one that restores it.

    fresh: value after the import of torch; None if that depends on its version, the environment or the machine.
    """

    read: Callable[[Any], Any]
    put_back: Callable[[Any, Any], object]
    fresh: Any = None


def torch_state() -> dict[str, Any] | None:
    """Present settings of torch by name, and options of its compiler that differ from their defaults.

    None if torch is not loaded.
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "get_num_threads"):
        return None
    found = {}
    for name, setting in SETTINGS.items():
        found[name] = UNREADABLE
        with suppress(AttributeError, RuntimeError):
            found[name] = setting.read(torch)
    return {**found, **_options()}


def fresh_torch(new: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a trial began with which imported torch. new: those that it left, taken where none are known."""
    return {name: new[name] if one.fresh is None else one.fresh for name, one in SETTINGS.items()}


def changed_torch(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Text with the names of the settings that differ; options of the compiler may be torch's own doing."""
    names = [name for name in SETTINGS if old.get(name) != new.get(name)]
    return f"changed torch's threads, precision or modes ({', '.join(names[:3])})" if names else ""


def put_back_torch(old: Mapping[str, Any]) -> None:
    """Restore all settings that differ, in the order of the table: the precisions of products depend on each other."""
    torch: Any = sys.modules["torch"]
    new = torch_state() or {}
    for name, setting in SETTINGS.items():
        if old[name] != UNREADABLE and (old[name] != new.get(name) or "precision" in name):
            with suppress(AttributeError, RuntimeError):
                setting.put_back(torch, old[name])
    for name in _options().keys() | old.keys() - SETTINGS.keys():
        module, _, key = name.partition(": ")
        with suppress(KeyError):
            setattr(sys.modules[module], key, old[name] if name in old else _default(sys.modules[module], key))


def _options() -> dict[str, Any]:
    """Options of the compiler that differ from their defaults, by name of module and option."""
    found: dict[str, Any] = {}
    for name in COMPILERS:
        module = sys.modules.get(name)
        with suppress(AttributeError, KeyError):
            changed: Mapping[str, Any] = getattr(module, "_get_dict")(skip_default=True)  # noqa: B009  private
            found |= {
                f"{name}: {key}": value
                for key, value in changed.items()
                if key not in DECIDED and value != _default(module, key)
            }
    return found


def _default(module: ModuleType | None, key: str) -> Any:
    return module._config[key].default  # type: ignore[union-attr]  # noqa: SLF001


def _precision(backend: str, part: str) -> TorchSetting:
    """The precision of float32 in operators of a backend."""
    return TorchSetting(
        lambda torch: torch._C._get_fp32_precision_getter(backend, part),  # noqa: SLF001
        lambda torch, old: torch._C._set_fp32_precision_setter(backend, part, old),  # noqa: SLF001
        None if backend == "cuda" else "none",  # the environment may allow TF32
    )


def _leave_modes(count: Callable[[], int], leave: Callable[[], object], old: int) -> None:
    """Leave modes that a kernel has entered."""
    while count() > old:
        leave()


def _stance(_: Any) -> Any:
    """How functions that torch has compiled run: compiled, or as they are written."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    stance = getattr(frames, "_stance", None)
    return DEFAULT if stance is None or str(stance.stance) == DEFAULT else stance


def _put_back_stance(torch: Any, old: Any) -> None:
    torch.compiler.set_stance(old if old == DEFAULT else old.stance)


DEFAULT = "default"
"""Stance in which compiled functions run."""
SETTINGS: Mapping[str, TorchSetting] = {
    "threads": TorchSetting(lambda torch: torch.get_num_threads(), lambda torch, old: torch.set_num_threads(old)),
    "gradients": TorchSetting(
        lambda torch: torch.is_grad_enabled(), lambda torch, old: torch.set_grad_enabled(old), fresh=True
    ),
    "inference mode": TorchSetting(lambda torch: torch.is_inference_mode_enabled(), lambda *_: None, fresh=False),
    "deterministic algorithms": TorchSetting(
        lambda torch: torch.are_deterministic_algorithms_enabled(),
        lambda torch, old: torch.use_deterministic_algorithms(old),
        fresh=False,
    ),
    "default dtype": TorchSetting(
        lambda torch: str(torch.get_default_dtype()),
        lambda torch, old: torch.set_default_dtype(getattr(torch, old.removeprefix("torch."))),
        fresh="torch.float32",
    ),
    "autocast": TorchSetting(
        lambda torch: torch.is_autocast_enabled("cpu"),
        lambda torch, old: torch.set_autocast_enabled("cpu", old),
        fresh=False,
    ),
    "dtype of autocast": TorchSetting(
        lambda torch: str(torch.get_autocast_dtype("cpu")),
        lambda torch, old: torch.set_autocast_dtype("cpu", getattr(torch, old.removeprefix("torch."))),
        fresh="torch.bfloat16",
    ),
    "precision of products": TorchSetting(
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, old: torch.set_float32_matmul_precision(old),
    ),
    "TF32 in products, precision": TorchSetting(
        lambda torch: torch.backends.cuda.matmul.allow_tf32,
        lambda torch, old: setattr(torch.backends.cuda.matmul, "allow_tf32", old),
    ),
    "TF32 in cuDNN, precision": TorchSetting(
        lambda torch: torch.backends.cudnn.allow_tf32,
        lambda torch, old: setattr(torch.backends.cudnn, "allow_tf32", old),
    ),
    **{f"precision of {backend} {part}": _precision(backend, part) for backend, part in PRECISIONS},
    "oneDNN": TorchSetting(
        lambda torch: torch._C._get_mkldnn_enabled(),  # noqa: SLF001
        lambda torch, old: torch._C._set_mkldnn_enabled(old),  # noqa: SLF001
        fresh=True,
    ),
    "anomaly detection": TorchSetting(
        lambda torch: torch.is_anomaly_enabled(),
        lambda torch, old: torch.autograd.set_detect_anomaly(old),
        fresh=False,
    ),
    "modes of functions": TorchSetting(
        lambda torch: torch._C._len_torch_function_stack(),  # noqa: SLF001
        lambda torch, old: _leave_modes(torch._C._len_torch_function_stack, torch._C._pop_torch_function_stack, old),  # noqa: SLF001
        fresh=0,
    ),
    "modes of operators": TorchSetting(
        lambda torch: torch._C._len_torch_dispatch_stack(),  # noqa: SLF001
        lambda torch, old: _leave_modes(torch._C._len_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack, old),  # noqa: SLF001
        fresh=0,
    ),
    "profiler": TorchSetting(
        lambda torch: torch._C._autograd._profiler_enabled(),  # noqa: SLF001
        lambda torch, old: None if old else torch._C._autograd._disable_profiler(),  # noqa: SLF001
        fresh=False,
    ),
    "hooks of saved tensors": TorchSetting(
        lambda torch: torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,  # noqa: SLF001
        lambda torch, old: None if old else torch._C._autograd._pop_saved_tensors_default_hooks(),  # noqa: SLF001
        fresh=False,
    ),
    "stance of the compiler": TorchSetting(_stance, _put_back_stance, DEFAULT),
}
"""Settings by name, in the order in which they are restored; those of precision are restored all or none."""
