"""Calibration against scikit-learn's curve and plain loops over rows."""

import math

import numpy as np
import pytest
from scipy.special import expit
from sklearn.calibration import calibration_curve

from fedsaddle.metrics import ScoreCounts, expected_calibration_error, reliability


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(8)
    logits = rng.normal(scale=2.0, size=600).round(1)
    return logits, (rng.random(600) < expit(0.6 * logits)).astype(int)


def members_by_loop(logits, bins):
    """Row numbers in each bin (a, b] of probability; the first bin includes 0."""
    members = [[] for _ in range(bins)]
    for row, probability in enumerate(expit(logits)):
        members[max(math.ceil(probability * bins) - 1, 0)].append(row)
    return [np.array(rows) for rows in members if rows]


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_uniform_bins_are_sklearns_calibration_curve(rows, bins):
    logits, labels = rows
    observed, predicted = calibration_curve(labels, expit(logits), n_bins=bins)
    diagram = reliability(ScoreCounts.exact(logits, labels), bins)
    np.testing.assert_allclose(diagram.observed, observed)
    np.testing.assert_allclose(diagram.predicted, predicted)


def test_rows_and_intervals_of_each_bin(rows):
    logits, labels = rows
    diagram = reliability(ScoreCounts.exact(logits, labels), 10)
    members = members_by_loop(logits, 10)
    np.testing.assert_array_equal(diagram.rows, [len(m) for m in members])
    assert diagram.rows.dtype == np.int64
    for where, low, high in zip(members, diagram.low, diagram.high, strict=True):
        fraction = labels[where].mean()
        for end in (low, high):
            standard_error = math.sqrt(end * (1 - end) / len(where))
            assert abs(fraction - end) == pytest.approx(1.959963985 * standard_error, abs=1e-8)


def test_quantile_bins_hold_equal_rows_even_of_tiny_probabilities():
    rng = np.random.default_rng(9)
    logits = rng.normal(size=400) - 8
    labels = (rng.random(400) < 0.1).astype(int)
    counts = ScoreCounts.exact(logits, labels)
    assert reliability(counts, 4).rows.tolist() == [400]
    diagram = reliability(counts, 4, strategy="quantile")
    quarters = np.split(np.argsort(logits), 4)
    assert diagram.rows.tolist() == [100] * 4
    np.testing.assert_allclose(diagram.observed, [labels[q].mean() for q in quarters])
    np.testing.assert_allclose(diagram.predicted, [expit(logits[q]).mean() for q in quarters])


def test_quantile_bins_put_tied_scores_where_their_middle_lies():
    counts = ScoreCounts([-1.0, 0.0, 1.0], [0, 3, 1], [2, 4, 0])
    # Of 10 rows the middles are at 1, 5.5 and 9.5: one score in the lower half.
    assert reliability(counts, 2, strategy="quantile").rows.tolist() == [2, 8]


@pytest.mark.parametrize("bins", [1, 5, 10])
def test_calibration_error_is_the_row_weighted_gap(rows, bins):
    logits, labels = rows
    expected = 0.0
    for members in members_by_loop(logits, bins):
        gap = abs(labels[members].mean() - expit(logits[members]).mean())
        expected += len(members) / logits.size * gap
    measured = expected_calibration_error(ScoreCounts.exact(logits, labels), bins)
    assert measured == pytest.approx(expected, abs=1e-12)
    assert measured > 0.01


def test_calibrated_scores_have_a_small_error_and_overconfident_ones_do_not():
    rng = np.random.default_rng(10)
    logits = rng.normal(size=50_000)
    labels = (rng.random(50_000) < expit(logits)).astype(int)
    assert expected_calibration_error(ScoreCounts.binned(logits, labels)) < 0.01
    assert expected_calibration_error(ScoreCounts.binned(4 * logits, labels)) > 0.15


def test_no_rows():
    empty = ScoreCounts.pool([])
    for strategy in ("uniform", "quantile"):
        assert reliability(empty, strategy=strategy).rows.size == 0
    assert math.isnan(expected_calibration_error(empty))


@pytest.mark.parametrize(
    ("options", "message"), [({"bins": 0}, "at least 1 bin"), ({"strategy": "even"}, "'even'")]
)
def test_refuses_impossible_bins(options, message):
    with pytest.raises(ValueError, match=message):
        reliability(ScoreCounts.exact([0.0], [1]), **options)
