"""Statistics against scipy, and against Holm's rule written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsaddle.runs.compare.statistics import differences, holm, summarise, too_few

AUC = st.floats(0, 1, allow_nan=False)


@given(st.lists(AUC, min_size=2, max_size=12))
def test_mean_and_interval_are_those_of_scipy(values):
    found = summarise([None, *values])
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values))
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values) or 1e-300
    )
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert (summarise([0.5]).mean, summarise([0.5]).low) == (0.5, None)
    assert (summarise([None]).mean, summarise([]).n) == (None, 0)


@given(st.integers(2, 9), st.integers(0, 1000))
def test_pairs_are_tested_as_scipy_does(n, seed):
    random = np.random.default_rng(seed)
    values = {name: random.random(n).tolist() for name in "abc"}
    pairs = differences(values)
    assert [(p.first, p.second) for p in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    for pair in pairs:
        one, two = values[pair.first], values[pair.second]
        assert pair.t == pytest.approx(stats.ttest_rel(one, two).pvalue)
        assert pair.wilcoxon == pytest.approx(stats.wilcoxon(one, two).pvalue)
        interval = stats.ttest_rel(one, two).confidence_interval()
        assert (pair.low, pair.high) == pytest.approx((interval.low, interval.high))
        assert pair.significant == (pair.t_holm < 0.05)


def test_only_seeds_that_both_have_are_paired():
    (pair,) = differences({"a": [0.9, None, 0.8, 0.7], "b": [0.8, 0.9, None, 0.5]})
    assert (pair.n, pair.mean) == (2, pytest.approx(0.15))


def test_entrants_that_are_alike_or_run_once_are_not_told_apart():
    (same,) = differences({"a": [0.9, 0.8], "b": [0.9, 0.8]})
    assert (same.t, same.wilcoxon, same.significant) == (1.0, 1.0, False)
    (once,) = differences({"a": [0.9], "b": [0.8]})
    assert (once.t, once.t_holm, once.significant) == (None, None, False)


@given(st.lists(AUC, min_size=1, max_size=10))
def test_holm_is_the_step_down_rule(values):
    order = np.argsort(values, kind="stable")
    m = len(values)
    expected = np.empty(m)
    for i in range(m):
        expected[order[i]] = max(min(1.0, (m - j) * values[order[j]]) for j in range(i + 1))
    assert holm(values) == pytest.approx(expected.tolist())
    with_gap = holm([*values, None])
    assert (with_gap[:-1], with_gap[-1]) == (holm(values), None)


def test_too_few_seeds_are_said_to_be_and_the_number_named_suffices():
    def pairs(n, entrants):
        return differences({f"m{k}": [k + i / 10 for i in range(n)] for k in range(entrants)})

    assert "one seed" in too_few(pairs(1, 2))
    for entrants, enough in ((2, 6), (3, 7), (4, 8)):
        found = pairs(enough - 1, entrants)
        assert f"({enough} seeds would do)" in too_few(found)
        assert min(stats.wilcoxon(np.arange(1, enough)).pvalue * len(found), 1) > 0.05
        assert too_few(pairs(enough, entrants)) is None
    assert too_few(pairs(3, 1)) is None
