"""Confidence intervals that several metrics share."""

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def normal_quantile(level: float) -> float:
    """The z that leaves `level` of a standard normal within ±z.

    `Φ(z) = (1 + level) / 2`.

    Args:
        level: the coverage, strictly between 0 and 1.

    >>> round(normal_quantile(0.95), 4)
    1.96
    """
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies strictly between 0 and 1, not {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson_interval(
    fraction: ArrayLike, trials: ArrayLike, level: float = 0.95
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Wilson's score interval of a proportion: never empty, never outside [0, 1].

    `(p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)` for n trials, a fraction p successful.

    Args:
        fraction: observed fraction of successes, between 0 and 1.
        trials: number of trials, at least 1; broadcasts against `fraction`.
        level: the coverage.

    >>> low, high = wilson_interval(1.0, 10)
    >>> round(float(low), 3), float(high)
    (0.722, 1.0)

    Reference: E. B. Wilson (1927), Probable inference, the law of succession, and statistical
    inference, JASA 22.
    """
    p = np.asarray(fraction, dtype=np.float64)
    n = np.asarray(trials, dtype=np.float64)
    z = normal_quantile(level)
    centre = p + z**2 / (2 * n)
    half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    shrink = 1 + z**2 / n
    # Rounding alone can leave [0, 1] by one unit in the last place.
    return np.maximum((centre - half) / shrink, 0.0), np.minimum((centre + half) / shrink, 1.0)
