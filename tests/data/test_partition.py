"""Every row to exactly one client, as the partition promises."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedsaddle.data import partition
from fedsaddle.errors import UserError

labels_lists = st.lists(st.integers(0, 3), min_size=1, max_size=60)
seeds = st.integers(0, 3)


def assert_each_row_once(rows, n, n_clients):
    assert len(rows) == n_clients
    assert sorted(rows.indices.tolist()) == list(range(n))


@given(labels_lists, st.integers(1, 8), st.floats(0, 1), st.floats(0.01, 100), seeds)
def test_all_rows_are_dealt_once(labels, n_clients, similarity, alpha, seed):
    assume(n_clients <= len(labels))
    labels, n = np.array(labels), len(labels)
    even = partition.iid(n, n_clients, seed)
    blocks = partition.sorted_blocks(labels, n_clients, similarity, seed)
    uneven = partition.dirichlet(labels, n_clients, alpha, seed)
    for rows in (even, blocks, uneven):
        assert_each_row_once(rows, n, n_clients)
    for rows in (even, blocks):
        assert rows.counts.max() - rows.counts.min() <= 1


@given(labels_lists, st.integers(1, 8), seeds)
def test_sorted_blocks_without_similarity_are_sorted(labels, n_clients, seed):
    assume(n_clients <= len(labels))
    rows = partition.sorted_blocks(np.array(labels), n_clients, seed=seed)
    dealt = [sorted(labels[row] for row in part) for part in rows]
    assert list(chain(*dealt)) == sorted(labels)


def test_similarity_deals_that_share_evenly():
    labels = np.repeat([0, 1], 500)
    for similarity, minority in ((0.0, 0), (0.5, 125), (1.0, 250)):
        rows = partition.sorted_blocks(labels, 2, similarity, seed=0)
        # Client 0 holds the zeros of the sorted part, and half of the ones of the mixed part.
        assert abs((labels[rows[0]] == 1).sum() - minority) < 40


def test_dirichlet_is_even_for_large_alpha_and_concentrated_for_small():
    labels = np.repeat([0, 1], 1000)
    even = partition.dirichlet(labels, 4, alpha=1e6)
    assert np.abs(even.counts - 500).max() < 10
    lone = partition.dirichlet(labels, 4, alpha=1e-6)
    for label in (0, 1):
        shares = [(labels[part] == label).mean() if len(part) else 0 for part in lone]
        held = [(labels[part] == label).sum() for part in lone]
        assert sorted(held) == [0, 0, 0, 1000], shares


def test_each_class_has_its_own_shares():
    labels = np.arange(2000) % 2
    rows = partition.dirichlet(labels, 4, alpha=1)
    held = [[(labels[part] == label).sum() for part in rows] for label in (0, 1)]
    assert held[0] != held[1]


def test_dirichlet_shares_follow_the_distribution():
    """Variance of one share of a symmetric Dirichlet: (k - 1) / (k^2 (k alpha + 1))."""
    k, alpha, n = 4, 0.5, 400
    counts = [partition.dirichlet(np.zeros(n, int), k, alpha, seed).counts for seed in range(400)]
    variance = np.var(np.concatenate(counts) / n)
    assert variance == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.1)


def test_seeds_decide():
    labels = np.arange(50) % 2
    for deal in (
        lambda seed: partition.iid(50, 5, seed),
        lambda seed: partition.sorted_blocks(labels, 5, 0.3, seed),
        lambda seed: partition.dirichlet(labels, 5, 0.5, seed),
    ):
        assert deal(1).indices.tolist() == deal(1).indices.tolist()
        assert deal(1).indices.tolist() != deal(2).indices.tolist()


@given(st.lists(st.text(max_size=4), min_size=1, max_size=30))
def test_by_column_gives_each_value_its_rows(values):
    rows, names = partition.by_column(np.array(values, dtype=object))
    assert_each_row_once(rows, len(values), len(set(values)))
    for name, part in zip(names, rows, strict=True):
        assert part.tolist() == [i for i, value in enumerate(values) if value == name]


def test_names_are_in_natural_order_whatever_the_rows_order():
    values = np.array(["s10", "s9", "s1", "s10", "b"])
    names = ("b", "s1", "s9", "s10")
    assert partition.by_column(values)[1] == names
    assert partition.by_column(values[::-1])[1] == names
    assert partition.by_column(np.array([10, 9, 10]))[1] == ("9", "10")
    assert partition.natural_order(["01", "1", "²"]) == ["01", "1", "²"]


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.02, 0.98), seeds)
def test_subsampling_reaches_the_ratio_within_one_row(n_positive, n_negative, ratio, seed):
    labels = np.array([1] * n_positive + [0] * n_negative)
    kept = partition.subsample_positives(labels, ratio, seed)
    assert sorted(set(kept.tolist())) == kept.tolist()
    p, n = int((labels[kept] == 1).sum()), int((labels[kept] == 0).sum())
    assert p >= 1
    assert n >= 1
    assert p == n_positive or n == n_negative  # no more dropped than needed
    if n_positive / (n_positive + n_negative) > ratio:
        assert n == n_negative
        assert abs(p - n * ratio / (1 - ratio)) <= 1
    else:
        assert p == n_positive
        # Keeping all negatives may already be the nearest.
        assert abs(n - min(n_negative, p * (1 - ratio) / ratio)) <= 1


def test_subsampling_depends_on_the_seed_only():
    labels = np.arange(200) % 2
    first, again, other = (partition.subsample_positives(labels, 0.1, seed) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.iid(3, 4), "4 clients but only 3 rows"),
        (lambda: partition.iid(3, 0), "at least 1, not 0"),
        (lambda: partition.sorted_blocks(np.zeros(2), 3), "3 clients but only 2 rows"),
        (lambda: partition.sorted_blocks(np.zeros(2), 1, 1.5), "similarity must be between"),
        (lambda: partition.dirichlet(np.zeros(2, int), 3), "3 clients but only 2 rows"),
        (lambda: partition.dirichlet(np.zeros(2, int), 1, 0), "alpha must be a number above 0"),
        (lambda: partition.dirichlet(np.zeros(2, int), 1, np.inf), "alpha must be"),
        (lambda: partition.subsample_positives(np.array([0, 1]), 1.0), "between 0 and 1"),
        (lambda: partition.subsample_positives(np.array([0, 0]), 0.5), "rows of both classes"),
        (lambda: partition.subsample_positives(np.array([1, 1]), 0.5), "rows of both classes"),
        (lambda: partition.subsample_positives(np.array([0, 1, 2]), 0.5), "needs two classes"),
    ],
)
def test_impossible_requests(call, message):
    with pytest.raises(UserError, match=message):
        call()
