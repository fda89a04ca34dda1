"""Every row to exactly one client, as the partition promises."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedsaddle.data import DataOptions, load, partition
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


class TestQuantity:
    @given(st.integers(1, 80), st.integers(1, 9), st.floats(0.01, 100), seeds)
    def test_every_row_once_and_nobody_without(self, n, n_clients, alpha, seed):
        assume(n_clients <= n)
        rows = partition.quantity(n, n_clients, alpha, seed)
        assert_each_row_once(rows, n, n_clients)
        assert rows.counts.min() >= 1
        again = partition.quantity(n, n_clients, alpha, seed)
        assert rows.indices.tolist() == again.indices.tolist()

    def test_sizes_follow_the_distribution(self):
        k, alpha, n = 4, 0.5, 4000
        counts = [partition.quantity(n, k, alpha, seed).counts for seed in range(400)]
        variance = np.var(np.concatenate(counts) / n)
        assert variance == pytest.approx((k - 1) / (k**2 * (k * alpha + 1)), rel=0.1)
        assert np.ptp(partition.quantity(n, k, 1e6).counts) < 20

    def test_the_mixture_of_classes_stays(self):
        labels = np.arange(8000) % 2
        for part in partition.quantity(8000, 4, 1.0, seed=1):
            assert abs((labels[part] == 1).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(part))


class TestDisjointClasses:
    @given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 4), seeds)
    def test_no_two_clients_share_a_class(self, classes, n_clients, seed):
        classes = np.array(classes)
        sides = classes % 2
        for side in set(sides.tolist()):
            assume(len(set(classes[sides == side].tolist())) >= n_clients)
        assume(len(set(sides.tolist())) == 2)
        rows = partition.disjoint_classes(classes, sides, n_clients, seed)
        assert_each_row_once(rows, len(classes), n_clients)
        owned = [set(classes[part].tolist()) for part in rows]
        assert sum(map(len, owned)) == len(set(classes.tolist()))
        for side in (0, 1):
            held = [sum(c % 2 == side for c in own) for own in owned]
            assert min(held) >= 1
            assert max(held) - min(held) <= 1
        assert max(map(len, owned)) - min(map(len, owned)) <= 1 or n_clients > 2

    def test_names_as_classes_and_seeds(self):
        names = np.array([f"class {i % 10}" for i in range(100)])
        sides = (np.arange(100) % 10 < 5).astype(int)
        first, again, other = (partition.disjoint_classes(names, sides, 5, s) for s in (0, 0, 1))
        assert first.counts.tolist() == [20] * 5
        assert first.indices.tolist() == again.indices.tolist()
        assert first.indices.tolist() != other.indices.tolist()
        assert all(sides[part].mean() == 0.5 for part in first)

    def test_more_than_two_sides_are_none(self):
        rows = partition.disjoint_classes(np.arange(6), np.arange(6), 3)
        assert rows.counts.tolist() == [2, 2, 2]

    def test_impossible_requests(self):
        classes = np.array(["a", "b", "c"])
        with pytest.raises(UserError, match="1 classes on one side are too few for 2 clients"):
            partition.disjoint_classes(classes, np.array([1, 0, 0]), 2)
        with pytest.raises(UserError, match="3 classes are too few for 4 clients"):
            partition.disjoint_classes(np.repeat(classes, 2), np.repeat([0, 1, 2], 2), 4)
        with pytest.raises(UserError, match="rows of one class must be on one side"):
            partition.disjoint_classes(np.array(["a", "a"]), np.array([0, 1]), 1)


class TestByValue:
    @given(
        st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=80),
        st.integers(1, 8),
        seeds,
    )
    def test_each_client_has_one_value(self, cells, n_clients, seed):
        values = np.array([value for value, _ in cells])
        trains = np.array([chosen for _, chosen in cells])
        known, counts = np.unique(values[trains], return_counts=True)
        assume(len(known) and n_clients >= len(known))
        assume(counts.min() >= -(-n_clients // len(known)))
        names, group_of = partition.by_value(values, trains, n_clients, seed)
        assert len(group_of) == n_clients
        for name, value in zip(names, values, strict=True):
            if name is None:
                assert value not in known
            else:
                assert group_of[name] == value
        for value in known:
            clients = [name for name, group in group_of.items() if group == value]
            for chosen in (trains, ~trains):
                held = [(names[chosen] == client).sum() for client in clients]
                assert max(held) - min(held) <= 1
        per_value = [list(group_of.values()).count(value) for value in known]
        assert max(per_value) - min(per_value) <= 1

    def test_values_that_look_like_clients(self):
        values = np.array(["a", "a", "a-0", "b", "b"])
        with pytest.raises(UserError, match="clash"):
            partition.by_value(values, np.ones(5, bool), 4)


def test_groups_of_own_clients():
    with pytest.raises(UserError, match="client 'a' has rows with 'region' = 'n' and 's'"):
        partition.groups_of(np.array(["a", "a"]), np.array(["n", "s"]), "region")


# Through load


def test_classes_apart_with_the_first_half_positive():
    options = DataOptions(
        source="digits", partition="disjoint-classes", clients=5, positive="first-half"
    )
    data = load(options)
    digit = load_digits().target
    owned = []
    for client in range(5):
        rows = np.concatenate([part[client] for part in (data.train, data.validation, data.test)])
        assert ((digit[rows] < 5) == (data.labels[rows].numpy() == 1)).all()
        owned.append(sorted(set(digit[rows].tolist())))
    assert [len(own) for own in owned] == [2] * 5
    assert sorted(chain(*owned)) == list(range(10))
    assert all(own[0] < 5 <= own[1] for own in owned)
    thin = load(options.model_copy(update={"positive_ratio": 0.1}))
    assert thin.positive_ratio == pytest.approx(0.1, abs=0.01)
    with pytest.raises(UserError, match="5 classes on one side are too few for 6 clients"):
        load(options.model_copy(update={"clients": 6}))


def test_quantity_and_feature_through_load(tmp_path):
    data = load(DataOptions(partition="quantity", clients=4, alpha=0.5))
    sizes = data.train.counts + data.validation.counts + data.test.counts
    assert sizes.sum() == 569
    assert sizes.max() > 2 * sizes.min()
    path = tmp_path / "t.csv"
    path.write_text(
        "age,region,site,label\n"
        + "".join(f"{30 + i},{'ns'[i % 4 // 2]},site{i % 4},{i % 3 // 2}\n" for i in range(48))
    )
    own = DataOptions(source=str(path), client="site", feature="region")
    data = load(own)
    assert data.groups == ("n", "n", "s", "s")
    parted = DataOptions(source=str(path), partition="feature", feature="region", clients=3)
    assert load(parted).names == ("n-0", "n-1", "s")
    with pytest.raises(UserError, match="client 'site0' has rows with 'age'"):
        load(own.model_copy(update={"feature": "age"}))
    with pytest.raises(UserError, match=r"data.feature names a column, but digits has none"):
        load(DataOptions(source="digits", partition="feature", feature="x"))


def test_small_clients_are_left_out(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{i},{'a' if i < 30 else 'b' if i < 34 else 'c'},{i % 2}\n" for i in range(60)]
    path.write_text("age,site,label\n" + "".join(rows))
    data = load(DataOptions(source=str(path), client="site", min_rows=5))
    assert data.names == ("a", "c")
    assert len(data.inputs) == 56
    with pytest.raises(UserError, match="no client has 100 rows"):
        load(DataOptions(source=str(path), client="site", min_rows=100))
