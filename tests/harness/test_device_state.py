"""State of a device and of its libraries that a kernel changes: replaced code is told, settings are put back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from opgauge.harness.measure.cuda import CudaTimer
from opgauge.harness.worker.bits import is_array
from opgauge.harness.worker.device_settings import has_strange_context, is_exhausted
from opgauge.harness.worker.state import observe, restore

GIB = 1 << 30


class ImaginedBase:
    """A base class with a method."""

    def record(self) -> None:
        """Record."""


class ImaginedEvent(ImaginedBase):
    """A class of CuPy's that is not there."""


class ImaginedPool:
    """A memory pool with a limit."""

    def __init__(self) -> None:
        self.limit, self.kept = 0, 0

    def get_limit(self) -> int:
        """The limit."""
        return self.limit

    def set_limit(self, *, size: int) -> None:
        """Set the limit."""
        self.limit = size

    def free_all_blocks(self) -> None:
        """Give back what is kept."""
        self.kept = 0


class ImaginedDevice:
    """CuPy with a device, neither of which is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocator: Any = "usual"
        self.accelerators: dict[str, list[str]] = {"routine": ["cub"], "reduction": ["cub"]}
        self.limits = {0: 1024, 1: 4096, 2: 8192, 6: 0}
        self.taken = 0
        self.pool = ImaginedPool()
        self.timer: Any = SimpleNamespace(_spin=object(), _empty=object(), _torch=None, rest=lambda: None)
        runtime = SimpleNamespace(
            deviceGetLimit=self.limits.__getitem__,
            deviceSetLimit=self.limits.__setitem__,
            memGetInfo=lambda: (100 * GIB - self.taken - self.pool.kept, 100 * GIB),
        )
        core = SimpleNamespace(
            get_routine_accelerators=lambda: self.accelerators["routine"],
            set_routine_accelerators=lambda new: self.accelerators.update(routine=new),
            get_reduction_accelerators=lambda: self.accelerators["reduction"],
            set_reduction_accelerators=lambda new: self.accelerators.update(reduction=new),
        )
        self.cuda: Any = ModuleType("cupy.cuda")
        vars(self.cuda).update(
            runtime=runtime,
            Event=type("Event", (ImaginedEvent,), {}),
            get_allocator=lambda: self.allocator,
            set_allocator=lambda new: setattr(self, "allocator", new),
            get_elapsed_time=lambda: 1.0,
        )
        self.cupy: Any = ModuleType("cupy")
        vars(self.cupy).update(
            cuda=self.cuda,
            _core=core,
            get_default_memory_pool=lambda: self.pool,
            array_equal=lambda *_: True,
            ndarray=type("ndarray", (), {"__module__": "cupy", "get": lambda _: None}),
        )
        monkeypatch.setitem(sys.modules, "cupy", self.cupy)
        monkeypatch.setitem(sys.modules, "cupy.cuda", self.cuda)
        monkeypatch.setattr(CudaTimer, "made", [self.timer])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ImaginedDevice:
    """A device that this process has used."""
    return ImaginedDevice(monkeypatch)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda device: setattr(device.cupy, "array_equal", lambda *_: False), "cupy.array_equal"),
        (lambda device: setattr(device.cuda, "get_elapsed_time", lambda: 0.5), "cupy.cuda.get_elapsed_time"),
        (lambda device: setattr(device.cuda.Event, "record", lambda _: None), "cupy.cuda.Event.record"),
        (lambda device: setattr(device.cupy.ndarray, "get", lambda _: None), "cupy.ndarray.get"),
        (lambda device: setattr(device.timer, "_spin", device.timer._empty), "timer 0's _spin"),
    ],
)
def test_replaced_code_is_told(device: ImaginedDevice, act: Callable[[ImaginedDevice], None], told: str) -> None:
    """A function, an inherited method, and a part of the timer."""
    before = observe()
    assert not restore(before).text
    act(device)
    damage = restore(before)
    assert told in damage.text
    assert damage.is_lasting


def test_a_library_that_is_loaded_later_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel could import it to replace a part: that lies in another file."""
    genuine = eval(compile("lambda *_: 0", "/somewhere/torch/cuda/memory.py", "eval"))  # noqa: S307
    before = observe()
    before.code.found = {name: value for name, value in before.code.found.items() if "torch" not in name}
    cuda: Any = ModuleType("torch.cuda")
    cuda.memory_allocated = genuine
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert not restore(before).text
    cuda.memory_allocated = lambda *_: 0
    assert "torch.cuda.memory_allocated" in restore(before).text


def test_what_torch_needs_in_a_timer_may_change(device: ImaginedDevice) -> None:
    """A session sets it."""
    before = observe()
    device.timer._torch = object()
    assert not restore(before).text


def test_settings_are_put_back_in_silence(device: ImaginedDevice) -> None:
    """Allocator, limit of the pool, accelerators, limits of the device."""
    before = observe()
    device.allocator, device.pool.limit = "managed", 1
    device.accelerators.update(routine=[], reduction=[])
    device.limits.update({0: 1, 1: 1, 2: 1})
    assert not restore(before).text
    assert (device.allocator, device.pool.limit) == ("usual", 0)
    assert device.accelerators == {"routine": ["cub"], "reduction": ["cub"]}
    assert device.limits == {0: 1024, 1: 4096, 2: 8192, 6: 0}


def test_a_cache_that_was_set_aside_is_given_up(device: ImaginedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that a stream's window keeps are released too."""
    called: list[str] = []

    class ImaginedDriver:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: called.append(name)

    device.timer.stream_handle = 7
    before = observe()
    device.limits[6] = 1 << 20
    monkeypatch.setattr("ctypes.CDLL", lambda _: ImaginedDriver())
    assert not restore(before, ignored=("code",)).text
    assert device.limits[6] == 0
    assert called == ["cuStreamSetAttribute", "cuCtxResetPersistingL2Cache"]


@pytest.mark.parametrize(("current", "found"), [(7, False), (8, True), (0, False)])
def test_a_context_that_is_not_the_devices_is_noticed(
    device: ImaginedDevice, monkeypatch: pytest.MonkeyPatch, current: int, *, found: bool
) -> None:
    """Leaving the device in a `with` statement would hide it; none is what a lost device has."""
    released: list[int] = []

    def set_to(value: int) -> Callable[..., int]:
        def call(place: Any, *_: Any) -> int:
            place._obj.value = value
            return 0

        return call

    driver = SimpleNamespace(
        cuCtxGetCurrent=set_to(current),
        cuDevicePrimaryCtxRetain=set_to(7),
        cuDevicePrimaryCtxRelease_v2=released.append,
    )
    device.timer.index = 3
    monkeypatch.setattr("ctypes.CDLL", lambda _: driver)
    assert has_strange_context() is found
    assert released == [3] * (current > 0)


def test_a_process_without_a_device_reads_nothing(device: ImaginedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a limit would create a context."""
    monkeypatch.setattr(CudaTimer, "made", [])
    device.limits.clear()
    assert observe().device == {}
    assert not is_exhausted()
    assert not has_strange_context()


@pytest.mark.parametrize(("taken", "kept", "found"), [(10, 85, False), (90, 0, True), (50, 0, False)])
def test_memory_that_is_kept_exhausts_a_device(device: ImaginedDevice, taken: int, kept: int, *, found: bool) -> None:
    """The pool's blocks do not count."""
    device.taken, device.pool.kept = taken * GIB, kept * GIB
    assert is_exhausted() is found


def test_subclasses_of_libraries_arrays_are_not_theirs(device: ImaginedDevice) -> None:
    """They could compute after the call, whatever module they name."""
    lazy = type("lazy", (device.cupy.ndarray,), {"__module__": "cupy"})
    device.cupy.lazy = lazy
    assert is_array(device.cupy.ndarray())
    assert not is_array(lazy())


def test_subclasses_of_tensors_are_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are."""
    torch = pytest.importorskip("torch")
    lazy = type("Lazy", (torch.Tensor,), {"__module__": "torch"})
    monkeypatch.setattr(torch, "Lazy", lazy, raising=False)
    assert is_array(torch.zeros(2))
    assert is_array(torch.nn.Parameter(torch.zeros(2)))
    assert not is_array(torch.zeros(2).as_subclass(lazy))
