"""Samples that drift or fall into two groups are told from noise."""

from __future__ import annotations

import numpy as np
import pytest

from opgauge.harness.measure.series import describe


def noise(seed: int, count: int = 60) -> np.ndarray:
    """Samples about 1000 ns, with a heavy tail."""
    rng = np.random.default_rng(seed)
    return 1000 * (1 + 0.03 * np.abs(rng.standard_t(3, count)))


@pytest.mark.parametrize("seed", range(20))
def test_noise_has_nothing_to_tell(seed: int) -> None:
    """Heavy-tailed noise is neither drift nor two modes."""
    assert describe(noise(seed).tolist()) == ""


@pytest.mark.parametrize("factor", [1.5, 11.0, 0.5])
def test_a_drift_is_told(factor: float) -> None:
    """A kernel that slows down, or speeds up, says from where to where."""
    samples = noise(1) * np.geomspace(1.0, factor, 60)
    assert describe(samples.tolist()).startswith("drifts from ")


@pytest.mark.parametrize("every", [2, 3, 4])
def test_two_modes_are_told(every: int) -> None:
    """Samples that alternate between two levels are no noise about their median."""
    samples = noise(2) * np.where(np.arange(60) % every == 0, 1.8, 1.0)
    assert describe(samples.tolist()).startswith("two modes, ")


def test_few_samples_tell_nothing() -> None:
    """Below nine samples there is no verdict."""
    assert describe([1.0, 2.0, 3.0]) == ""


def test_times_of_zero_have_no_series() -> None:
    """A replaced clock gives them; another check finds that."""
    assert describe([0.0] * 20) == ""
    assert describe([0.0, *([1.0] * 19)]) == ""
