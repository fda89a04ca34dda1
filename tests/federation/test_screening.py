"""Which replies count."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.federation import Answer, Refusal, screen

DECLARED = {"z": 2, "loss": 1}


def answer(clients, z=None, loss=None):
    rows = len(clients)
    vectors = {
        "z": torch.ones(rows, 2) if z is None else torch.tensor(z),
        "loss": torch.zeros(rows, 1) if loss is None else torch.tensor(loss),
    }
    return Answer(np.array(clients), vectors)


def test_replies_are_put_in_client_order():
    first = answer([7, 2], z=[[7.0, 7.0], [2.0, 2.0]])
    second = answer([5], z=[[5.0, 5.0]])
    clients, vectors, refused = screen([first, second], DECLARED)
    assert clients.tolist() == [2, 5, 7]
    assert vectors["z"].tolist() == [[2.0, 2.0], [5.0, 5.0], [7.0, 7.0]]
    assert refused == []


def test_no_answers_give_nothing():
    clients, vectors, refused = screen([], DECLARED)
    assert (len(clients), vectors, refused) == (0, {}, [])


def test_one_bad_row_does_not_cost_its_neighbours():
    nan, inf = float("nan"), float("inf")
    mixed = answer(
        [1, 2, 3, 4],
        z=[[1.0, 1.0], [nan, 1.0], [3.0, 3.0], [1.0, -inf]],
        loss=[[0.0], [0.0], [inf], [nan]],
    )
    clients, vectors, refused = screen([mixed], DECLARED)
    assert clients.tolist() == [1]
    assert vectors["z"].tolist() == [[1.0, 1.0]]
    assert sorted(refused) == [
        Refusal(2, "'z' is not finite"),
        Refusal(3, "'loss' is not finite"),
        Refusal(4, "'z' is not finite"),
    ]


def test_large_but_finite_values_do_not_overflow_the_check():
    clients, _, refused = screen([answer([1], z=[[3e38, 3e38]])], DECLARED)
    assert clients.tolist() == [1]
    assert refused == []


def test_long_vectors_are_refused_with_their_norm():
    clients, _, refused = screen([answer([1, 2], z=[[3.0, 4.0], [0.3, 0.4]])], DECLARED, 1.0)
    assert clients.tolist() == [2]
    assert refused == [Refusal(1, "'z' has norm 5, above 1")]


def test_missing_and_misshapen_vectors_are_refused():
    missing = Answer(np.array([1]), {"z": torch.ones(1, 2)})
    long = answer([2, 3], z=[[1.0, 1.0, 1.0]] * 2)
    flat = Answer(np.array([4]), {"z": torch.ones(2), "loss": torch.zeros(1, 1)})
    short = answer([5, 6], z=[[1.0, 1.0]])
    clients, vectors, refused = screen([missing, long, flat, short], DECLARED)
    assert (len(clients), vectors) == (0, {})
    assert [refusal.client for refusal in refused] == [1, 2, 3, 4, 5, 6]
    assert refused[0].reason == "'loss' is missing"
    assert refused[1].reason == "'z' has shape (3,), not (2,)"


def test_vectors_that_were_not_declared_are_dropped():
    extra = answer([1])
    extra.vectors["more"] = torch.ones(1, 9)
    _, vectors, _ = screen([extra], DECLARED)
    assert set(vectors) == {"z", "loss"}


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 5))
def test_accepted_and_refused_are_everyone_once(good, stack):
    answers = []
    for start in range(0, len(good), stack):
        part = good[start : start + stack]
        z = [[1.0, 2.0] if fine else [float("nan"), 2.0] for fine in part]
        answers.append(answer(list(range(start, start + len(part))), z=z))
    clients, vectors, refused = screen(answers[::-1], DECLARED)
    assert clients.tolist() == [j for j, fine in enumerate(good) if fine]
    assert sorted(refusal.client for refusal in refused) == [
        j for j, fine in enumerate(good) if not fine
    ]
    assert all(len(vector) == len(clients) for vector in vectors.values())
