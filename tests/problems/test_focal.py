"""Focal loss against its formula, plain risk, and itself in other forms."""

import warnings

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

import fedsaddle
from fedsaddle.data import FederatedData
from fedsaddle.problems import Batch, Focal, Risk
from fedsaddle.problems.oracle import Oracle

INPUTS = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))
TWO, FOUR = torch.tensor([1, 0, 0, 1, 1, 0]), torch.tensor([3, 0, 1, 2, 1, 0])


def network(outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


def named(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().double() for name, value in model.named_parameters()}


def chances(model: nn.Linear) -> np.ndarray:
    """The probability of every class, of one or more outputs."""
    x = named(model)
    logits = (INPUTS @ x["weight"].T + x["bias"]).numpy()
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(
    ("outputs", "labels", "alpha", "weights"),
    [
        (1, TWO, None, [1, 1]),
        (1, TWO, 0.25, [0.75, 0.25]),
        (1, TWO, [2.0, 3.0], [2, 3]),
        (4, FOUR, None, [1, 1, 1, 1]),
        (4, FOUR, [1.0, 0.5, 2.0, 0.0], [1, 0.5, 2, 0]),
    ],
)
def test_the_formula(
    gamma: float, outputs: int, labels: Tensor, alpha: float | list[float] | None, weights: list
) -> None:
    model = network(outputs)
    own = chances(model)[np.arange(6), labels]
    expected = np.mean(-np.array(weights)[labels] * (1 - own) ** gamma * np.log(own))
    problem = Focal(model=model, gamma=gamma, alpha=alpha)
    loss = problem.loss(named(model), {}, Batch(INPUTS, labels))
    assert float(loss) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("outputs", "labels"), [(1, TWO), (4, FOUR)])
def test_without_focus_it_is_the_risk(outputs: int, labels: Tensor) -> None:
    model = network(outputs)
    batch = Batch(INPUTS, labels)
    found = Focal(model=model, gamma=0).loss(named(model), {}, batch)
    assert float(found) == pytest.approx(
        float(Risk(model=model).loss(named(model), {}, batch)), abs=1e-12
    )


@pytest.mark.parametrize(("outputs", "labels"), [(1, TWO), (4, FOUR)])
@pytest.mark.parametrize("scale", [1e4, 0.0])
def test_extreme_logits_have_a_finite_loss_and_gradient(
    outputs: int, labels: Tensor, scale: float
) -> None:
    problem = Focal(model=network(outputs))
    layout = problem.layout(torch.float64)
    z = scale * layout.flatten(named(problem.model), {}).unsqueeze(0)
    batch = Batch(INPUTS.unsqueeze(0), labels.unsqueeze(0))
    loss, gradient, _ = Oracle(problem, layout).gradient(z, z.new_zeros(1, 0), batch)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("outputs", [1, 4])
def test_stack_is_loop(outputs: int) -> None:
    random = np.random.default_rng(1)
    problem = Focal(model=network(outputs), alpha=[0.5, 1.0] if outputs == 1 else None)
    layout = problem.layout(torch.float64)
    z, carried = torch.from_numpy(random.normal(size=(3, layout.d))), torch.zeros(3, 0)
    labels = torch.from_numpy(random.integers(0, max(outputs, 2), (3, 5)))
    batch = Batch(torch.from_numpy(random.normal(size=(3, 5, 3))), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stacked = Oracle(problem, layout, "stack").gradient(z, carried, batch)
    looped = Oracle(problem, layout, "loop").gradient(z, carried, batch)
    assert torch.allclose(stacked[0], looped[0], atol=1e-12)
    assert torch.allclose(stacked[1], looped[1], atol=1e-12)


@pytest.mark.parametrize("alpha", [1.5, [1.0], [1.0, -1.0]])
def test_bad_weights_are_refused(alpha: float | list[float]) -> None:
    with pytest.raises(ValidationError, match="weight"):
        Focal(model=network(1), alpha=alpha)


def test_training_learns() -> None:
    random = np.random.default_rng(2)
    inputs = random.normal(size=(4, 60, 2)).astype(np.float32)
    data = FederatedData.from_clients([(X, (X[:, 0] > 0).astype(int)) for X in inputs])
    result = fedsaddle.train("focal", data, rounds=10)
    assert result.metrics["test/auc"][-1] > 0.95
    assert result.metrics["train/objective"][-1] < result.metrics["train/objective"][0]
