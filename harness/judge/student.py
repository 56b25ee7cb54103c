"""Student's t distribution for whole degrees of freedom: upper tails and quantiles.

Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4; the
series are finite, so that the tails are exact to about 1e-15, absolutely.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

_QUANTILE_STEPS = 200


def upper_tail(t: ArrayLike, degrees: ArrayLike) -> NDArray[np.float64]:
    """P(T > t), elementwise; `degrees` are whole and at least 1. Infinite t are 0 or 1."""
    if isinstance(degrees, int):
        return _tail(np.asarray(t, np.float64), degrees)
    values, freedom = np.broadcast_arrays(np.asarray(t, np.float64), np.asarray(degrees, np.int64))
    tails = np.empty(values.shape)
    for count in np.unique(freedom):
        chosen = freedom == count
        tails[chosen] = _tail(values[chosen], int(count))
    return tails


def _tail(t: NDArray[np.float64], degrees: int) -> NDArray[np.float64]:
    angle = np.arctan(np.abs(t) / np.sqrt(degrees))
    cosine, sine = np.cos(angle), np.sin(angle)
    odd = degrees % 2
    first = np.asarray(cosine if odd else np.ones_like(cosine))
    powers = np.arange(2 + odd, degrees - 1, 2)
    terms = np.cumprod(cosine[..., None] ** 2 * ((powers - 1) / powers), axis=-1)
    total = first * (1 + terms.sum(axis=-1)) if degrees > 1 else np.zeros_like(cosine)
    inside = 2 / np.pi * (angle + sine * total) if odd else sine * total
    upper = np.clip((1 - inside) / 2, 0.0, 0.5)
    return np.asarray(np.where(t >= 0, upper, 1 - upper))


@lru_cache(maxsize=4096)
def quantile(tail: float, degrees: int) -> float:
    """The t with P(T > t) = `tail`, for 1e-13 <= tail < 0.5; by bisection."""
    low, high = 0.0, 1.0
    while float(upper_tail(high, degrees)) > tail:
        low, high = high, 2 * high
    for _ in range(_QUANTILE_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if float(upper_tail(middle, degrees)) > tail else (low, middle)
    return high
