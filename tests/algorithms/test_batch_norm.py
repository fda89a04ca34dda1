"""BatchNorm under every method: statistics follow each pass, are averaged, and are what is used."""

import math

import pytest
import torch
from torch import nn

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import FederatedData
from fedsaddle.problems import PROBLEMS

VALUE, MOMENTUM, ROUNDS = 4.0, 0.5, 2


def data_of_one_value() -> FederatedData:
    """The first feature is the same everywhere, so that its mean over any batch is known."""
    random = torch.Generator().manual_seed(0)
    clients = []
    for rows in (12, 12, 20):
        inputs = torch.randn(rows, 2, generator=random)
        inputs[:, 0] = VALUE
        clients.append((inputs, torch.arange(rows) % 2))
    return FederatedData.from_clients(clients, validation=0)


def problem_for(name: str) -> str:
    preferred = ("auc", "risk", "agnostic", "compositional-auc", "ratio")
    return next(p for p in preferred if PROBLEMS[p].kind in ALGORITHMS[name].solves)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_statistics_follow_the_passes_and_are_used(name: str) -> None:
    """After n passes a running mean is `v (1 − 2⁻ⁿ)` at every client, and so is their average."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(2, momentum=MOMENTUM), nn.Linear(2, 1))
    data = data_of_one_value()
    options = {"model": network, "rounds": ROUNDS, "engine": {"dtype": "float64"}}
    result = fedsaddle.train(problem_for(name), data, name, **options)
    mean = float(result.x["0.running_mean"][0])
    passes = math.log(1 - mean / VALUE, MOMENTUM) if mean < VALUE else math.inf
    if math.isfinite(passes):
        assert passes >= ROUNDS - 1e-3
        assert passes == pytest.approx(round(passes), abs=1e-2)
    else:  # so many passes that rounding has the last word
        assert mean == pytest.approx(VALUE)
    assert torch.equal(result.model[0].running_mean, result.x["0.running_mean"].float())
    rows = torch.from_numpy(data.test.indices)
    with torch.no_grad():
        right = (result.model(data.take(rows)).squeeze(1) > 0).long() == data.labels[rows]
    assert result.history[-1]["test/accuracy"] == pytest.approx(float(right.float().mean()))
