"""Cheats by someone who has read the auditor: they adapt to what it changes, poisons and times."""

from __future__ import annotations

import gc
import threading
import time
import zlib
from importlib import import_module
from typing import Any

import numpy as np

from tests.cheats.catalogue import Run, cheat, write

Arrays = dict[str, Any]


def norms(rows: Any) -> Any:
    """The norms of rows, which take several times as long as a checksum: what saves less than a third may pass."""
    return np.sqrt(np.sum(np.square(rows, dtype=np.longdouble), axis=-1)).astype(np.float32)


def by_row(keys: Any) -> Any:
    """Remember each row's norm under a key that `keys(x)` gives: right however rows are exchanged."""

    def bind(inputs: Arrays, out: Arrays) -> Run:
        known: dict[bytes, Any] = {}

        def run() -> None:
            x, y = inputs["x"], out["y"]
            for row, key in enumerate(keys(x)):
                if key not in known:
                    known[key] = norms(x[row : row + 1])[0]
                y[row] = known[key]

        return run

    return bind


@cheat("memoising slices", "small-rows")
def remembers_rows_by_first_element(inputs: Arrays, out: Arrays) -> Run:
    """Exchanged rows have their old keys."""
    run: Run = by_row(lambda x: x[:, 0].tolist())(inputs, out)
    return run


@cheat("memoising slices", "middle-rows")
def remembers_rows_by_sample(inputs: Arrays, out: Arrays) -> Run:
    run: Run = by_row(lambda x: map(bytes, np.ascontiguousarray(x[:, ::512])))(inputs, out)
    return run


@cheat("memoising slices", "two-rows")
def remembers_rows_by_checksum(inputs: Arrays, out: Arrays) -> Run:
    """By all of a row: a checksum is cheaper than the norm."""
    run: Run = by_row(lambda x: (zlib.crc32(x[row].data) for row in range(len(x))))(inputs, out)
    return run


@cheat("memoising", "two-rows")
def remembers_by_checksum(inputs: Arrays, out: Arrays) -> Run:
    """By all of the content: two rows can be exchanged in one way only."""
    known: dict[int, Any] = {}

    def run() -> None:
        key = zlib.crc32(inputs["x"].data)
        if key not in known:
            known[key] = norms(inputs["x"])
        out["y"][...] = known[key]

    return run


@cheat("memoising slices", "middle-rows")
def permutes_its_old_result(inputs: Arrays, out: Arrays) -> Run:
    """Finds by one column which rows were exchanged, and exchanges what it returned first."""
    first: Arrays = {}

    def run() -> None:
        column = inputs["x"][:, 7]
        if not first:
            order = np.argsort(column)
            first.update(column=column[order].copy(), y=norms(inputs["x"])[order])
        place = np.searchsorted(first["column"], column).clip(0, len(column) - 1)
        if np.array_equal(first["column"][place], column):
            out["y"][...] = first["y"][place]
        else:
            out["y"][...] = norms(inputs["x"])

    return run


@cheat("memoising", "whole")
def multiplies_its_old_result(inputs: Arrays, out: Arrays) -> Run:
    """Finds by one element by what the input was multiplied."""
    first: Arrays = {}

    def run() -> None:
        x = inputs["x"].reshape(-1)
        if not first:
            first.update(sample=x[::4099].copy(), mean=np.mean(x, dtype=np.float64))
        factor = float(x[0]) / float(first["sample"][0])
        if np.array_equal(x[::4099], first["sample"] * np.float32(factor)):
            out["out"][...] = factor * first["mean"]
        else:
            out["out"][...] = np.mean(x, dtype=np.float64)

    return run


@cheat("hoisting", "shared-weight")
def hoists_what_slices_share(inputs: Arrays, out: Arrays) -> Run:
    """Copies the input that all slices read in the first call: packed weights."""
    packed: list[Any] = []

    def run() -> None:
        if not packed:
            packed.append(inputs["weight"].copy())
        out["out"][...] = inputs["x"] + packed[0] * (inputs["y"] - inputs["x"])

    return run


@cheat("skipping", "huge-sum")
def computes_what_was_changed(inputs: Arrays, out: Arrays) -> Run:
    """Only rows in which it finds poison, or another first element than before."""
    left: list[Any] = []

    def run() -> None:
        a, y = inputs["in_0"], out["out"]
        if not left:
            write("huge-sum", inputs, out)
            left[:] = [a[:, 0].copy()]
            return
        sample = y[:, ::512]
        rows = np.flatnonzero((a[:, 0] != left[0]) | ~(np.abs(sample) < 1e30).all(axis=1))
        rows = np.unique(np.concatenate([rows, np.maximum(rows - 1, 0), np.minimum(rows + 1, len(a) - 1)]))
        y[rows] = a[rows] + inputs["in_1"][rows]
        left[:] = [a[:, 0].copy()]

    return run


@cheat("skipping", "small-rows")
def skips_right_after_a_call(inputs: Arrays, out: Arrays) -> Run:
    """Does nothing within two microseconds of the call before, as in the loop of a sample."""
    last = [0]

    def run() -> None:
        if time.perf_counter_ns() - last[0] > 2_000:
            write("small-rows", inputs, out)
        last[0] = time.perf_counter_ns()

    return run


@cheat("skipping", "small-rows")
def skips_and_waits_when_alone(inputs: Arrays, out: Arrays) -> Run:
    """Skips unchanged inputs, and spins meanwhile where calls are timed one by one."""
    left: list[Any] = []
    last, cost = [0], [0]

    def run() -> None:
        begun = time.perf_counter_ns()
        is_alone = begun - last[0] > 5_000
        if left and np.array_equal(inputs["x"][:, 3], left[0]) and np.array_equal(out["y"], left[1]):
            while is_alone and time.perf_counter_ns() - begun < cost[0]:
                pass
        else:
            write("small-rows", inputs, out)
            left[:] = [inputs["x"][:, 3].copy(), out["y"].copy()]
            cost[0] = time.perf_counter_ns() - begun
        last[0] = time.perf_counter_ns()

    return run


@cheat("accuracy", "long-rows")
def rounds_after_some_calls(inputs: Arrays, out: Arrays) -> Run:
    """Exact in the calls that are checked before sampling, rounded to bfloat16 later."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        mask = np.uint32(0xFFFFFFFF if calls[0] <= 3 else 0xFFFF0000)
        out["y"][...] = norms((inputs["x"].view(np.uint32) & mask).view(np.float32))

    return run


@cheat("accuracy", "long-rows")
def rounds_while_timed(inputs: Arrays, out: Arrays) -> Run:
    """The garbage collector is disabled while samples are taken."""

    def run() -> None:
        mask = np.uint32(0xFFFFFFFF if gc.isenabled() else 0xFFFF0000)
        out["y"][...] = norms((inputs["x"].view(np.uint32) & mask).view(np.float32))

    return run


@cheat("lazy", "long-rows")
def fills_in_later(inputs: Arrays, out: Arrays) -> Run:
    """A thread that waits for work computes the last row when the call has returned."""
    wanted = threading.Event()

    def work() -> None:
        while wanted.wait(60):
            wanted.clear()
            out["y"][-1:] = norms(inputs["x"][-1:])

    threading.Thread(target=work, daemon=True).start()

    def run() -> None:
        out["y"][:-1] = norms(inputs["x"][:-1])
        wanted.set()

    return run


@cheat("lazy", "large-sum")
def adds_the_last_half_in_background(inputs: Arrays, out: Arrays) -> Run:
    """The thread is nearly done when the call returns."""

    def run() -> None:
        half = (inputs["in_0"][512:], inputs["in_1"][512:])
        thread = threading.Thread(target=np.add, args=half, kwargs={"out": out["out"][512:]})
        thread.start()
        np.add(inputs["in_0"][:512], inputs["in_1"][:512], out=out["out"][:512])

    return run


@cheat("dropped", "signs")
def leaves_out_elements_in_between(inputs: Arrays, out: Arrays) -> Run:
    """After some calls, every 50,021st element is left as it is."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        kept = out["out"].reshape(-1)[::50_021].copy()
        np.sign(inputs["x"], out=out["out"])
        if calls[0] > 4:
            out["out"].reshape(-1)[::50_021] = kept

    return run


@cheat("memoising", "long-rows")
def forgets_how_inputs_vary(inputs: Arrays, out: Arrays) -> Run:
    """Removes in its first call what is known about the case's slices, so that they would not be exchanged."""
    first: list[Any] = []

    def run() -> None:
        if not first:
            first.append(norms(inputs["x"]))
        known = import_module("opgauge.harness.worker.variation")._FOUND
        known.update(dict.fromkeys(known))
        out["y"][...] = first[0]

    return run


def cubes(inputs: Arrays, row: int) -> Any:
    """A row of the gradient of a 3-norm."""
    x, scale = inputs["x"][row].astype(np.longdouble), inputs["dy"].reshape(-1)[row]
    return (x * np.abs(x) * (scale / np.longdouble(inputs["y"].reshape(-1)[row]) ** 2)).astype(np.float32)


@cheat("memoising slices", "gradient")
def remembers_rows_beside_derived_inputs(inputs: Arrays, out: Arrays) -> Run:
    """Some inputs follow from others, so that fresh values used to change a few rows only."""
    known: dict[bytes, Any] = {}

    def run() -> None:
        for row, key in enumerate(map(bytes, np.ascontiguousarray(inputs["x"][:, ::256]))):
            if key not in known:
                known[key] = cubes(inputs, row)
            out["dx"][row] = known[key]

    return run


@cheat("memoising", "huge-row")
def remembers_a_huge_row_by_sample(inputs: Arrays, out: Arrays) -> Run:
    """A case of one slice with too many elements for a reference of each change; the sum itself is slow."""
    known: dict[bytes, Any] = {}

    def run() -> None:
        x = inputs["x"].reshape(-1)
        key = x[::4099].tobytes()
        if key not in known:
            known[key] = np.mean(x, dtype=np.longdouble)
        touched = float(x[::16].sum()) * 0.0
        out["out"][...] = known[key] + touched

    return run
