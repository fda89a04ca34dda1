"""Means over seeds with intervals, and tests of differences that are paired by seed."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """A metric over seeds: mean, 95 % t-interval (None with fewer than two values), spread, n."""

    mean: float | None
    low: float | None
    high: float | None
    deviation: float | None
    n: int


def summarise(values: Sequence[float | None]) -> Summary:
    """Mean and `mean ± t(n−1) s/√n` of the values that there are.

    >>> summarise([0.8, 0.9, None]).n
    2
    >>> summarise([0.5])
    Summary(mean=0.5, low=None, high=None, deviation=None, n=1)
    """
    known = np.array([value for value in values if value is not None], dtype=float)
    n = len(known)
    if n == 0:
        return Summary(None, None, None, None, 0)
    mean = float(known.mean())
    if n == 1:
        return Summary(mean, None, None, None, 1)
    deviation = float(known.std(ddof=1))
    half = _quantile(n - 1) * deviation / math.sqrt(n)
    return Summary(mean, mean - half, mean + half, deviation, n)


@cache
def _quantile(freedom: int) -> float:
    """The t that leaves 95 % within ±t."""
    from scipy import stats

    return float(stats.t.ppf((1 + LEVEL) / 2, freedom))


@dataclass(frozen=True)
class Difference:
    """Two entrants on the same seeds: `first − second`, and how likely that is by chance.

    The p-values are those of the paired t-test and of Wilcoxon's signed-rank test; `t_holm` and
    `wilcoxon_holm` are corrected for the number of pairs. None: fewer than two seeds in common.
    """

    first: str
    second: str
    mean: float | None
    low: float | None
    high: float | None
    n: int
    t: float | None
    wilcoxon: float | None
    t_holm: float | None = None
    wilcoxon_holm: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the corrected t-test rejects that the two are alike, at 5 %."""
        return self.t_holm is not None and self.t_holm < 1 - LEVEL


def differences(values: Mapping[str, Sequence[float | None]]) -> list[Difference]:
    """Every pair of entrants, by values that are in the same order of seeds."""
    pairs = [_paired(a, b, values[a], values[b]) for a, b in combinations(values, 2)]
    t_holm = holm([pair.t for pair in pairs])
    wilcoxon_holm = holm([pair.wilcoxon for pair in pairs])
    return [
        Difference(**{**vars(pair), "t_holm": t, "wilcoxon_holm": w})
        for pair, t, w in zip(pairs, t_holm, wilcoxon_holm, strict=True)
    ]


def _paired(
    first: str, second: str, a: Sequence[float | None], b: Sequence[float | None]
) -> Difference:
    from scipy import stats

    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    gaps = np.array([x - y for x, y in both])
    found = summarise(gaps.tolist())
    t = wilcoxon = None
    if found.n > 1 and not gaps.any():
        t = wilcoxon = 1.0
    elif found.n > 1:
        with warnings.catch_warnings():  # of differences that are all alike: the p-value says it
            warnings.simplefilter("ignore", RuntimeWarning)
            t = float(stats.ttest_1samp(gaps, 0.0).pvalue)
            wilcoxon = float(stats.wilcoxon(gaps).pvalue)
    return Difference(first, second, found.mean, found.low, found.high, found.n, t, wilcoxon)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction of p-values; None stays None and does not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[place] = largest
    return corrected


def too_few(pairs: Sequence[Difference]) -> str | None:
    """A sentence when so few seeds cannot show much, whatever the methods do.

    With n seeds the signed-rank test gives no p-value below 2/2ⁿ.
    """
    if not pairs:
        return None
    n = min(pair.n for pair in pairs)
    if n < 2:
        return "With one seed nothing can be said about significance; use --seeds 5 or more."
    least = min(1.0, len(pairs) * 2 / 2**n)
    if least <= 1 - LEVEL:
        return None
    wanted = math.ceil(math.log2(2 * len(pairs) / (1 - LEVEL)))
    return (
        f"n = {n} seeds is too few for the signed-rank test: over {len(pairs)} "
        f"pair{'s' * (len(pairs) > 1)} its smallest corrected p-value is {least:.2g} "
        f"({wanted} seeds would do), and the t-test rests on differences being normal."
    )
