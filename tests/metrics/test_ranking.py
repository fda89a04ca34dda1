"""Ranking metrics against scikit-learn, pair counting and naive structural components."""

import io
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import auc as area_under
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from fedsaddle.metrics import (
    ScoreCounts,
    auc,
    auc_score,
    average_precision,
    delong_interval,
    delong_variance,
    roc_curve,
    thin_curve,
    wilson_interval,
)

WIDTH = 40 / 4096


@st.composite
def tied_rows(draw, least=1):
    """Scores of few distinct values, with at least `least` rows of each class."""
    labels = draw(
        st.lists(st.integers(0, 1), min_size=2 * least, max_size=40).filter(
            lambda given: least <= sum(given) <= len(given) - least
        )
    )
    scores = draw(st.lists(st.integers(-3, 3), min_size=len(labels), max_size=len(labels)))
    return np.array(scores, dtype=float), np.array(labels)


def rows_of(rng, positives, negatives, shift=1.0, decimals=None):
    """Gaussian scores, the positives moved up; rounded to make ties."""
    labels = np.repeat([1, 0], [positives, negatives])
    scores = rng.normal(size=labels.size) + shift * labels
    return (scores if decimals is None else scores.round(decimals)), labels


def pair_matrix(scores, labels):
    """1, ½ or 0 for each (positive, negative) pair: the definition, one entry at a time."""
    return np.array(
        [
            [1.0 if up > down else 0.5 if up == down else 0.0 for down in scores[labels == 0]]
            for up in scores[labels == 1]
        ]
    )


def naive_delong_variance(scores, labels):
    pairs = pair_matrix(scores, labels)
    of_positives, of_negatives = pairs.mean(axis=1), pairs.mean(axis=0)
    return np.var(of_positives, ddof=1) / len(of_positives) + np.var(of_negatives, ddof=1) / len(
        of_negatives
    )


def same(one, other):
    for name in ("values", "positives", "negatives"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


class TestScoreCounts:
    def test_exact_counts_each_distinct_score(self):
        counts = ScoreCounts.exact([2.0, -1.0, 2.0, 2.0], [1, 0, 0, 1])
        np.testing.assert_array_equal(counts.values, [-1.0, 2.0])
        np.testing.assert_array_equal(counts.positives, [0, 2])
        np.testing.assert_array_equal(counts.negatives, [1, 1])
        assert (counts.n_positive, counts.n_negative, counts.rows) == (2, 2, 4)

    def test_binned_uses_the_public_centres_and_clips_to_the_edges(self):
        counts = ScoreCounts.binned([-1e9, -20.0, 0.0, WIDTH, 20.0, 1e9], [0, 0, 1, 1, 1, 0])
        half = WIDTH / 2
        np.testing.assert_array_equal(counts.values, [-20 + half, half, WIDTH + half, 20 - half])
        np.testing.assert_array_equal(counts.positives, [0, 1, 1, 1])
        np.testing.assert_array_equal(counts.negatives, [2, 0, 0, 1])

    def test_binned_is_exact_on_bin_centres(self):
        rng = np.random.default_rng(3)
        scores = -20 + (rng.integers(0, 4096, size=500) + 0.5) * WIDTH
        labels = rng.integers(0, 2, size=500)
        same(ScoreCounts.binned(scores, labels), ScoreCounts.exact(scores, labels))

    def test_binned_size_depends_on_bins_not_on_rows(self):
        scores, labels = rows_of(np.random.default_rng(0), 50_000, 50_000)
        counts = ScoreCounts.binned(scores, labels)
        assert counts.values.size < 12 / WIDTH  # ±6 standard deviations of scores
        assert counts.rows == 100_000

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(tied_rows(), st.integers(1, 5))
    def test_pooling_counts_is_pooling_rows(self, rows, sites):
        scores, labels = rows
        owner = np.arange(scores.size) % sites
        for count in (ScoreCounts.exact, ScoreCounts.binned):
            parts = [count(scores[owner == site], labels[owner == site]) for site in range(sites)]
            same(ScoreCounts.pool(iter(parts)), count(scores, labels))

    def test_pool_of_nothing_is_empty(self):
        assert ScoreCounts.pool([]).rows == 0

    def test_survives_a_file_of_arrays_and_of_floats(self):
        counts = ScoreCounts.binned([0.1, -2.0, 0.1], [0, 1, 1])
        file = io.BytesIO()
        np.savez(file, **vars(counts))
        file.seek(0)
        same(ScoreCounts(**np.load(file)), counts)
        floats = ScoreCounts(**{name: array.astype(float) for name, array in vars(counts).items()})
        same(floats, counts)
        assert floats.positives.dtype == np.int64

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("count", [ScoreCounts.exact, ScoreCounts.binned])
    def test_refuses_scores_that_are_not_finite(self, bad, count):
        with pytest.raises(ValueError, match="1 of 3 logits are not finite"):
            count([0.0, bad, 1.0], [0, 1, 1])

    @pytest.mark.parametrize(
        ("logits", "labels", "message"),
        [
            ([0.0, 1.0], [-1, 1], "must be 0 .* or 1"),
            ([0.0, 1.0], ["0", "1"], "must be 0 .* or 1"),
            ([0.0, 1.0], [1], "shape"),
            ([[0.0, 1.0]], [[0, 1]], "one number per row"),
        ],
    )
    def test_refuses_wrong_rows(self, logits, labels, message):
        with pytest.raises(ValueError, match=message):
            ScoreCounts.exact(logits, labels)

    @pytest.mark.parametrize(
        ("values", "positives", "negatives", "message"),
        [
            ([1.0, 1.0], [1, 1], [0, 0], "strictly increasing"),
            ([1.0, 2.0], [1, 0], [0, 0], "no row"),
            ([1.0, 2.0], [1, -1], [0, 2], "positives must be whole"),
            ([1.0, 2.0], [1, 1], [0.5, 2], "negatives must be whole"),
            ([1.0, 2.0], [1, 1], [math.inf, 2], "negatives must be whole"),
            ([1.0, 2.0], [1], [1, 2], "positives has shape"),
        ],
    )
    def test_refuses_counts_that_cannot_be(self, values, positives, negatives, message):
        with pytest.raises(ValueError, match=message):
            ScoreCounts(values, positives, negatives)


class TestAuc:
    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(tied_rows())
    def test_is_the_fraction_of_pairs_in_order(self, rows):
        scores, labels = rows
        measured = auc(ScoreCounts.exact(scores, labels))
        assert measured == pytest.approx(pair_matrix(scores, labels).mean(), abs=1e-12)
        assert measured == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)

    @pytest.mark.parametrize("decimals", [None, 1, 0])
    def test_matches_sklearn_on_many_rows(self, decimals):
        scores, labels = rows_of(np.random.default_rng(1), 300, 20_000, decimals=decimals)
        assert auc_score(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(
        hnp.arrays(float, 30, elements=st.floats(-0.05, 0.05)),
        hnp.arrays(bool, 28),
    )
    def test_bins_err_by_at_most_half_the_pairs_they_tie(self, scores, labels):
        labels = np.append(labels, [False, True])
        counts = ScoreCounts.binned(scores, labels)
        tied = counts.positives @ counts.negatives / (counts.n_positive * counts.n_negative)
        assert abs(auc(counts) - roc_auc_score(labels, scores)) <= tied / 2 + 1e-12

    def test_logit_bins_rank_rare_positives_where_probability_bins_merge_them(self):
        rng = np.random.default_rng(5)
        labels = np.repeat([1, 0], [200, 39_800])  # prevalence 0.5 %
        logits = np.minimum(rng.normal(size=labels.size) - 7.0 + 1.5 * labels, -4.0)
        probabilities = 1 / (1 + np.exp(-logits))
        assert probabilities.max() < 0.02
        exact = roc_auc_score(labels, logits)
        uniform = roc_auc_score(labels, np.floor(probabilities * 100))
        assert abs(auc(ScoreCounts.binned(logits, labels)) - exact) < 1e-3
        assert abs(uniform - exact) > 0.05

    def test_does_not_overflow_on_huge_federations(self):
        huge = 10**12
        counts = ScoreCounts([0.0, 1.0], [huge, 3 * huge], [2 * huge, 2 * huge])
        # P(s⁺ > s⁻) = ¾·½, P(tie) = ¼·½ + ¾·½
        assert auc(counts) == pytest.approx(0.625, abs=1e-15)

    @pytest.mark.parametrize("labels", [[1, 1, 1], [0, 0, 0], []])
    def test_everything_is_undefined_with_one_class(self, labels):
        counts = ScoreCounts.exact(np.arange(len(labels)), labels)
        assert math.isnan(auc(counts))
        assert math.isnan(average_precision(counts))
        assert math.isnan(delong_variance(counts))
        assert all(math.isnan(end) for end in delong_interval(counts))
        assert [axis.size for axis in roc_curve(counts)] == [0, 0]


class TestDeLong:
    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(tied_rows(least=2))
    def test_variance_is_that_of_the_structural_components(self, rows):
        scores, labels = rows
        expected = naive_delong_variance(scores, labels)
        assert delong_variance(ScoreCounts.exact(scores, labels)) == pytest.approx(
            expected, rel=1e-9, abs=1e-15
        )

    @pytest.mark.parametrize("decimals", [None, 1, 0])
    @pytest.mark.parametrize("level", [0.8, 0.95])
    def test_interval_is_normal_on_the_logit_scale(self, decimals, level):
        scores, labels = rows_of(np.random.default_rng(7), 30, 90, decimals=decimals)
        area = pair_matrix(scores, labels).mean()
        z = NormalDist().inv_cdf(0.5 + level / 2)
        reach = z * naive_delong_variance(scores, labels) ** 0.5 / (area * (1 - area))
        odds = area / (1 - area)
        low, high = (odds * math.exp(sign * reach) for sign in (-1, 1))
        assert delong_interval(ScoreCounts.exact(scores, labels), level) == pytest.approx(
            (low / (1 + low), high / (1 + high)), abs=1e-12
        )

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(tied_rows(least=2))
    def test_interval_contains_the_auc_inside_0_and_1_and_is_not_a_point(self, rows):
        counts = ScoreCounts.exact(*rows)
        low, high = delong_interval(counts)
        assert 0 <= low <= auc(counts) <= high <= 1
        assert high - low > 0.01  # at most 40 rows

    @pytest.mark.parametrize("many", [3, 30])
    def test_perfect_ranking_is_not_certain(self, many):
        labels = np.repeat([0, 1], [5 * many, many])
        low, high = delong_interval(ScoreCounts.exact(labels, labels))
        # Wilson with all of `many` trials successful: n / (n + z²).
        assert low == pytest.approx(many / (many + 1.959964**2), abs=1e-6)
        assert high == 1.0
        assert delong_interval(ScoreCounts.exact(-labels, labels)) == pytest.approx((0.0, 1 - low))

    def test_all_scores_equal_leaves_a_wide_interval_around_one_half(self):
        low, high = delong_interval(ScoreCounts.exact(np.zeros(12), np.repeat([0, 1], 6)))
        assert low + high == pytest.approx(1.0)
        assert high - low > 0.5

    @pytest.mark.parametrize("labels", [[1, 0, 0, 0], [1, 1, 1, 0]])
    def test_needs_two_rows_of_each_class(self, labels):
        counts = ScoreCounts.exact([0.0, 1.0, 2.0, 3.0], labels)
        assert not math.isnan(auc(counts))
        assert math.isnan(delong_variance(counts))
        assert all(math.isnan(end) for end in delong_interval(counts))

    @pytest.mark.parametrize("level", [0.0, 1.0, 95, math.nan])
    def test_refuses_a_level_that_is_no_probability(self, level):
        with pytest.raises(ValueError, match="confidence level"):
            delong_interval(ScoreCounts.exact([0.0, 1.0], [0, 1]), level)

    @pytest.mark.parametrize(
        ("area", "positives", "negatives"),
        [(0.75, 40, 80), (0.9, 60, 200), (0.99, 5, 50)],
    )
    @pytest.mark.parametrize("count", [ScoreCounts.exact, ScoreCounts.binned])
    def test_covers_the_true_auc_about_as_often_as_it_says(self, area, positives, negatives, count):
        rng = np.random.default_rng(11)
        shift = NormalDist().inv_cdf(area) * math.sqrt(2)  # binormal: AUC = Φ(shift / √2)
        covered = 0
        for _ in range(400):
            low, high = delong_interval(count(*rows_of(rng, positives, negatives, shift)))
            covered += low <= area <= high
        assert 0.92 <= covered / 400 <= 0.99


class TestCurves:
    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(tied_rows())
    def test_average_precision_is_sklearns(self, rows):
        scores, labels = rows
        assert average_precision(ScoreCounts.exact(scores, labels)) == pytest.approx(
            average_precision_score(labels, scores), abs=1e-12
        )

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(tied_rows())
    def test_roc_curve_is_sklearns(self, rows):
        scores, labels = rows
        expected = sklearn_roc_curve(labels, scores, drop_intermediate=False)
        fpr, tpr = roc_curve(ScoreCounts.exact(scores, labels))
        np.testing.assert_allclose(fpr, expected[0])
        np.testing.assert_allclose(tpr, expected[1])

    def test_area_under_the_curve_is_the_auc(self):
        counts = ScoreCounts.binned(*rows_of(np.random.default_rng(2), 50, 400, decimals=1))
        assert area_under(*roc_curve(counts)) == pytest.approx(auc(counts), abs=1e-12)

    def test_thinning_straight_runs_loses_nothing(self):
        scores, labels = rows_of(np.random.default_rng(4), 20, 5000)
        fpr, tpr = roc_curve(ScoreCounts.exact(scores, labels))
        x, y = thin_curve(fpr, tpr, max_points=100)
        assert x.size <= 2 * 20 + 2  # each positive makes at most one step up: two corners
        np.testing.assert_allclose(area_under(x, y), area_under(fpr, tpr), atol=1e-12)

    def test_thinning_keeps_ends_limit_and_shape(self):
        scores, labels = rows_of(np.random.default_rng(4), 5000, 5000)
        fpr, tpr = roc_curve(ScoreCounts.exact(scores, labels))
        x, y = thin_curve(fpr, tpr, max_points=50)
        assert 40 <= x.size <= 50
        assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
        assert set(zip(x, y, strict=True)) <= set(zip(fpr, tpr, strict=True))
        assert area_under(x, y) == pytest.approx(area_under(fpr, tpr), abs=5e-3)

    def test_thinning_sees_corners_of_tiny_steps(self):
        stairs = np.repeat(np.arange(5), 2) * 1e-9
        x, _ = thin_curve(stairs[1:], stairs[:-1])
        assert x.size == 9

    def test_thinning_refuses_fewer_points_than_ends(self):
        with pytest.raises(ValueError, match="at least its 2 ends"):
            thin_curve([0, 1], [0, 1], max_points=1)


def test_wilson_interval_solves_the_score_equation():
    z = 1.959963984540054
    for fraction, trials in ((0.0, 4), (0.3, 10), (0.5, 7), (1.0, 25)):
        for end in map(float, wilson_interval(fraction, trials)):
            gap = abs(fraction - end)
            assert gap == pytest.approx(z * math.sqrt(end * (1 - end) / trials), abs=1e-9)
