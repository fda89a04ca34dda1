"""The saddle-gradient oracle: `G(z; B) = (∇x f, −∇y f)` for a stack of clients at once.

Descent on x and ascent on y are then the single step `z − η·G`. The sign is turned here, once.
"""

import warnings
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor

from fedsaddle.layout import Layout, Named
from fedsaddle.problems.base import Batch, Compositional, Problem

Mode = Literal["stack", "loop"]


class Oracle:
    """Losses and saddle gradients of C clients, each at its own point on its own batch.

    `z` is `(C, d)`, `carried` is `(C, n)`, a batch's tensors are `(C, b, ...)`. In "stack" mode the
    forward pass runs under `torch.vmap`; a problem that cannot be vectorised falls back to "loop",
    one client after another, with the same results up to rounding, and says so once.
    """

    def __init__(self, problem: Problem, layout: Layout, mode: Mode = "stack") -> None:
        self.problem, self.layout = problem, layout
        self.mode: Mode = mode

    def _named(self, z: Tensor, carried: Tensor) -> tuple[Named, Named]:
        """One point's named tensors, the carried ones cloned: training updates them in place.

        Each has memory of its own, for vmap's BatchNorm would update a copy of a strided view.
        """
        x, y = self.layout.unflatten(z, carried)
        own = {name: x[name].clone() for name in self.layout.carried}
        return x | own, y

    def _loss(self, z: Tensor, carried: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._named(z, carried)
        loss = self.problem.loss(x, y, Batch(*batch))
        return loss, self.layout.flatten_carried(x)

    def _inner_loss(self, x: Tensor, carried: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x, x.new_zeros(self.layout.dy)])  # the inner loss knows no dual variables
        named, _ = self._named(z, carried)
        loss = cast(Compositional, self.problem).inner_loss(named, Batch(*batch))
        return loss, self.layout.flatten_carried(named)

    def _statistics(self, z: Tensor, carried: Tensor, *batch: Tensor) -> Tensor:
        x, _ = self.layout.unflatten(z, carried)
        return self.problem.statistics(x, Batch(*batch))

    def _stacked(self, function: Callable[..., Any], *stacks: Tensor) -> Any:
        """`function` for every client of the stack."""
        if self.mode == "stack" and stacks[0].shape[0] > 1:
            try:
                return torch.vmap(function, randomness="different")(*stacks)
            except RuntimeError as error:
                looped = self._looped(function, *stacks)  # a real mistake raises here, by itself
                warnings.warn(
                    f"{type(self.problem).__name__} cannot be vectorised over clients, "
                    f"running them one by one ({str(error).splitlines()[0]})",
                    stacklevel=2,
                )
                self.mode = "loop"
                return looped
        return self._looped(function, *stacks)

    @staticmethod
    def _looped(function: Callable[..., Any], *stacks: Tensor) -> Any:
        results = [function(*row) for row in zip(*stacks, strict=True)]
        if isinstance(results[0], tuple):
            return tuple(torch.stack(column) for column in zip(*results, strict=True))
        return torch.stack(results)

    def gradient(self, z: Tensor, carried: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Losses `(C,)`, saddle gradients `(C, d)`, and the carried values after the pass."""
        z = z.detach().requires_grad_()
        losses, carried = self._stacked(self._loss, z, carried, *batch.parts)
        (gradient,) = torch.autograd.grad(losses.sum(), z)
        gradient[:, self.layout.dx :].neg_()
        return losses.detach(), gradient, carried.detach()

    def loss(self, z: Tensor, carried: Tensor, batch: Batch) -> Tensor:
        """Losses `(C,)` alone."""
        with torch.no_grad():
            losses, _ = self._stacked(self._loss, z, carried, *batch.parts)
        return torch.as_tensor(losses)

    def statistics(self, z: Tensor, carried: Tensor, batch: Batch) -> Tensor:
        """The problem's statistics `(C, k)`."""
        with torch.no_grad():
            return torch.as_tensor(self._stacked(self._statistics, z, carried, *batch.parts))

    def inner(self, x: Tensor, carried: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """`g(x) = x − ρ ∇L(x)`, `(C, dx)`, L the inner loss; and the carried values after it."""
        x = x.detach().requires_grad_()
        losses, carried = self._stacked(self._inner_loss, x, carried, *batch.parts)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
        return x.detach() - self._inner_step * gradient, carried.detach()

    def inner_pullback(self, x: Tensor, v: Tensor, carried: Tensor, batch: Batch) -> Tensor:
        """`∇g(x)ᵀ v = v − ρ ∇²L(x) v`, `(C, dx)`: an exact product, no Hessian is formed."""
        x = x.detach().requires_grad_()
        losses, _ = self._stacked(self._inner_loss, x, carried, *batch.parts)
        (gradient,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(gradient, x, grad_outputs=v)
        return v - self._inner_step * product

    @property
    def _inner_step(self) -> float:
        return cast(Compositional, self.problem).inner_step
