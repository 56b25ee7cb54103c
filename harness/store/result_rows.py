"""Results as rows and back: columns, JSON, and packed samples."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opgauge.harness.case.case import Case
from opgauge.harness.result.record_json import from_json, to_json
from opgauge.harness.result.result import Measurement, Result, Trial
from opgauge.harness.store.tables import ResultRow

SAMPLES = ("samples_ns", "cpu_ns", "clock_mhz")
"""Fields of a measurement with a value per sample."""
_NO_SAMPLES: dict[str, list[float]] = {name: [] for name in SAMPLES}


def unpack(packed: bytes) -> tuple[float, ...]:
    """Numbers of a packed column of samples."""
    values = array("d")
    values.frombytes(packed)
    return tuple(values)


def result_values(result: Result) -> dict[str, Any]:
    """Columns of a result without run and case; `packed_samples` has the raw samples."""
    trial, measurement = result.trial, result.measurement
    data = to_json(result, without=("trial", "measurement"))
    data["measurement"] = None if measurement is None else to_json(measurement, without=SAMPLES) | _NO_SAMPLES
    data["extra"].pop("quantiles_ns", None)
    low_ns = high_ns = None
    if measurement is not None:
        quantiles = _known_quantiles(result) or _quantiles(measurement.samples_ns)
        data["quantiles_ns"] = list(quantiles)
        low_ns, high_ns = quantiles[1:3]
    return {
        "implementation": trial.implementation,
        "backend": trial.backend,
        "device": trial.device,
        "block": result.block,
        "status": str(result.status),
        "reason": result.reason,
        "median_ns": None if measurement is None else measurement.median_ns,
        "low_ns": low_ns,
        "high_ns": high_ns,
        "bytes": result.bytes,
        "flops": result.flops,
        "data": data,
    }


def has_samples(result: Result) -> bool:
    """Whether a result has its raw samples: where they were dropped it has the median and what was known of them."""
    return result.measurement is not None and _known_quantiles(result) is None


def packed_samples(measurement: Measurement) -> dict[str, bytes]:
    """Raw samples as the columns of `SampleRow`."""
    return {name: array("d", getattr(measurement, name)).tobytes() for name in SAMPLES}


def _quantiles(samples: tuple[float, ...]) -> tuple[float, float, float, int]:
    """Minimum, quartiles and count."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    return ordered[0], ordered[last // 4], ordered[-(last // 4) - 1], len(ordered)


def _known_quantiles(result: Result) -> tuple[float, float, float, int] | None:
    """Minimum, quartiles and count of samples that were dropped; None for a result that has its samples."""
    given, measurement = result.extra.get("quantiles_ns"), result.measurement
    if (
        measurement is None
        or len(measurement.samples_ns) != 1
        or not isinstance(given, list | tuple)
        or len(given) != 4
    ):
        return None
    *times, count = given
    if type(count) is not int or count < 2 or not all(type(time) in {int, float} for time in times):
        return None
    least, low, high = map(float, times)
    is_ordered = 0 < least <= low <= measurement.median_ns <= high < float("inf")
    return (least, low, high, count) if is_ordered else None


def result_of(row: ResultRow, case: Case, raw: Mapping[str, tuple[float, ...]] | None) -> Result:
    """The result in a row; without `raw` samples its measurement has the median as its only one."""
    data = dict(row.data)
    quantiles = data.pop("quantiles_ns", None)
    trial = Trial(case, row.implementation, row.backend, row.device)
    result = from_json(Result, data, trial=trial)
    measurement = result.measurement
    if measurement is not None:
        measurement = _with_samples(measurement, row.median_ns, raw)
    extra = {**result.extra, **({"quantiles_ns": quantiles} if quantiles else {})}
    return replace(result, trial=trial, measurement=measurement, extra=extra)


def _with_samples(
    measurement: Measurement, median_ns: float | None, raw: Mapping[str, tuple[float, ...]] | None
) -> Measurement:
    if raw is not None:
        return replace(measurement, **raw)  # type: ignore[arg-type]
    return replace(measurement, samples_ns=() if median_ns is None else (median_ns,))
