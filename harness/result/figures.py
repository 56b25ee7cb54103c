"""Range checks of results and ceilings before they are stored: finite, of plausible size and bounded number.

Figures that pass can be divided, multiplied and plotted: no ratio of two such times overflows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opgauge.harness import json_text
from opgauge.harness.case.hint import show
from opgauge.harness.result.ceilings import Ceilings
from opgauge.harness.result.result import Calibration, Measurement, Profile, Result, Status
from opgauge.harness.result.strict import SubmissionError

LEAST, MOST = 1e-9, 1e18
"""Bounds of a time in nanoseconds (1e18 ns are thirty years), a rate or a clock."""
SAMPLE_LIMIT = 500_000
"""Most samples of one result."""
EXPLANATION_BYTES = 256 << 10
"""Most bytes of a result without its samples: lists read hundreds of results at once."""
SIZE_LIMIT = 2_000
"""Most sizes in one device's ceilings."""
SAMPLED = ("samples_ns", "cpu_ns", "clock_mhz")
"""Fields of a measurement with a value per sample."""
as_text = json.JSONEncoder(ensure_ascii=False).encode
"""JSON text by an encoder that is created once, since results come by the thousand."""


def check_figures(result: Result, path: str, least: float = LEAST) -> None:
    """Check that a measurement can give these figures, with times from `least`; raises SubmissionError."""
    if result.block >= 2**31:
        raise SubmissionError(path, "block is too large")
    measurement, check = result.measurement, result.check
    if result.status is Status.OK and (measurement is None or (check is not None and not check.ok)):
        raise SubmissionError(path, "is ok without a measurement, or with a check that failed")
    if measurement is not None:
        _check_measurement(measurement, f"{path}.measurement", least)
    if check is not None and min(check.max_abs_error, check.max_rel_error, check.worst) < 0:
        raise SubmissionError(path, "check has an error below 0")
    if result.ruler is not None:
        _check_calibration(result.ruler, f"{path}.ruler")
    if result.profile is not None:
        _check_profile(result.profile, f"{path}.profile")


def check_measured(result: Result) -> None:
    """Check that a result of this machine has possible figures: a clock may see nothing. Raises SubmissionError."""
    trial = result.trial
    check_figures(result, f"{trial.case.op} {trial.case.name} {trial.implementation}", least=0.0)


def with_possible_figures(result: Result) -> Result:
    """The result; in place of one with figures that no measurement can give, an error that names them."""
    try:
        check_measured(result)
    except SubmissionError as error:
        return replace(result, status=Status.ERROR, reason=str(error), measurement=None, ruler=None, profile=None)
    return result


def check_size(data: Mapping[str, Any], path: str) -> None:
    """Check that a result is not too large without its samples, nor has too many samples; raises SubmissionError."""
    rest = {key: value for key, value in data.items() if key != "trial"}
    measurement = rest.get("measurement")
    if measurement is not None:
        if any(len(measurement.get(name, ())) > SAMPLE_LIMIT for name in SAMPLED):
            raise SubmissionError(path, f"measurement has more than {SAMPLE_LIMIT} samples")
        rest["measurement"] = {key: value for key, value in measurement.items() if key not in SAMPLED}
    if 2 * len(json_text.write(rest)) <= EXPLANATION_BYTES:
        return  # spaces lengthen it by less than a factor of two
    size = len(as_text(rest))
    if size > EXPLANATION_BYTES:
        raise SubmissionError(path, f"has {size} characters beside its samples; at most {EXPLANATION_BYTES} are taken")


def check_ceilings(found: Sequence[Ceilings]) -> None:
    """Check that ceilings are possible, and that no device has two; raises SubmissionError."""
    for item in found:
        figures = (item.copy_gbps, item.write_gbps, item.launch_ns, *item.matrix_gflops.values(), *_times(item))
        if not all(figure is None or LEAST <= figure <= MOST for figure in figures):
            raise SubmissionError("ceilings", f"those of {item.device} should be positive numbers of a sensible size")
        if any(len(times) not in {0, len(item.sizes)} for times in _ladders(item)):
            raise SubmissionError("ceilings", f"those of {item.device} need a time for each size")
        if list(item.sizes) != sorted(set(item.sizes)) or 0 in item.sizes or len(item.sizes) > SIZE_LIMIT:
            raise SubmissionError("ceilings", f"sizes of {item.device} should ascend from 1")
    if len({item.device for item in found}) < len(found):
        raise SubmissionError("ceilings", "one device has two entries")


def _check_measurement(measurement: Measurement, path: str, least: float) -> None:
    samples = measurement.samples_ns
    if not samples or min(samples) < least or max(samples) > MOST or math.isnan(sum(samples)):
        raise SubmissionError(path, "samples_ns should be positive numbers of a sensible size, one at least")
    _check_amounts(measurement.cpu_ns, path)
    _check_amounts(measurement.clock_mhz, path)
    if measurement.hot_ns is not None:
        _check_time(measurement.hot_ns, f"{path}.hot_ns", least)


def _check_calibration(calibration: Calibration, path: str) -> None:
    for name in ("copy_ns", "arithmetic_ns", "launch_ns"):
        _check_time(getattr(calibration, name), f"{path}.{name}")
    _check_amounts([] if calibration.clock_mhz is None else [calibration.clock_mhz], path)


def _check_profile(profile: Profile, path: str) -> None:
    times = (profile.time_ns, profile.empty_ns, *(kernel.time_ns for kernel in profile.kernels))
    _check_amounts([time for time in times if time is not None], path)
    if not all(0 <= kernel.share <= 1.001 for kernel in profile.kernels):
        raise SubmissionError(path, "shares of kernels should be from 0 to 1")


def _check_time(value: float, path: str, least: float = LEAST) -> None:
    if not least <= value <= MOST:
        raise SubmissionError(path, f"should be a positive number of a sensible size, not {show(value)}")


def _check_amounts(values: Sequence[float], path: str) -> None:
    # one pass over many values: the sum is NaN if any value is
    if values and (min(values) < 0 or max(values) > MOST or math.isnan(sum(values))):
        raise SubmissionError(path, f"has a value that is not a number from 0 to {MOST:g}")


def _ladders(item: Ceilings) -> tuple[Sequence[float], ...]:
    return item.copies_ns, item.writes_ns, item.reads_ns, item.adds_ns


def _times(item: Ceilings) -> Iterator[float]:
    for times in _ladders(item):
        yield from times
