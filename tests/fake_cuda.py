"""A CUDA device that is not there, for the timer: notes what is enqueued."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

SAMPLES = 12
BASE_MHZ = 1980


class FakeArray:
    """Bytes on a device that is not there."""

    def __init__(self, values: np.ndarray[Any, Any], log: list[str]) -> None:
        self.values = values
        self.nbytes = values.nbytes
        self.data = SimpleNamespace(
            memset_async=lambda *_: log.append("flush"), copy_from_device_async=lambda *_: log.append("copy")
        )

    def __getitem__(self, key: slice) -> Self:
        return type(self)(self.values[key], [])

    def get(self) -> np.ndarray[Any, Any]:
        """The bytes here."""
        return self.values


class FakeCuda:
    """Enough of CuPy for a timer: notes what is enqueued; every event pair is 10 µs apart."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.clocks = [BASE_MHZ] * SAMPLES
        self.uint8, self.float32 = np.uint8, np.float32
        self.capturing = True
        self.elapsed_ms = 0.01
        self.now_ns = self.idle_ns = self.late_ns = 0
        self.late_calls = 100
        self.waits_ns: list[int] = []
        self.enqueue_ns: Callable[[int], int] = lambda _: 0
        runtime = SimpleNamespace(getDevice=lambda: 0)
        self.cuda = SimpleNamespace(
            Device=lambda index: self._context(
                attributes={"L2CacheSize": 50 << 20, "MultiProcessorCount": 132}, synchronize=self._wait
            ),
            Stream=lambda non_blocking: self,
            Event=lambda: FakeEvent(self),
            get_elapsed_time=lambda *_: self.elapsed_ms,
            MemoryHook=FakeHook,
            get_current_stream=lambda: self,
            runtime=runtime,
        )
        self.ptr = 0

    def _wait(self, *_: object) -> None:
        """Wait for the device: as long as for an idle one, and for what the last call left elsewhere."""
        is_late = self.log[-3:] == ["call", "event", "wait"] and self.late_calls > 0
        self.now_ns += self.idle_ns + self.late_ns * is_late
        self.late_calls -= is_late

    def note(self, word: str) -> Callable[..., None]:
        """A function that notes the word."""
        return lambda *_: self.log.append(word)

    def _context(self, **facts: Any) -> Any:
        return type("Context", (), {"__enter__": lambda _: None, "__exit__": lambda *_: None, **facts})()

    def __enter__(self) -> None:
        """The stream is current."""

    def __exit__(self, *_: object) -> None:
        """It is no longer."""

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802  CuPy's name
        """A module whose spinning kernel writes the clock that the test chose."""
        assert "spin" in code
        assert options
        return SimpleNamespace(get_function=lambda name: self._spin if name == "spin" else self.note(name))

    def _spin(self, grid: Any, block: Any, arguments: tuple[Any, FakeArray, Any]) -> None:
        wait_ns, seen, slot = arguments
        self.log.append("spin")
        self.waits_ns.append(int(wait_ns))
        clock = self.clocks[int(slot) % len(self.clocks)]
        seen.values[2 * slot : 2 * slot + 2] = [int(wait_ns), int(wait_ns) * clock // 1000]

    def zeros(self, size: int, dtype: Any) -> FakeArray:
        """An array."""
        return FakeArray(np.zeros(size, dtype), self.log)

    empty = zeros

    def get_default_memory_pool(self) -> Any:
        """A pool with nothing in it."""
        return SimpleNamespace(free_all_blocks=lambda: None)

    def synchronize(self) -> None:
        """Everything is done at once."""

    def begin_capture(self) -> None:
        """Calls go into a graph from here."""
        self.log.append("begin")

    def end_capture(self) -> Any:
        """A graph, or what CUDA says of a capture that went wrong."""
        self.log.append("end")
        if not self.capturing:
            raise RuntimeError
        return SimpleNamespace(upload=self.note("upload"), launch=self.note("graph"))


class FakeEvent:
    """An event that is done if enqueueing took longer than the spinning kernel."""

    def __init__(self, fake: FakeCuda) -> None:
        self._fake = fake
        self.record: Callable[..., None] = fake.note("event")
        self.synchronize: Callable[..., None] = fake.note("wait")

    @property
    def done(self) -> bool:
        """Whether the stream has come here."""
        return self._fake.enqueue_ns(len(self._fake.waits_ns)) >= self._fake.waits_ns[-1]


class FakeHook:
    """A memory hook that can be entered."""

    def __enter__(self) -> None:
        """It listens."""

    def __exit__(self, *_: object) -> None:
        """It does not."""
