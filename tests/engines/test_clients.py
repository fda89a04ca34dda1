from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.algorithms import LocalSGDA, Members
from fedsaddle.data import FederatedData
from fedsaddle.engines.clients import FULL_BATCH, ClientStack, Setup, reshuffled
from fedsaddle.problems import Problem


class Mean(Problem):
    """f = mean over rows of ½(w − row)²: the gradient is w − mean(rows)."""

    def start(self, generator):
        return {"w": torch.zeros(1)}, {}

    def loss(self, x, y, batch):
        return (x["w"] - batch.inputs).square().sum(-1).mean() / 2


def stack_of(sizes, batch_size=4, clients=None):
    values = [torch.arange(n, dtype=torch.float64)[:, None] + 100 * k for k, n in enumerate(sizes)]
    data = FederatedData.from_clients(values, test=0, validation=0)
    problem = Mean()
    layout = problem.layout(torch.float64)
    able = torch.arange(len(sizes))
    members = Members(able, data.names, able)
    method = LocalSGDA(batch_size=batch_size)
    setup = Setup(problem, method, data, layout, members, seed=3)
    asked = np.arange(len(sizes)) if clients is None else np.array(clients)
    return ClientStack(setup, asked, torch.zeros(0), number=5, phase="steps"), data


@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 10**6))
def test_every_epoch_holds_every_row_once(n, wanted, seed):
    rows = np.arange(n) * 7
    drawn = reshuffled(rows, wanted, np.random.default_rng(seed))
    assert len(drawn) == wanted
    for start in range(0, wanted - n + 1, n):
        assert sorted(drawn[start : start + n]) == rows.tolist()
    assert max(Counter(drawn[-(wanted % n) :].tolist()).values(), default=1) == 1 or wanted % n == 0


def test_minibatches_do_not_depend_on_who_else_is_in_the_stack():
    together, _ = stack_of([9, 9, 9])
    alone, _ = stack_of([9, 9, 9], clients=[1])
    both = zip(together.minibatches(4), alone.minibatches(4), strict=True)
    assert all(torch.equal(a.inputs[1], b.inputs[0]) for a, b in both)


def test_a_client_smaller_than_a_batch_uses_all_its_rows():
    stack, data = stack_of([3], batch_size=10)
    for batch in stack.minibatches(2):
        assert sorted(batch.inputs.flatten().tolist()) == data.inputs[:, 0].tolist()


def test_batch_size_zero_means_all_rows():
    stack, _ = stack_of([6], batch_size=0)
    assert next(stack.minibatches(1)).inputs.shape == (1, 6, 1)


def test_full_gradient_and_loss_over_clients_of_different_sizes_in_several_passes():
    sizes = [5, FULL_BATCH + 3, 5, 1]
    stack, data = stack_of(sizes)
    z = torch.tensor([2.0], dtype=torch.float64)
    rows = [data.inputs[data.train[k], 0].numpy() for k in range(4)]
    gradient, loss = stack.full_gradient(z), stack.full_loss(z)
    assert gradient[:, 0].tolist() == pytest.approx([2 - own.mean() for own in rows])
    assert loss[:, 0].tolist() == pytest.approx([((2 - own) ** 2).mean() / 2 for own in rows])
