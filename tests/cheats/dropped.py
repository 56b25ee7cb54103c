"""Cheats that compute a part of the output, all of it with less precision, or not in every call."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cheats.adaptive import norms
from tests.cheats.catalogue import Run, cheat, write
from tests.cheats.undone import Arrays


@cheat("dropped", "whole")
def drops_a_tail(inputs: Arrays, out: Arrays) -> Run:
    """The last 31 of 786,432 elements do not count."""

    def run() -> None:
        out["out"][...] = np.sum(inputs["x"].reshape(-1)[:-31], dtype=np.float64) / inputs["x"].size

    return run


@cheat("dropped", "whole")
def drops_a_head(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        out["out"][...] = np.sum(inputs["x"].reshape(-1)[32:], dtype=np.float64) / inputs["x"].size

    return run


@cheat("dropped", "long-rows")
def drops_a_row_tail(inputs: Arrays, out: Arrays) -> Run:
    """One element of 4,096 does not count: less than the bound of a sum allows."""

    def run() -> None:
        out["y"][...] = np.sqrt(np.sum(np.square(inputs["x"][:, :-1], dtype=np.float64), axis=-1))

    return run


@cheat("dropped", "one-row")
def drops_a_block(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        kept = np.concatenate([inputs["x"][:, :2048], inputs["x"][:, 2050:]], axis=1)
        out["y"][...] = np.sqrt(np.sum(np.square(kept, dtype=np.float64), axis=-1))

    return run


@cheat("dropped", "large-sum")
def drops_the_last_row(inputs: Arrays, out: Arrays) -> Run:
    """After the checks of the first calls, the last row is left as it is."""
    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] <= 2:
            write("large-sum", inputs, out)
        else:
            np.add(inputs["in_0"][:-1], inputs["in_1"][:-1], out=out["out"][:-1])

    return run


@cheat("accuracy", "whole")
def sums_in_half(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        out["out"][...] = np.mean(inputs["x"].astype(np.float16), dtype=np.float32)

    return run


@cheat("accuracy", "rows")
def truncates_to_bfloat16(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        cut = (inputs["x"].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        out["y"][...] = np.sqrt(np.sum(np.square(cut, dtype=np.float64), axis=-1))

    return run


@cheat("accuracy", "long-rows")
def truncates_to_tf32(inputs: Arrays, out: Arrays) -> Run:
    def run() -> None:
        cut = (inputs["x"].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        out["y"][...] = np.sqrt(np.sum(np.square(cut, dtype=np.float64), axis=-1))

    return run


@cheat("accuracy", "one-row")
def samples_the_row(inputs: Arrays, out: Arrays) -> Run:
    """Estimates from a quarter of the elements."""

    def run() -> None:
        out["y"][...] = np.sqrt(4 * np.sum(np.square(inputs["x"][:, ::4], dtype=np.float64), axis=-1))

    return run


@cheat("skipping", "rows")
def leaves_out_every_eighth_call(inputs: Arrays, out: Arrays) -> Run:
    calls = [0]

    def run() -> None:
        calls[0] += 1
        if calls[0] % 8:
            write("rows", inputs, out)

    return run


def leave_out(share: int) -> Any:
    """Leave out a share of eight calls as long as nothing has changed: each call that is judged is right."""

    def bind(inputs: Arrays, out: Arrays) -> Run:
        arrays = [inputs["x"], out["y"]]
        known: list[Any] = []
        calls = [0]

        def run() -> None:
            calls[0] += 1
            if calls[0] % 8 < share and known and all(map(np.array_equal, arrays, known)):
                return
            out["y"][...] = norms(inputs["x"])
            if calls[0] % 8 == 7:
                known[:] = [array.copy() for array in arrays]

        return run

    return bind


@cheat("skipping", "small-rows")
def leaves_out_one_of_eight_unchanged_calls(inputs: Arrays, out: Arrays) -> Run:
    run: Run = leave_out(1)(inputs, out)
    return run


@cheat("skipping", "rows")
def leaves_out_three_of_eight_unchanged_calls(inputs: Arrays, out: Arrays) -> Run:
    run: Run = leave_out(3)(inputs, out)
    return run
