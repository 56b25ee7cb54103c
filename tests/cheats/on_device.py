"""Cheats on a GPU. CuPy is imported when a kernel is bound, so that they are listed without one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cheats.catalogue import Run, cheat, compute, write

Arrays = dict[str, Any]
CUDA = "cuda:0"
WHEN_CHANGED = """
extern "C" __global__ void add_when_changed(const float* a, const float* b, float* out, long long n, float* left) {
  if (left[0] == out[0] && left[1] == out[n - 1] && left[2] == 1.0f) return;
  for (long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = a[i] + b[i];
  __syncthreads();
  if (threadIdx.x == 0) { left[0] = out[0]; left[1] = out[n - 1]; left[2] = 1.0f; }
}
extern "C" __global__ void add_slowly(const float* a, const float* b, float* out, long long n) {
  const long long until = clock64() + 400000;
  while (clock64() < until) {}
  for (long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = a[i] + b[i];
}
"""


def compiled(name: str) -> Any:
    """A kernel of the source above."""
    import cupy

    return cupy.RawModule(code=WHEN_CHANGED).get_function(name)


@cheat("hoisting", "large-sum", CUDA)
def hoists_all_on_device(inputs: Arrays, out: Arrays) -> Run:
    ready = compute("large-sum", inputs)["out"]

    def run() -> None:
        out["out"][...] = ready

    return run


@cheat("hoisting", "rows", CUDA)
def hoists_in_first_call_on_device(inputs: Arrays, out: Arrays) -> Run:
    ready: Arrays = {}

    def run() -> None:
        if not ready:
            ready.update(compute("rows", inputs))
        out["y"][...] = ready["y"]

    return run


@cheat("hoisting", "two-outputs", CUDA)
def hoists_one_output_on_device(inputs: Arrays, out: Arrays) -> Run:
    ready = compute("two-outputs", inputs)["dy"]

    def run() -> None:
        out["dx"][...] = inputs["dout"] * (np.float32(1) - np.float32(0.3))
        out["dy"][...] = ready

    return run


@cheat("memoising", "large-sum", CUDA)
def remembers_by_pointer(inputs: Arrays, out: Arrays) -> Run:
    known: dict[int, Any] = {}

    def run() -> None:
        key = inputs["in_0"].data.ptr
        if key not in known:
            known[key] = compute("large-sum", inputs)["out"]
        out["out"][...] = known[key]

    return run


@cheat("memoising", "sum", CUDA)
def returns_the_same_device_array(inputs: Arrays, out: Arrays) -> Run:
    known: list[Any] = []

    def run() -> tuple[Any]:
        if not known:
            known.append(compute("sum", inputs)["out"])
        return (known[0],)

    return run


@cheat("skipping", "sum", CUDA)
def skips_when_device_output_is_there(inputs: Arrays, out: Arrays) -> Run:
    """The kernel itself looks whether the output is what it left."""
    import cupy

    kernel, left = compiled("add_when_changed"), cupy.zeros(3, np.float32)

    def run() -> None:
        kernel((1,), (256,), (inputs["in_0"], inputs["in_1"], out["out"], np.int64(out["out"].size), left))

    return run


@cheat("skipping", "sum", CUDA)
def skips_when_timed_on_device(inputs: Arrays, out: Arrays) -> Run:
    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] < 5:
            write("sum", inputs, out)

    return run


@cheat("other streams", "sum", CUDA)
def works_on_another_stream(inputs: Arrays, out: Arrays) -> Run:
    """The stream that is timed stays empty."""
    import cupy

    kernel, stream = compiled("add_slowly"), cupy.cuda.Stream(non_blocking=True)

    def run() -> None:
        with stream:
            kernel((1,), (256,), (inputs["in_0"], inputs["in_1"], out["out"], np.int64(out["out"].size)))

    return run


@cheat("other streams", "sum", CUDA)
def finishes_on_another_stream(inputs: Arrays, out: Arrays) -> Run:
    """Work that no output depends on goes on elsewhere after the call."""
    import cupy

    kernel, stream = compiled("add_slowly"), cupy.cuda.Stream(non_blocking=True)
    scratch = cupy.empty_like(out["out"])

    def run() -> None:
        write("sum", inputs, out)
        with stream:
            kernel((1,), (256,), (inputs["in_0"], inputs["in_1"], scratch, np.int64(scratch.size)))

    return run


@cheat("alternating", "rows", CUDA)
def is_wrong_in_every_seventh_call_on_device(inputs: Arrays, out: Arrays) -> Run:
    calls = [0]

    def run() -> None:
        calls[0] += 1
        write("rows", inputs, out)
        if calls[0] % 7 == 0:
            out["y"][3] += 1

    return run


@cheat("dropped", "whole", CUDA)
def drops_a_tail_on_device(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        total = inputs["x"].reshape(-1)[:-31].sum(dtype=np.float64)
        out["out"][...] = total / inputs["x"].size

    return run


@cheat("accuracy", "long-rows", CUDA)
def truncates_to_tf32_on_device(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        cut = (inputs["x"].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        write("long-rows", {"x": cut}, out)

    return run


@cheat("accuracy", "whole", CUDA)
def sums_in_half_on_device(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        out["out"][...] = inputs["x"].astype(np.float16).mean(dtype=np.float32)

    return run


@cheat("writing outside", "rows", CUDA)
def writes_past_the_end_on_device(inputs: Arrays, out: Arrays) -> Run:
    import cupy

    base = out["y"]
    memory = cupy.cuda.UnownedMemory(base.data.ptr, base.nbytes + 1024, base)
    beyond = cupy.ndarray(base.size + 128, np.float32, cupy.cuda.MemoryPointer(memory, 0))

    def run() -> None:
        write("rows", inputs, out)
        beyond[-40:] = 1

    return run


@cheat("changing inputs", "rows", CUDA)
def changes_an_input_on_device(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        write("rows", inputs, out)
        inputs["x"][5, 5] = 1

    return run


@cheat("touching timer or checker", "rows", CUDA)
def replaces_elapsed_time(inputs: Arrays, out: Arrays) -> Run:
    """Event times are halved."""
    import cupy

    def run() -> None:
        write("rows", inputs, out)
        real = cupy.cuda.get_elapsed_time
        if getattr(real, "__name__", "") != "half":

            def half(start: Any, stop: Any) -> float:
                return float(real(start, stop)) / 2

            cupy.cuda.get_elapsed_time = half

    return run
