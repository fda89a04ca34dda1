"""How much a model suffers from an adversary: gradient ascent, and attacks on single rows."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2"]


def ascend(
    value_and_gradient: Callable[[Tensor], tuple[float, Tensor]],
    starts: list[Tensor],
    steps: int = 20,
    rate: float = 1.0,
    project: Callable[[Tensor], Tensor] = lambda y: y,
) -> tuple[float, Tensor]:
    """The largest value that projected gradient ascent finds, and where.

    It sets out from the best of `starts`. A step that does not climb is taken back and half as
    long the next time, so that no result is below that start's value.

    Args:
        value_and_gradient: the function to climb.
        starts: points of the set, one at least.
        steps: how often the function is evaluated after the starts.
        rate: length of the first step, in gradients.
        project: the nearest point of the set.

    >>> parabola = lambda y: (float(-(y - 3).square().sum()), -2 * (y - 3))
    >>> value, y = ascend(parabola, [torch.zeros(1)], steps=20, rate=1.0)
    >>> abs(value) < 1e-9
    True
    """
    tried = [(*value_and_gradient(start), start) for start in starts]
    value, gradient, y = max(tried, key=lambda found: found[0])
    for _ in range(steps):
        candidate = project(y + rate * gradient)
        there, slope = value_and_gradient(candidate)
        if there > value:
            value, gradient, y = there, slope, candidate
        else:
            rate /= 2
    return value, y


def pgd(
    loss: Callable[[Tensor], Tensor],
    inputs: Tensor,
    eps: float,
    steps: int = 10,
    norm: Norm = "linf",
    rate: float | None = None,
    within: tuple[float, float] | None = None,
) -> Tensor:
    """Every row moved by at most `eps` so that its loss grows: projected gradient steps.

    A step goes along the sign of the gradient (ℓ∞) or along the gradient scaled to length one
    (ℓ2), and back to the ball around the row and to the range of the data. It starts at the row
    itself, so that there is no randomness.

    Args:
        loss: a loss of every row, `(n,)`, or their sum.
        inputs: the rows, `(n, ...)`.
        eps: radius of the ball around every row.
        steps: number of steps.
        norm: "linf" or "l2".
        rate: length of a step; 2.5 eps/steps when left out.
        within: lowest and highest value that a number of a row can have, if there are any.

    >>> pgd(lambda a: (a * torch.tensor([1.0, -2.0])).sum(1), torch.zeros(1, 2), 0.1)
    tensor([[ 0.1000, -0.1000]])
    >>> pgd(lambda a: a.sum(1), torch.tensor([[0.95, 0.0]]), 0.1, within=(0, 1))
    tensor([[1.0000, 0.1000]])

    Reference: Madry et al. (2018), Towards deep learning models resistant to adversarial attacks.
    """
    step = 2.5 * eps / max(steps, 1) if rate is None else rate
    moved = torch.zeros_like(inputs)
    for _ in range(steps):
        with torch.enable_grad():
            at = (inputs + moved).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(at).sum(), at)
        if norm == "linf":
            moved = (moved + step * gradient.sign()).clamp(-eps, eps)
        else:
            moved = moved + step * gradient / _length(gradient).clamp(min=1e-30)
            moved = moved * (eps / _length(moved).clamp(min=1e-30)).clamp(max=1)
        if within is not None:  # rows are in the range, so this brings them no farther away
            moved = (inputs + moved).clamp(*within) - inputs
    return inputs + moved


def _length(rows: Tensor) -> Tensor:
    """`(n, 1, …, 1)`: every row's ℓ2 norm."""
    flat: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return flat.reshape(-1, *[1] * (rows.ndim - 1))
