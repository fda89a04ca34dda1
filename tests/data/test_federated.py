"""Rows, FederatedData and the split within each client."""

import math
import time
from itertools import chain

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.data import FederatedData, Rows
from fedsaddle.data.federated import split_clients
from fedsaddle.errors import UserError

ragged = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6)


@given(ragged)
def test_rows_hold_the_lists_they_were_made_from(lists):
    rows = Rows.from_lists(lists)
    assert [part.tolist() for part in rows] == lists
    assert rows.counts.tolist() == [len(part) for part in lists]
    assert rows.owners.tolist() == [i for i, part in enumerate(lists) for _ in part]
    assert rows.indices.dtype == rows.offsets.dtype == np.int64


@given(st.lists(st.integers(0, 4), max_size=20))
def test_rows_from_owners_are_each_owners_places(owners):
    rows = Rows.from_owners(np.array(owners, dtype=np.int64), 5)
    for client in range(5):
        assert rows[client].tolist() == [i for i, owner in enumerate(owners) if owner == client]


def test_rows_count_clients_from_either_end_and_no_further():
    rows = Rows.from_lists([[1], [2, 3]])
    assert rows[-1].tolist() == [2, 3]
    for outside in (2, -3):
        with pytest.raises(IndexError):
            rows[outside]
    assert len(Rows.empty(3)) == 3
    assert Rows.empty(3)[2].tolist() == []


@pytest.mark.parametrize(
    ("indices", "offsets"),
    [([0], [0]), ([0], [1, 1]), ([0, 1], [0, 2, 1, 2]), ([], []), ([0.5], [0, 1]), ([[0]], [0, 1])],
)
def test_rows_refuse_offsets_that_do_not_fit(indices, offsets):
    with pytest.raises(UserError, match=r"Rows\."):
        Rows(np.array(indices), np.array(offsets))


def test_rows_refuse_an_owner_beyond_the_clients():
    with pytest.raises(UserError, match="owned by client 3, of 2 clients"):
        Rows.from_owners(np.array([0, 3]), 2)


def small(**changes):
    fields = {
        "inputs": torch.arange(12.0).reshape(6, 2),
        "labels": torch.tensor([0, 1, 0, 1, 1, 0]),
        "train": Rows.from_lists([[0, 1], [3]]),
        "validation": Rows.from_lists([[2], []]),
        "test": Rows.from_lists([[], [4, 5]]),
        "names": ("a", "b"),
        "classes": ("no", "yes"),
    }
    return FederatedData(**fields | changes)


def test_properties_say_what_the_fields_hold():
    data = small()
    assert (data.n_clients, data.n_classes, data.task) == (2, 2, "binary")
    assert data.input_shape == (2,)
    assert data.positive_ratio == pytest.approx(2 / 3)  # rows 0, 1, 3 have labels 0, 1, 1
    three = small(classes=("x", "y", "z"))
    assert three.task == "multiclass"
    assert math.isnan(three.positive_ratio)
    none = small(labels=torch.zeros(6), classes=())
    assert (none.task, none.n_classes) == ("none", 0)
    assert math.isnan(small(train=Rows.empty(2)).positive_ratio)


def test_inputs_become_float32_but_float64_stays():
    assert small().inputs.dtype == torch.float32
    assert small(inputs=torch.ones(6, 2, dtype=torch.int64)).inputs.dtype == torch.float32
    assert small(inputs=torch.ones(6, 2, dtype=torch.float64)).inputs.dtype == torch.float64
    assert small(labels=torch.ones(6)).labels.dtype == torch.int64
    assert small(inputs=torch.ones(6, 3, 4, 4)).input_shape == (3, 4, 4)


def test_bytes_and_tokens_are_kept_small_and_become_numbers_when_taken():
    bytes_ = torch.tensor([[0], [51], [255], [0], [0], [0]], dtype=torch.uint8)
    images = small(inputs=bytes_)
    assert images.inputs.dtype == torch.uint8
    taken = images.take(torch.tensor([2, 1, 0]), torch.float64)
    assert taken.flatten().tolist() == pytest.approx([1.0, -0.6, -1.0])
    tokens = small(inputs=torch.arange(12, dtype=torch.int32).reshape(6, 2))
    assert tokens.take(torch.tensor([5])).tolist() == [[10, 11]]
    assert tokens.take(torch.tensor([5])).dtype == torch.int64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(6)}, r"shape \(n, ...\)"),
        ({"inputs": [["a"]]}, "must be numbers"),
        ({"inputs": torch.zeros(5, 2)}, "5 rows of inputs but 6 labels"),
        ({"inputs": torch.tensor([[0.0]] * 4 + [[math.nan], [1.0]])}, "row 4 is not"),
        ({"inputs": torch.tensor([[0.0]] * 5 + [[-math.inf]])}, "row 5 is not"),
        ({"labels": torch.full((6,), 2)}, r"labels must lie in 0..1 \(2 classes\)"),
        ({"labels": torch.full((6,), -1)}, "labels must lie in"),
        ({"labels": torch.full((6,), 0.5)}, "whole numbers"),
        ({"labels": ["a"] * 6}, "whole numbers"),
        ({"labels": torch.zeros(6, 1)}, "one per row"),
        ({"classes": ()}, r"0..0 \(0 classes\)"),
        ({"names": ("a", "a")}, "two clients are called 'a'"),
        ({"names": ("a",)}, "for 2 clients, but there are 1 names"),
        ({"names": ()}, "at least one client"),
        ({"names": ("a", 3)}, "text name"),
        ({"test": Rows.from_lists([[6], []])}, r"test names a row outside 0..5"),
        ({"train": Rows.from_lists([[-1], []])}, "train names a row outside"),
        ({"validation": Rows.empty(3)}, "validation rows are for 3 clients"),
    ],
)
def test_bad_fields_get_a_sentence(changes, message):
    with pytest.raises(UserError, match=message):
        small(**changes)


def test_large_finite_inputs_are_not_taken_for_infinite():
    assert small(inputs=torch.full((6, 2), 3e38)).inputs[0, 0] == 3e38


def test_pooled_gives_training_to_client_0_and_leaves_tests():
    pooled = small().pooled()
    assert [rows.tolist() for rows in pooled.train] == [[0, 1, 3], []]
    assert [rows.tolist() for rows in pooled.validation] == [[2], []]
    assert [rows.tolist() for rows in pooled.test] == [[], [4, 5]]
    assert pooled.positive_ratio == small().positive_ratio


@pytest.mark.parametrize("client", [1, "b"])
def test_only_keeps_one_clients_training_and_all_tests(client):
    alone = small().only(client)
    assert [rows.tolist() for rows in alone.train] == [[], [3]]
    assert [rows.tolist() for rows in alone.validation] == [[], []]
    assert [rows.tolist() for rows in alone.test] == [[], [4, 5]]
    assert [rows.tolist() for rows in small().only(0).train] == [[0, 1], []]


def test_only_of_an_unknown_client():
    with pytest.raises(UserError, match="did you mean 'bern'"):
        small(names=("bern", "ulm")).only("berne")
    with pytest.raises(UserError, match=r"clients are 0..1"):
        small().only(2)


def test_a_million_clients_cost_no_python_loop():
    n = 1_000_000
    rows = Rows(np.arange(n), np.arange(n + 1))
    names = tuple(map(str, range(n)))
    started = time.perf_counter()
    data = FederatedData(
        torch.ones(n, 1), torch.ones(n), rows, Rows.empty(n), Rows.empty(n), names, ("0", "1")
    )
    assert data.positive_ratio == 1
    assert data.pooled().train.counts[0] == n
    assert data.only(n - 1).train.counts.sum() == 1
    # Generous for a busy machine; one Python object per client would take longer.
    assert time.perf_counter() - started < 5


# from_clients


def test_from_clients_numpy_and_torch_alike():
    X, y = np.arange(40.0, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    with_numpy = FederatedData.from_clients([(X, y), (X[:4], y[:4])])
    with_torch = FederatedData.from_clients(
        [(torch.tensor(X), torch.tensor(y)), (torch.tensor(X[:4]), torch.tensor(y[:4]))]
    )
    frames = [(pd.DataFrame(X), pd.Series(y)), (pd.DataFrame(X[:4]), pd.Series(y[:4]))]
    with_pandas = FederatedData.from_clients(frames)
    for other in (with_torch, with_pandas):
        assert torch.equal(with_numpy.inputs, other.inputs)
        assert torch.equal(with_numpy.labels, other.labels)
        assert np.array_equal(with_numpy.train.indices, other.train.indices)
    assert torch.equal(with_numpy.inputs[20:], torch.tensor(X[:4]))
    assert with_numpy.test.counts.tolist() == [5, 1]
    assert with_numpy.validation.counts.tolist() == [2, 0]


def test_from_clients_without_labels():
    data = FederatedData.from_clients([np.zeros((4, 3)), (np.ones((2, 3)), None)], names=["a", "b"])
    assert (data.task, data.names, data.classes) == ("none", ("a", "b"), ())
    assert data.inputs.dtype == torch.float64
    assert data.train.counts.sum() + data.validation.counts.sum() + data.test.counts.sum() == 6


def test_from_clients_with_empty_one_row_and_one_class_clients():
    data = FederatedData.from_clients(
        [
            (np.empty((0, 1)), np.empty(0)),
            (np.ones((1, 1)), [1]),
            (np.zeros((8, 1)), np.zeros(8, int)),
        ],
        test=0.5,
        validation=0,
    )
    assert data.train.counts.tolist() == [0, 1, 4]
    assert data.test.counts.tolist() == [0, 0, 4]
    assert data.classes == ("0", "1")


@pytest.mark.parametrize(
    ("clients", "names", "message"),
    [
        ([], None, "at least one client"),
        ([([[1.0]], [0])], ["a", "b"], "1 clients but 2 names"),
        ([([[1.0]], [0]), ([[1.0]], None)], None, "'client-1' has no labels"),
        ([([[1.0]], [0]), ([[1.0, 2.0]], [0])], None, r"client 'client-1': a row has shape \(2,\)"),
        ([([[1.0]], [0, 1])], None, "1 rows of inputs but 2 labels"),
        ([([[1.0]], [-1])], None, "labels must be 0, 1, …, not -1"),
        ([([[math.nan]], [0])], ["ulm"], "client 'ulm': inputs must be finite"),
        ([([[1.0]], ["x"])], ["ulm"], "client 'ulm': labels must be whole numbers"),
    ],
)
def test_from_clients_errors_name_the_client(clients, names, message):
    with pytest.raises(UserError, match=message):
        FederatedData.from_clients(clients, names=names)


# split_clients

clients_labels = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4)
shares = st.tuples(st.floats(0, 0.6), st.floats(0, 0.39))


def rows_of(clients):
    return np.array(list(chain(*clients)), dtype=np.int64), Rows(
        np.arange(sum(map(len, clients))), np.cumsum([0, *map(len, clients)])
    )


@given(clients_labels, shares, st.integers(0, 5))
def test_every_row_is_in_one_part_and_every_class_trains(clients, share, seed):
    labels, owner = rows_of(clients)
    parts = split_clients(labels, owner, *share, seed)
    for client, given_labels in enumerate(clients):
        own = [part[client] for part in parts]
        assert sorted(np.concatenate(own).tolist()) == owner[client].tolist()
        assert set(labels[own[0]].tolist()) == set(given_labels)  # implies: one training row
        for part, wanted in ((own[2], share[0]), (own[1], share[1])):
            assert len(part) <= wanted * len(given_labels) + 0.5 + 1e-9
            for label in set(given_labels):
                count = given_labels.count(label)
                assert (labels[part] == label).sum() < wanted * count + 1 + 1e-9


@given(st.lists(st.integers(4, 40), min_size=1, max_size=3), st.integers(0, 5))
def test_shares_are_met_when_there_is_room(counts, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    _, validation, test = split_clients(
        labels, Rows.from_lists([np.arange(len(labels))]), 0.25, 0.1, seed
    )
    n = len(labels)
    assert test.counts[0] == math.floor(0.25 * n + 0.5)
    assert validation.counts[0] == math.floor(0.1 * n + 0.5)
    for label, count in enumerate(counts):
        assert abs((labels[test[0]] == label).sum() - 0.25 * count) < 1
        assert abs((labels[validation[0]] == label).sum() - 0.1 * count) < 1


def test_a_clients_split_does_not_depend_on_the_other_clients():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60)
    both = Rows.from_lists([range(30), range(30, 60)])
    second_only = Rows.from_lists([[], range(30, 60)])
    for part, alone in zip(
        split_clients(labels, both, 0.25, 0.1, 3),
        split_clients(labels, second_only, 0.25, 0.1, 3),
        strict=True,
    ):
        assert part[1].tolist() == alone[1].tolist()


def test_the_split_depends_on_the_seed_and_the_client():
    labels = np.zeros(80, dtype=np.int64)
    owner = Rows.from_lists([range(40), range(40, 80)])
    first, again, other = (split_clients(labels, owner, 0.5, 0, seed)[0] for seed in (0, 0, 1))
    assert first.indices.tolist() == again.indices.tolist()
    assert first.indices.tolist() != other.indices.tolist()
    assert first[0].tolist() != (first[1] - 40).tolist()


def test_rare_classes_are_tested_when_the_share_allows():
    labels = np.array([0] * 96 + [1] * 4)
    _, _, test = split_clients(labels, Rows.from_lists([range(100)]), 0.25, 0.1, 0)
    assert (labels[test[0]] == 1).sum() == 1


@pytest.mark.parametrize(("test", "validation"), [(1.0, 0.0), (0.6, 0.4), (-0.1, 0), (0, math.nan)])
def test_impossible_shares(test, validation):
    with pytest.raises(UserError, match="leave a share for training"):
        split_clients(np.zeros(3), Rows.from_lists([range(3)]), test, validation, 0)
