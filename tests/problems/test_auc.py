"""AUC losses against values by hand, all pairs, and a general maximum."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsaddle.data import FederatedData
from fedsaddle.problems import AUC, Batch, CompositionalAUC
from fedsaddle.problems.oracle import Oracle


class Given(nn.Module):
    """The input is the logit: scores can be chosen. The one weight is multiplied in."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def point(a: float, b: float, alpha: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    x = {"scale": 1.0, "a": a, "b": b}
    named = {name: torch.tensor(value, dtype=torch.float64) for name, value in x.items()}
    return named, {"alpha": torch.tensor(alpha, dtype=torch.float64)}


def batch_of(scores: np.ndarray, labels: np.ndarray) -> Batch:
    logits = np.log(scores) - np.log1p(-scores)
    return Batch(torch.from_numpy(logits).unsqueeze(1), torch.from_numpy(labels))


RANDOM = np.random.default_rng(1)
LABELS = np.array([1, 0, 0, 1, 0, 0, 1, 0, 0, 0])
SCORES = RANDOM.uniform(0.05, 0.95, len(LABELS))
P = LABELS.mean()


@pytest.mark.parametrize(
    ("surrogate", "label", "expected"),
    [
        # p = ¼, h = ½, a = 0.1, b = 0.2, α = 0.3, m = 0.8, term by term
        ("square", 1, 0.75 * 0.4**2 + 2 * 1.3 * (-0.75 * 0.5) - 0.1875 * 0.09),
        ("square", 0, 0.25 * 0.3**2 + 2 * 1.3 * (0.25 * 0.5) - 0.1875 * 0.09),
        ("margin", 1, 0.75 * 0.4**2 + 0.6 * (0.1875 * 0.8 - 0.75 * 0.5) - 0.1875 * 0.09),
        ("margin", 0, 0.25 * 0.3**2 + 0.6 * (0.1875 * 0.8 + 0.25 * 0.5) - 0.1875 * 0.09),
    ],
)
def test_one_row_by_hand(surrogate: str, label: int, expected: float) -> None:
    problem = AUC(model=Given(), surrogate=surrogate, margin=0.8, positive_ratio=0.25)
    loss = problem.loss(*point(0.1, 0.2, 0.3), batch_of(np.array([0.5]), np.array([label])))
    assert float(loss) == pytest.approx(expected, abs=1e-15)


def pairs(margin: float) -> float:
    """`E (m − h₊ + h₋)²` over all pairs of a positive and a negative."""
    positive, negative = SCORES[LABELS == 1], SCORES[LABELS == 0]
    return float(np.mean([(margin - h + g) ** 2 for h in positive for g in negative]))


def optimum(margin: float | None) -> tuple[float, float, float]:
    a, b = float(SCORES[LABELS == 1].mean()), float(SCORES[LABELS == 0].mean())
    return a, b, b - a if margin is None else max(margin + b - a, 0.0)


def value(problem: AUC, a: float, b: float, alpha: float) -> float:
    return float(problem.loss(*point(a, b, alpha), batch_of(SCORES, LABELS)))


def test_square_surrogate_is_the_pairwise_square_loss() -> None:
    """min_{a,b} max_α F = p(1−p) (E (1 − h₊ + h₋)² − 1)."""
    problem = AUC(model=Given(), positive_ratio=P)
    expected = P * (1 - P) * (pairs(1.0) - 1)
    assert value(problem, *optimum(None)) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("margin", [0.7, 1.0])
def test_margin_surrogate_is_the_pairwise_margin_loss(margin: float) -> None:
    """Where the margin is not met on average, min max F = p(1−p) E (m − h₊ + h₋)²."""
    a, b, alpha = optimum(margin)
    assert alpha > 0
    problem = AUC(model=Given(), surrogate="margin", margin=margin, positive_ratio=P)
    assert value(problem, a, b, alpha) == pytest.approx(P * (1 - P) * pairs(margin), abs=1e-14)


def test_margin_surrogate_stops_pushing_when_the_margin_is_met() -> None:
    """m + b − a < 0: α = 0, and what is left are the two variances."""
    scores = np.array([0.9, 0.1, 0.15, 0.8, 0.05])
    labels = np.array([1, 0, 0, 1, 0])
    problem = AUC(model=Given(), surrogate="margin", margin=0.3, positive_ratio=0.4)
    total = problem.statistics(point(0, 0, 0)[0], batch_of(scores, labels))
    found = problem.refresh({}, total)
    assert float(found["alpha"]) == 0
    x, y = point(float(found["a"]), float(found["b"]), 0.0)
    spread = scores[labels == 1].var() + scores[labels == 0].var()
    expected = 0.4 * 0.6 * spread
    assert float(problem.loss(x, y, batch_of(scores, labels))) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("margin", [None, 0.9])
def test_closed_form_is_the_saddle_point_in_a_b_alpha(margin: float | None) -> None:
    """From sums of parts of the rows: gradient zero, a minimum in a and b, a maximum in α."""
    kind = {} if margin is None else {"surrogate": "margin", "margin": margin}
    problem = AUC(model=Given(), positive_ratio=P, **kind)
    x0, _ = point(0, 0, 0)
    parts = [slice(0, 3), slice(3, 4), slice(4, None)]
    total = sum(problem.statistics(x0, batch_of(SCORES[s], LABELS[s])) for s in parts)
    found = problem.refresh({}, total)
    a, b, alpha = (float(found[name]) for name in ("a", "b", "alpha"))
    assert (a, b, alpha) == pytest.approx(optimum(margin), abs=1e-14)
    x, y = point(a, b, alpha)
    leaves = [x["a"].requires_grad_(), x["b"].requires_grad_(), y["alpha"].requires_grad_()]
    for slope in torch.autograd.grad(problem.loss(x, y, batch_of(SCORES, LABELS)), leaves):
        assert abs(float(slope)) < 1e-14
    best = value(problem, a, b, alpha)
    for step in (-0.1, 0.1):
        assert value(problem, a + step, b, alpha) > best
        assert value(problem, a, b + step, alpha) > best
        assert value(problem, a, b, alpha + step) < best


def test_closed_form_mode_moves_the_three_out_of_the_point() -> None:
    stepped, closed = (AUC(model=Given(), positive_ratio=P, closed_form=c) for c in (False, True))
    assert (stepped.layout().dx, stepped.layout().dy, stepped.layout().n_carried) == (3, 1, 0)
    assert (closed.layout().dx, closed.layout().dy, closed.layout().n_carried) == (1, 0, 3)
    a, b, alpha = optimum(None)
    x, y = point(a, b, alpha)
    same = closed.loss(x | y, {}, batch_of(SCORES, LABELS))
    assert float(same) == value(stepped, a, b, alpha)
    assert closed.refreshes
    assert not stepped.refreshes


def test_a_class_nobody_holds_keeps_its_value() -> None:
    problem = AUC(model=Given(), positive_ratio=P, closed_form=True)
    before = {name: torch.tensor(v) for name, v in (("a", 0.7), ("b", 0.2), ("alpha", -0.5))}
    x, _ = point(0, 0, 0)
    only = problem.statistics(x, batch_of(np.array([0.4, 0.6]), np.array([0, 0])))
    after = problem.refresh(before, only)
    assert float(after["a"]) == pytest.approx(0.7)
    assert float(after["b"]) == pytest.approx(0.5)
    assert float(after["alpha"]) == pytest.approx(-0.2)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("surrogate", ["square", "margin"])
@pytest.mark.parametrize("kind", [AUC, CompositionalAUC])
def test_one_class_is_finite(kind: type[AUC], surrogate: str, label: int) -> None:
    problem = kind(model=nn.Linear(2, 1), surrogate=surrogate, positive_ratio=0.1)
    layout = problem.layout(torch.float64)
    z = layout.flatten(*problem.start(torch.Generator())).unsqueeze(0)
    inputs = torch.tensor([[[1e3, -2e3], [0.0, 1.0]]], dtype=torch.float64)
    batch = Batch(inputs, torch.full((1, 2), label))
    losses, gradient, _ = Oracle(problem, layout).gradient(z, torch.zeros(1, 0), batch)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


def test_p_is_counted_over_all_clients_unless_given() -> None:
    X = np.zeros((4, 2))
    data = FederatedData.from_clients(
        [(X, [1, 0, 0, 0]), (X, [0, 0, 0, 0]), (X, [1, 1, 1, 1])], test=0, validation=0
    )
    assert AUC(model=nn.Linear(2, 1)).prepare(data).positive_ratio == pytest.approx(5 / 12)
    given = AUC(model=nn.Linear(2, 1), positive_ratio=0.3)
    assert given.prepare(data).positive_ratio == 0.3


def test_only_the_margin_surrogate_keeps_alpha_nonnegative() -> None:
    for surrogate, expected in (("square", -0.5), ("margin", 0.0)):
        problem = AUC(model=Given(), surrogate=surrogate, positive_ratio=P)
        layout = problem.layout(torch.float64)
        z = layout.project(layout.flatten(*point(-0.2, -0.3, -0.5)))
        assert z.tolist() == pytest.approx([1.0, -0.2, -0.3, expected])


# --- compositional --------------------------------------------------------------------------------


def compositional(rho: float) -> tuple[CompositionalAUC, Oracle, Tensor, Batch]:
    problem = CompositionalAUC(model=nn.Linear(3, 1), inner_step=rho, positive_ratio=0.4)
    layout = problem.layout(torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, layout.dx, dtype=torch.float64, generator=generator)
    inputs = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    labels = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0]])
    return problem, Oracle(problem, layout), x, Batch(inputs, labels)


def test_inner_map_is_one_cross_entropy_step_on_the_weights_alone() -> None:
    rho = 0.3
    _, oracle, x, batch = compositional(rho)
    found, _ = oracle.inner(x, torch.zeros(2, 0), batch)
    for client in range(2):
        w, bias = x[client, :3], x[client, 3]
        score = torch.sigmoid(batch.inputs[client] @ w + bias)
        off = score - batch.labels[client]  # ∇ of the cross-entropy by the logit
        slope = torch.cat([(off.unsqueeze(1) * batch.inputs[client]).mean(0), off.mean()[None]])
        expected = torch.cat([x[client, :4] - rho * slope, x[client, 4:]])
        assert torch.allclose(found[client], expected, rtol=0, atol=1e-12)


def test_pullback_is_the_transposed_jacobian_by_finite_differences() -> None:
    _, oracle, x, batch = compositional(0.3)
    nothing = torch.zeros(2, 0)
    v = torch.linspace(-1, 1, 2 * x.shape[1], dtype=torch.float64).reshape(x.shape)
    found = oracle.inner_pullback(x, v, nothing, batch)
    eps = 1e-6
    for k in range(x.shape[1]):
        step = torch.zeros_like(x)
        step[:, k] = eps
        ahead, back = (oracle.inner(x + s, nothing, batch)[0] for s in (step, -step))
        column = (ahead - back) / (2 * eps)  # ∂g/∂x_k
        assert torch.allclose(found[:, k], (column * v).sum(1), rtol=0, atol=1e-8)


def test_without_inner_step_the_map_is_the_identity() -> None:
    _, oracle, x, batch = compositional(0.0)
    assert torch.equal(oracle.inner(x, torch.zeros(2, 0), batch)[0], x)
    assert torch.equal(oracle.inner_pullback(x, 2 * x, torch.zeros(2, 0), batch), 2 * x)


def test_inner_step_of_a_batchnorm_network_is_a_training_step() -> None:
    """Batch statistics in the step, running statistics after it: torch's own in training mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    problem = CompositionalAUC(model=copy.deepcopy(model), inner_step=0.3, positive_ratio=0.4)
    layout = problem.layout(torch.float64)
    x, _ = problem.start(torch.Generator())
    flat = layout.x(layout.flatten(x, {"alpha": torch.zeros(())})).unsqueeze(0)
    carried = layout.flatten_carried(problem.carried()).unsqueeze(0)
    inputs = torch.from_numpy(RANDOM.normal(size=(1, 6, 3)))
    labels = torch.tensor([[1, 0, 0, 1, 0, 1]])
    found, after = Oracle(problem, layout).inner(flat, carried, Batch(inputs, labels))
    own = copy.deepcopy(model).double().train()
    optimiser = torch.optim.SGD(own.parameters(), lr=0.3)
    outputs = own(inputs[0]).squeeze(1)
    nn.functional.binary_cross_entropy_with_logits(outputs, labels[0].double()).backward()
    optimiser.step()
    zero = torch.zeros(1, layout.dy, dtype=torch.float64)
    named, _ = layout.unflatten(torch.cat([found, zero], dim=1)[0], after[0])
    for name, value in own.state_dict().items():
        assert torch.allclose(named[name], value.double(), rtol=0, atol=1e-12), name
