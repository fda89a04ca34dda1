"""Ascent and attacks against problems whose answer is known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsaddle.metrics.robustness import ascend, pgd
from fedsaddle.problems import Ball

Q = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
B = torch.tensor([1.0, -4.0], dtype=torch.float64)
ZERO = torch.zeros(2, dtype=torch.float64)


def concave(y: Tensor) -> tuple[float, Tensor]:
    """`bᵀy − ½ yᵀQy`, largest at `Q⁻¹b`, where it is `½ bᵀQ⁻¹b`."""
    return float(B @ y - y @ Q @ y / 2), B - Q @ y


def test_ascent_finds_the_top_of_a_parabola_with_any_first_step() -> None:
    top = torch.linalg.solve(Q, B)
    for rate in (0.3, 1.0, 1000.0):
        value, y = ascend(concave, [ZERO], steps=80, rate=rate)
        assert value == pytest.approx(float(B @ top) / 2, abs=1e-9)
        assert torch.allclose(y, top, atol=1e-4)


def test_ascent_in_a_ball_stops_at_its_edge() -> None:
    """By a fine search along the circle."""
    ball = Ball(0.5)
    angles = np.linspace(0, 2 * np.pi, 200_001)
    circle = 0.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    values = circle @ B.numpy() - np.einsum("ij,jk,ik->i", circle, Q.numpy(), circle) / 2
    value, y = ascend(concave, [ZERO], steps=80, rate=1.0, project=ball)
    assert value == pytest.approx(values.max(), abs=1e-8)
    assert float(y.norm()) == pytest.approx(0.5)


def test_ascent_starts_from_the_best_start_and_never_falls() -> None:
    starts = [ZERO, torch.linalg.solve(Q, B), torch.full((2,), 5.0, dtype=torch.float64)]
    _, y = ascend(concave, starts, steps=0)
    assert torch.equal(y, starts[1])
    values = [ascend(concave, [ZERO], steps=steps, rate=3.0)[0] for steps in range(12)]
    assert values == sorted(values)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_on_a_linear_loss_goes_as_far_as_it_may(norm: str) -> None:
    random = np.random.default_rng(0)
    w = torch.from_numpy(random.normal(size=(3, 2)))
    rows = torch.from_numpy(random.normal(size=(5, 3, 2)))
    moved = pgd(lambda a: (a * w).sum(dim=(1, 2)), rows, 0.3, 7, norm) - rows
    expected = 0.3 * (w.sign() if norm == "linf" else w / w.norm())
    assert torch.allclose(moved, expected.expand_as(moved), atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_stays_in_the_ball_and_raises_every_rows_loss(norm: str) -> None:
    random = np.random.default_rng(1)
    rows = torch.from_numpy(random.normal(size=(20, 3)))
    mixing = torch.from_numpy(random.normal(size=(3, 4)))

    def loss(a: Tensor) -> Tensor:
        return torch.logsumexp(a @ mixing, dim=1)

    attacked = pgd(loss, rows, 0.2, 10, norm)
    lengths = torch.linalg.vector_norm(
        attacked - rows, ord=torch.inf if norm == "linf" else 2, dim=1
    )
    assert float(lengths.max()) <= 0.2 + 1e-12
    assert (loss(attacked) > loss(rows)).all()
    assert torch.equal(pgd(loss, rows, 0.2, 0, norm), rows)
    assert torch.allclose(pgd(loss, rows, 0.0, 5, norm), rows)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_flat_loss_moves_nothing(norm: str) -> None:
    rows = torch.zeros(2, 3)
    assert torch.equal(pgd(lambda a: 0 * a.sum(dim=1), rows, 0.1, 3, norm), rows)


def test_an_attack_works_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        attacked = pgd(lambda a: a.sum(dim=1), torch.zeros(1, 2), 0.1)
    assert torch.allclose(attacked, torch.full((1, 2), 0.1))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_keeps_to_the_range_of_the_data(norm: str) -> None:
    """On a linear loss with ℓ∞ the best within ball and range is known coordinate by coordinate."""
    random = np.random.default_rng(2)
    w = torch.from_numpy(random.normal(size=6))
    rows = torch.from_numpy(random.uniform(0, 1, size=(9, 6)))
    found = pgd(lambda a: a @ w, rows, 0.3, 20, norm, within=(0.0, 1.0))
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    free = pgd(lambda a: a @ w, rows, 0.3, 20, norm)
    assert not ((free >= 0) & (free <= 1)).all()
    if norm == "linf":
        assert torch.allclose(found, (rows + 0.3 * w.sign()).clamp(0, 1), atol=1e-12)
    else:
        assert float((found - rows).norm(dim=1).max()) <= 0.3 + 1e-12
        assert ((found @ w) > (rows @ w)).all()
