"""Plain risk and the ratio loss against formulas written out."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsaddle.problems import Batch, RatioLoss, Risk


def network(outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


def named(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().double() for name, value in model.named_parameters()}


INPUTS = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))


def logits(model: nn.Linear) -> np.ndarray:
    x = named(model)
    return (INPUTS @ x["weight"].T + x["bias"]).numpy()


def test_binary_cross_entropy() -> None:
    model, labels = network(1), torch.tensor([1, 0, 0, 1, 1, 0])
    h = 1 / (1 + np.exp(-logits(model)[:, 0]))
    expected = -np.mean([np.log(s if y else 1 - s) for s, y in zip(h, labels, strict=True)])
    problem = Risk(model=model)
    assert float(problem.loss(named(model), {}, Batch(INPUTS, labels))) == pytest.approx(
        expected, abs=1e-12
    )
    assert torch.allclose(
        problem.predict(named(model), INPUTS), torch.from_numpy(logits(model)[:, 0])
    )


def test_multi_class_cross_entropy() -> None:
    model, labels = network(4), torch.tensor([3, 0, 1, 2, 1, 0])
    scores = np.exp(logits(model))
    chances = scores / scores.sum(1, keepdims=True)
    expected = -np.mean([np.log(chances[row, y]) for row, y in enumerate(labels)])
    problem = Risk(model=model)
    assert float(problem.loss(named(model), {}, Batch(INPUTS, labels))) == pytest.approx(
        expected, abs=1e-12
    )
    assert problem.predict(named(model), INPUTS).shape == (6, 4)


def test_risk_has_no_dual_variable() -> None:
    layout = Risk(model=network(1)).layout()
    assert (layout.dx, layout.dy) == (4, 0)


@pytest.mark.parametrize("label", [0, 1])
def test_extreme_logits_stay_finite(label: int) -> None:
    model = network(1)
    x = {name: 1e4 * value for name, value in named(model).items()}
    loss = Risk(model=model).loss(x, {}, Batch(INPUTS, torch.full((6,), label)))
    assert torch.isfinite(loss)


# --- ratio loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_ratio_is_that_of_the_bias_updates(outputs: int) -> None:
    """r_c = |ΔW_c[c]| / |mean_{j≠c} ΔW_j[c]|, the updates by autograd on each class's rows."""
    classes = max(outputs, 2)
    model = network(outputs)
    labels = torch.tensor([0, 1, classes - 1, 0, 0, 1])
    problem = RatioLoss(model=model, strength=0.2, max_ratio=1e9, n_classes=classes)
    scores = torch.from_numpy(logits(model))
    if outputs == 1:
        scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
    updates = []
    for j in range(classes):
        bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        own = scores[labels == j] + bias
        loss = nn.functional.cross_entropy(own, torch.full((len(own),), j))
        updates.append(-torch.autograd.grad(loss, bias)[0])
    expected = []
    for c in range(classes):
        others = torch.stack([updates[j][c] for j in range(classes) if j != c]).mean()
        expected.append(float(1 + 0.2 * abs(updates[c][c]) / abs(others)))
    parts = [slice(0, 2), slice(2, 6)]
    total = sum(problem.statistics(named(model), Batch(INPUTS[s], labels[s])) for s in parts)
    found = problem.refresh({"class_weights": torch.ones(classes)}, total)["class_weights"]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_class_weights_multiply_the_rows_losses() -> None:
    model, labels = network(1), torch.tensor([1, 0, 0, 1, 0, 0])
    problem = RatioLoss(model=model, n_classes=2)
    weights = torch.tensor([1.5, 4.0], dtype=torch.float64)
    found = problem.loss(named(model) | {"class_weights": weights}, {}, Batch(INPUTS, labels))
    h = 1 / (1 + np.exp(-logits(model)[:, 0]))
    losses = [-np.log(s if y else 1 - s) for s, y in zip(h, labels, strict=True)]
    expected = np.mean([float(weights[y]) * v for v, y in zip(losses, labels, strict=True)])
    assert float(found) == pytest.approx(expected, abs=1e-12)
    plain = Risk(model=model).loss(named(model), {}, Batch(INPUTS, labels))
    ones = problem.loss(
        named(model) | {"class_weights": torch.ones(2).double()}, {}, Batch(INPUTS, labels)
    )
    assert float(ones) == pytest.approx(float(plain), abs=1e-12)


def test_a_missing_class_keeps_its_weight_and_a_large_ratio_is_cut() -> None:
    model = network(1)
    problem = RatioLoss(model=model, strength=0.1, max_ratio=2.0, n_classes=2)
    before = {"class_weights": torch.tensor([1.3, 1.7])}
    only = problem.statistics(named(model), Batch(INPUTS, torch.zeros(6, dtype=torch.int64)))
    assert problem.refresh(before, only)["class_weights"].tolist() == pytest.approx([1.3, 1.7])
    total = torch.tensor([99.0, 1.0, 9.9, 0.1, 100.0, 10.0], dtype=torch.float64)
    weights = problem.refresh({"class_weights": torch.ones(2).double()}, total)["class_weights"]
    assert weights.tolist() == pytest.approx([1 + 0.1 * 0.01 / 0.99, 1.2])
