"""What is replayed is what the function does, to the last bit, and only where it can be."""

import gc
import random
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedsaddle.problems import Batch, Problem, oracle
from fedsaddle.problems.oracle import Oracle
from fedsaddle.problems.recorded import Recorded


def counted(function):
    """The function, and how often it was called."""
    calls = []

    def counting(*tensors):
        calls.append(1)
        return function(*tensors)

    return counting, calls


def replay(function, *several: tuple[Tensor, ...]) -> int:
    """Checks every call against the function; how often it was called in recorded form."""
    counting, calls = counted(function)
    recorded = Recorded(counting)
    for number, tensors in enumerate(several):
        torch.manual_seed(number)
        found = recorded(*tensors)
        torch.manual_seed(number)
        for a, b in zip(found, function(*tensors), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            assert not a.requires_grad
    return len(calls)


def some(*shape: int, number: int = 5) -> list[tuple[Tensor, ...]]:
    random = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=random),) for _ in range(number)]


def gradient_of(loss):
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(loss(x), x)

    return gradient


@pytest.mark.parametrize(
    "function",
    [
        gradient_of(lambda x: (x.sigmoid() * x.square()).mean()),
        gradient_of(lambda x: torch.vmap(lambda row: row.softmax(0)[0])(x).sum()),
        gradient_of(lambda x: functional.layer_norm(x, (6,)).cos().sum()),
        lambda x: tuple(x.split(2, dim=1)),
        lambda x: (*x.topk(2, dim=1),),
        lambda x: (torch.tensor([1.0, 2.0]).add_(x[0, 0]),),  # numbers, changed in place
        lambda x: (x.new_zeros(6).index_add_(0, torch.arange(4), x[:, 0]), x.clone().clamp_(0)),
        lambda x: (x * torch.rand(4, 6), torch.randn(3)),
        lambda x: (functional.dropout(x, 0.5), x),
        lambda x: ((x - x) / 0,),
    ],
)
def test_it_is_called_thrice_and_then_replayed(function):
    assert replay(function, *some(4, 6)) == 3


@given(st.integers(1, 4), st.integers(1, 5))
def test_a_second_derivative_is_replayed(rows, columns):
    def product(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((x @ x.T).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient, x, grad_outputs=x.detach())

    assert replay(product, *some(rows, columns)) == 3


def looks_at_values(x):
    return (x * 2 if x.sum() > 0 else x * 3,)


def leaves_torch(x):
    return (x + torch.from_numpy(x.numpy() * 2),)


def test_what_looks_at_values_is_called_each_time():
    assert replay(looks_at_values, *some(3)) == 5
    assert replay(lambda x: (x[x > 0].sum(),), *some(3)) == 5


def test_what_leaves_torch_is_noticed_when_it_is_compared():
    assert replay(leaves_torch, *some(3)) == 5


def test_what_keeps_count_is_called_each_time():
    numbers = iter(range(100))
    recorded = Recorded(lambda x: (x + next(numbers),))
    assert [recorded(torch.zeros(1))[0].item() for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("draw", [random.random, np.random.random_sample])
def test_what_draws_otherwise_than_by_torch_is_called_each_time(draw):
    calls = []

    def rarely_odd(x):  # so that a comparison would most likely find nothing
        calls.append(1)
        return (x if draw() < 1 - 1e-9 else -x,)

    recorded = Recorded(rarely_odd)
    for (x,) in some(3):
        assert torch.equal(recorded(x)[0], x)
    assert len(calls) == 5


def test_a_tensor_of_old_is_not_given_out():
    table = torch.ones(2)
    assert replay(lambda x: (x, table), *some(3)) == 5


def test_a_tensor_of_old_may_change():
    table = torch.ones(3)
    recorded = Recorded(lambda x: (x * table,))
    found = []
    for _ in range(4):
        found.append(recorded(torch.ones(3))[0].sum().item())
        table += 1
    assert found == [3, 6, 9, 12]


def test_what_is_given_twice_may_differ_the_next_time():
    a, b = torch.ones(2), torch.full((2,), 3.0)
    assert replay(lambda x, y: (x - y,), (a, a), (a, a), (a, a), (a, b), (b, a)) == 3


def test_nothing_of_a_call_is_kept():
    recorded, gone = Recorded(lambda x: ((x * 2).exp(),)), []
    for _ in range(4):
        given = torch.randn(3)
        result = recorded(given)[0]
        gone += [weakref.ref(given), weakref.ref(result)]
        del given, result
    gc.collect()
    assert [reference() for reference in gone] == [None] * 8


def test_an_oracle_keeps_so_many_programs(monkeypatch):
    monkeypatch.setattr(oracle, "MOST_PROGRAMS", 3)
    problem = Counting()
    kept = Oracle(problem, problem.layout())
    for rows in (1, 2, 3, 4, 5, 1):
        batch = Batch(torch.ones(2, rows, 2), torch.zeros(2, rows, dtype=torch.int64))
        losses = kept.loss(torch.ones(2, 2), torch.zeros(2, 0), batch)
        assert losses.tolist() == [1, 1]
    assert len(kept._programs) == 3


class Counting(Problem):
    """`calls` is how often the loss itself was run."""

    calls: ClassVar[int] = 0

    def start(self, generator):
        return {"x": torch.ones(2)}, {}

    def loss(self, x, y, batch):
        Counting.calls += 1
        return (self.odd(x["x"]) * batch.inputs).square().mean()

    def odd(self, x):
        return x


class Branching(Counting):
    def odd(self, x):
        return x if bool(x.sum() > 0) else -x


def gradients(problem: Problem, mode: str, number: int) -> list[Tensor]:
    layout = problem.layout(torch.float64)
    oracle, random = Oracle(problem, layout, mode), torch.Generator().manual_seed(1)
    found = []
    for _ in range(number):
        z, rows = (torch.randn(3, 2, generator=random, dtype=torch.float64) for _ in range(2))
        batch = Batch(rows.unsqueeze(1), torch.zeros(3, 1, dtype=torch.int64))
        found.append(oracle.gradient(z, torch.zeros(3, 0, dtype=torch.float64), batch)[1] + 0)
    return found


def test_an_oracle_replays_its_problem():
    Counting.calls = 0
    replayed = gradients(Counting(), "stack", 6)
    assert Counting.calls == 3
    for a, b in zip(replayed, gradients(Counting(), "loop", 6), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:Branching cannot be")
def test_an_oracle_that_falls_back_to_single_clients_calls_each_of_them():
    Counting.calls = 0
    found = gradients(Branching(), "stack", 4)
    tried = Counting.calls
    for a, b in zip(found, gradients(Branching(), "loop", 4), strict=True):
        torch.testing.assert_close(a, b)
    assert tried >= 4 * 3
