"""Plain risk and the ratio loss against formulas written out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsaddle.errors import UserError
from fedsaddle.problems import Batch, RatioLoss, Risk
from fedsaddle.problems.oracle import Oracle


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


class Deep(nn.Module):
    """Two layers; whether the features of the last one may be negative depends on `between`."""

    def __init__(self, outputs: int, between: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body, self.between, self.head = nn.Linear(3, 5), between, nn.Linear(5, outputs)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.between(self.body(inputs)))


def updates_by_class(model: Deep, rows: Tensor, labels: Tensor) -> list[np.ndarray]:
    """ΔW_j for each class: row by row `(1[j=c] − p_c) · feature`, averaged, from the definition."""
    updates = []
    for j in range(max(model.head.out_features, 2)):
        found = []
        for row in rows[labels == j]:
            features = model.between(model.body(row)).detach().numpy()
            scores = model(row).detach().numpy()
            scores = np.concatenate([[0.0], scores]) if len(scores) == 1 else scores
            p = np.exp(scores) / np.exp(scores).sum()
            found.append(np.outer((np.arange(len(p)) == j) - p, features))
        updates.append(np.mean(found, axis=0))
    return updates


def ratio_of(updates: list[np.ndarray], c: int) -> float:
    """Step 2 and 3, weight by weight."""
    own, others = updates[c][c], [u[c] for j, u in enumerate(updates) if j != c]
    chosen = [k for k in range(len(own)) if all(abs(u[k]) <= 0.8 * abs(own[k]) for u in others)]
    chosen = chosen or list(range(len(own)))
    mean_of_others = [sum(u[k] for u in others) / len(others) for k in chosen]
    return sum(abs(own[k]) for k in chosen) / sum(abs(value) for value in mean_of_others)


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Tanh()], ids=["positive", "signed"])
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_ratio_is_that_of_the_last_layers_weight_updates(outputs: int, between: nn.Module) -> None:
    model, classes = Deep(outputs, between), max(outputs, 2)
    random = np.random.default_rng(3)
    rows = torch.from_numpy(random.normal(size=(40, 3)))
    labels = torch.from_numpy(random.integers(0, classes, 40))
    problem = RatioLoss(model=model, strength=0.2, max_ratio=1e9, n_classes=classes)
    updates = updates_by_class(model, rows, labels)
    clients = [slice(0, 11), slice(11, 40)]
    total = sum(problem.statistics(named(model), Batch(rows[s], labels[s])) for s in clients)
    assert len(total) == problem.n_statistics
    found = problem.refresh({"class_weights": torch.ones(classes)}, total)["class_weights"]
    expected = [1 + 0.2 * ratio_of(updates, c) for c in range(classes)]
    assert found.tolist() == pytest.approx(expected, rel=1e-10)


def test_auxiliary_rows_are_the_first_of_each_class_at_each_client() -> None:
    model = Deep(3, nn.ReLU())
    problem = RatioLoss(model=model, n_classes=3, auxiliary_rows=2)
    labels = torch.tensor([0, 0, 0, 1, 2, 0, 1, 1, 1, 0])
    rows = torch.from_numpy(np.random.default_rng(4).normal(size=(10, 3)))
    kept = [0, 1, 3, 6, 4]
    found = problem.statistics(named(model), Batch(rows, labels))
    everything = RatioLoss(model=model, n_classes=3, auxiliary_rows=99)
    expected = everything.statistics(named(model), Batch(rows[kept], labels[kept]))
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert found[-3:].tolist() == [2, 2, 1]


def test_statistics_of_stacked_clients_are_those_of_each() -> None:
    model = Deep(3, nn.ReLU())
    problem = RatioLoss(model=model, n_classes=3, auxiliary_rows=2)
    layout = problem.layout(torch.float64)
    random = np.random.default_rng(5)
    z = torch.from_numpy(random.normal(size=(4, layout.d)))
    carried = torch.ones(4, layout.n_carried, dtype=torch.float64)
    batch = Batch(
        torch.from_numpy(random.normal(size=(4, 9, 3))),
        torch.from_numpy(random.integers(0, 3, (4, 9))),
    )
    stack, loop = (Oracle(problem, layout, mode) for mode in ("stack", "loop"))
    one, other = (oracle.statistics(z, carried, batch) for oracle in (stack, loop))
    assert stack.mode == "stack"
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_network_whose_last_layer_is_not_found_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Softplus())
    data = SimpleNamespace(n_classes=4)
    with pytest.raises(UserError, match=r"problem\.last_layer"):
        RatioLoss(model=model).prepare(data)
    with pytest.raises(UserError, match=r"it has 0\.weight, 0\.bias"):
        RatioLoss(model=model, last_layer="head.weight").prepare(data)


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
    always = torch.ones(3, dtype=torch.float64)  # features of 1; p is 0.01 for every row
    total = torch.cat([-1.0 * always, 9.9 * always, torch.tensor([100.0, 10.0])])
    weights = problem.refresh({"class_weights": torch.ones(2).double()}, total)["class_weights"]
    assert weights.tolist() == pytest.approx([1 + 0.1 * 0.01 / 0.99, 1.2])
