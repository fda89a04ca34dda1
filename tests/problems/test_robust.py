"""Robust training against closed forms of a linear network, and its metrics against scipy."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError
from fedsaddle.models import ModelOptions
from fedsaddle.problems import Ball, Batch, Robust
from fedsaddle.problems.oracle import Oracle

RANDOM = np.random.default_rng(0)
INPUTS = torch.from_numpy(RANDOM.normal(size=(12, 3)))
LABELS = torch.from_numpy(RANDOM.integers(0, 4, 12))
Y = torch.from_numpy(RANDOM.normal(size=3))


def linear(outputs: int, **options: object) -> Robust:
    torch.manual_seed(0)
    return Robust(model=nn.Linear(3, outputs), input_shape=[3], **options)


def named(problem: Robust) -> dict[str, Tensor]:
    return {name: value.detach().double() for name, value in problem.model.named_parameters()}


def over(*batches: Batch) -> Callable[[Callable[[Batch], Tensor]], Tensor]:
    return lambda function: torch.stack([function(batch) for batch in batches]).sum(dim=0)


def measure(problem: Robust, *batches: Batch, y: Tensor | None = None) -> dict[str, float]:
    at = {"perturbation": torch.zeros(3).double() if y is None else y}
    return problem.extra_metrics(named(problem), at, over(*batches), None)


def objective(problem: Robust, inputs: Tensor, labels: Tensor, y: np.ndarray) -> float:
    """Written out: the cross-entropy at a + y, less the penalty."""
    weights = named(problem)
    logits = (inputs + torch.from_numpy(y)) @ weights["weight"].T + weights["bias"]
    risk = float(functional.cross_entropy(logits, labels))
    return risk - problem.penalty / 2 * float(np.square(y).sum())


def test_the_loss_is_that_of_shifted_rows_less_the_penalty() -> None:
    problem = linear(4, penalty=0.7)
    found = problem.loss(named(problem), {"perturbation": Y}, Batch(INPUTS, LABELS))
    assert float(found) == pytest.approx(objective(problem, INPUTS, LABELS, Y.numpy()), abs=1e-12)


def test_the_saddle_gradient_by_finite_differences() -> None:
    problem = linear(4, penalty=0.7)
    layout = problem.layout(torch.float64)
    assert (layout.dx, layout.dy) == (16, 3)
    z = layout.flatten(named(problem), {"perturbation": Y}).unsqueeze(0)
    batch = Batch(INPUTS.unsqueeze(0), LABELS.unsqueeze(0))
    oracle, nothing = Oracle(problem, layout), z.new_zeros(1, 0)
    _, gradient, _ = oracle.gradient(z, nothing, batch)
    for i in range(layout.d):
        step = torch.zeros_like(z)
        step[0, i] = 1e-6
        slope = oracle.loss(z + step, nothing, batch) - oracle.loss(z - step, nothing, batch)
        sign = 1 if i < layout.dx else -1
        assert float(gradient[0, i]) == pytest.approx(sign * float(slope) / 2e-6, abs=1e-7)


def test_stack_is_loop() -> None:
    problem = linear(4)
    layout = problem.layout(torch.float64)
    random = np.random.default_rng(1)
    z, carried = torch.from_numpy(random.normal(size=(3, layout.d))), torch.zeros(3, 0)
    inputs = torch.from_numpy(random.normal(size=(3, 5, 3)))
    batch = Batch(inputs, torch.from_numpy(random.integers(0, 4, (3, 5))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stacked = Oracle(problem, layout, "stack").gradient(z, carried, batch)
    looped = Oracle(problem, layout, "loop").gradient(z, carried, batch)
    assert torch.allclose(stacked[0], looped[0], atol=1e-12)
    assert torch.allclose(stacked[1], looped[1], atol=1e-12)


def test_the_radius_is_a_projection() -> None:
    problem = linear(4, penalty=0, radius=0.5)
    layout = problem.layout(torch.float64)
    z = layout.project(layout.flatten(named(problem), {"perturbation": 10 * Y}))
    assert float(layout.y(z).norm()) == pytest.approx(0.5)
    assert problem.projections() == {"perturbation": Ball(0.5)}
    assert linear(4).projections() == {}


def test_an_unbounded_perturbation_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs a bound"):
        linear(4, penalty=0)


def test_robust_loss_is_the_maximum_that_scipy_finds() -> None:
    problem = linear(4, penalty=1.0, ascent_steps=40)
    best = minimize(
        lambda y: -objective(problem, INPUTS, LABELS, y), np.zeros(3), options={"gtol": 1e-9}
    )
    found = measure(problem, Batch(INPUTS, LABELS))["robust_loss"]
    assert found == pytest.approx(-best.fun, abs=1e-6)
    assert found > objective(problem, INPUTS, LABELS, np.zeros(3))


def test_robust_loss_in_a_ball_in_closed_form() -> None:
    """One output, all labels 1: the worst y goes against the weights, as far as it may."""
    problem = linear(1, penalty=0, radius=0.5, ascent_steps=60, ascent_rate=10.0)
    weights = named(problem)
    w = weights["weight"][0]
    logits = INPUTS @ w + weights["bias"] - 0.5 * w.norm()
    expected = float(functional.softplus(-logits).mean())
    ones = torch.ones(12, dtype=torch.int64)
    found = measure(problem, Batch(INPUTS, ones))["robust_loss"]
    assert found == pytest.approx(expected, abs=1e-6)


def test_robust_loss_is_never_below_the_loss_at_the_trained_perturbation() -> None:
    problem = linear(4, penalty=0.01, ascent_steps=0)
    found = measure(problem, Batch(INPUTS, LABELS), y=Y)["robust_loss"]
    expected = max(objective(problem, INPUTS, LABELS, y) for y in (Y.numpy(), np.zeros(3)))
    assert found == pytest.approx(expected, abs=1e-12)


def test_metrics_are_the_same_from_the_sums_of_two_sites() -> None:
    problem = linear(4)
    whole = measure(problem, Batch(INPUTS, LABELS))
    parts = [Batch(INPUTS[s], LABELS[s]) for s in (slice(0, 5), slice(5, 12))]
    assert measure(problem, *parts) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(("norm", "dual_norm"), [("linf", 1), ("l2", 2)])
def test_accuracy_under_attack_of_a_linear_network(norm: str, dual_norm: int) -> None:
    """An attack lowers every row's margin by eps times the weights' dual norm."""
    problem = linear(1, pgd_eps=0.4, pgd_norm=norm, pgd_steps=5)
    weights, labels = named(problem), (LABELS > 1).long()
    w = weights["weight"][0]
    margins = (INPUTS @ w + weights["bias"]) * (2 * labels - 1)
    expected = float((margins - 0.4 * w.norm(p=dual_norm) > 0).double().mean())
    assert measure(problem, Batch(INPUTS, labels))["pgd_accuracy"] == pytest.approx(expected)
    assert expected < float((margins > 0).double().mean())


def test_without_steps_there_is_no_attack() -> None:
    problem = linear(4, pgd_steps=0)
    assert set(problem.extra) == set(measure(problem, Batch(INPUTS, LABELS))) == {"robust_loss"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("cdma-one", {"learning_rate": 0.05, "dual_rate": 0.1, "local_steps": 5}),
        ("local-sgda", {"learning_rate": 0.05, "dual_rate": 0.1, "local_steps": 5}),
    ],
)
def test_training_lowers_the_robust_loss_on_digits(method: str, settings: dict) -> None:
    bunch = load_digits()
    inputs, order = (bunch.data / 8 - 1).astype(np.float32), np.argsort(bunch.target % 5)
    parts = np.array_split(order, 6)
    data = FederatedData.from_clients([(inputs[rows], bunch.target[rows]) for rows in parts])
    result = fedsaddle.train(
        Robust(model=network(), penalty=0.1),
        data,
        ALGORITHMS[method](**settings),
        rounds=20,
        evaluation={"every": 10, "best": "test/robust_loss"},
    )
    losses, attacked = result.metrics["test/robust_loss"], result.metrics["test/pgd_accuracy"]
    assert losses[-1] < 0.7 * losses[0]
    assert attacked[-1] > attacked[0] + 0.2
    assert result.best_round == 20
    assert result.evaluation["summary"]["test/robust_loss"] == losses[-1]
    assert (result.metrics["test/accuracy"] >= attacked).all()
    assert result.y["perturbation"].shape == (64,)
    assert float(result.y["perturbation"].norm()) > 0


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def test_pictures_have_a_picture_as_perturbation() -> None:
    clients = [(RANDOM.normal(size=(10, 1, 4, 4)).astype(np.float32), [0, 1] * 5)] * 2
    data = FederatedData.from_clients(clients)
    result = fedsaddle.train("robust", data, rounds=1, model=ModelOptions(name="mlp"))
    assert result.y["perturbation"].shape == (1, 4, 4)


# --- the range of the data ------------------------------------------------------------------------


def images(high: int = 256) -> FederatedData:
    random = np.random.default_rng(0)
    clients = [
        (random.integers(0, high, (20, 1, 3, 3)).astype(np.uint8), np.arange(20) % 3)
        for _ in range(2)
    ]
    return FederatedData.from_clients(clients)


def test_images_have_a_range_and_tables_have_none() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    assert Robust(model=network).prepare(images()).input_range == (-1.0, 1.0)
    assert Robust(model=network, input_range=(0, 1)).prepare(images()).input_range == (0.0, 1.0)
    table = FederatedData.from_clients([(INPUTS.float(), LABELS)] * 2)
    assert Robust(model=nn.Linear(3, 4)).prepare(table).input_range is None
    with pytest.raises(UserError, match=r"problem\.input_range"):
        Robust(model=nn.Linear(3, 4), clip=True).prepare(table)
    with pytest.raises(ValidationError, match="lowest value, then the highest"):
        linear(4, input_range=(1, 0))


def test_clipped_rows_in_the_loss_and_in_robust_loss() -> None:
    """The objective with every number of a + y cut to the range, and the largest found by scipy."""
    inside = (-1.0, 1.0)
    problem = linear(4, penalty=0.3, clip=True, input_range=inside, ascent_steps=200)
    rows = INPUTS.clamp(*inside)

    def clipped(y: np.ndarray) -> float:
        moved = (rows + torch.from_numpy(y)).clamp(*inside)
        at = objective(problem, moved, LABELS, np.zeros(3))
        return at - problem.penalty / 2 * float(np.square(y).sum())

    found = problem.loss(named(problem), {"perturbation": Y}, Batch(rows, LABELS))
    assert float(found) == pytest.approx(clipped(Y.numpy()), abs=1e-12)
    starts = [np.zeros(3), *RANDOM.normal(size=(20, 3))]
    best = max(-minimize(lambda y: -clipped(y), s, method="Nelder-Mead").fun for s in starts)
    metric = measure(problem, Batch(rows[:5], LABELS[:5]), Batch(rows[5:], LABELS[5:]))
    assert clipped(np.zeros(3)) < metric["robust_loss"] <= best + 1e-6


def test_pgd_accuracy_is_of_rows_within_the_range() -> None:
    """Pixels at the edge cannot be pushed out: an attack that needs to is withstood."""
    model = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(-1.0)
        model.bias.fill_(1.05)  # positive below 1.05: only rows outside the range are called 0
    rows, labels = torch.tensor([[1.0], [0.9]]).double(), torch.tensor([1, 1])
    accuracies = {}
    for within in (None, (-1.0, 1.0)):
        problem = Robust(model=model, input_shape=[1], input_range=within, pgd_eps=0.2)
        at = {"perturbation": torch.zeros(1).double()}
        metrics = problem.extra_metrics(named(problem), at, over(Batch(rows, labels)), None)
        accuracies[within] = metrics["pgd_accuracy"]
    assert accuracies == {None: 0.0, (-1.0, 1.0): 1.0}


def test_a_clipped_run_from_start_to_end() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    result = fedsaddle.train(Robust(model=network, clip=True), images(), "local-sgda", rounds=3)
    assert 0 <= result.history[-1]["test/pgd_accuracy"] <= 1
