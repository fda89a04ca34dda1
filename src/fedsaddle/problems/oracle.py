"""The saddle-gradient oracle: `G(z; B) = (∇x f, −∇y f)` for a stack of clients at once.

Descent on x and ascent on y are then the single step `z − η·G`. The sign is turned here, once.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from fedsaddle.layout import Layout, Named
from fedsaddle.problems.base import Batch, Compositional, Problem, in_use
from fedsaddle.problems.compiled import Program, compiled
from fedsaddle.problems.dropout import KeyedDropout
from fedsaddle.problems.pieces import Field, Form, Parts, Pieces, pieces
from fedsaddle.problems.recorded import Recorded
from fedsaddle.problems.stack import stacked, vmapped

Mode = Literal["stack", "vmap", "loop"]
SMALL = 2**10
"""Numbers of a point up to which one vector is handled faster than its pieces."""
MOST_PROGRAMS = 256
"""Shapes of tensors for which a recorded program is kept."""


class Oracle:
    """Losses and saddle gradients of C clients, each at its own point on its own batch.

    `z` is `(C, d)`, `carried` is `(C, n)`, a batch's tensors are `(C, b, ...)`. In "stack" mode all
    clients run as one grouped network (`Stack`). What cannot be run so falls back to "vmap",
    `torch.vmap` over clients, and then to "loop", one client after another, with the same results
    up to rounding, and says so once. What is run in "stack" and "vmap" mode is recorded, and then
    replayed, for the shapes it is called with; with `compile`, it is compiled for them.
    """

    def __init__(
        self, problem: Problem, layout: Layout, mode: Mode = "stack", compile: bool = False
    ) -> None:
        self.problem, self.layout = problem, layout
        self.mode: Mode = mode
        self.compile = compile
        self.drops = problem.drops
        self._programs: dict[Any, Program] = {}
        self._number = lru_cache(partial(torch.tensor, dtype=layout.dtype, device=layout.device))
        self._no_keys = lru_cache(partial(torch.zeros, dtype=torch.int64, device=layout.device))

    def gradient(self, z: Tensor, carried: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Losses `(C,)`, saddle gradients `(C, d)`, and the carried values after the pass."""
        if self._is_small:
            losses, after, whole = self._run(self._whole_gradient, batch, carried, z)
            return losses, whole, after
        at = pieces(z, self.layout.sizes)
        losses, after, *gradient = self._run(self._gradient, batch, carried, *at)
        return losses, Pieces.of(gradient), after

    def field(self, clients: int) -> Field | None:
        """What steps go along that need not be taken at once: compiled, and nothing is carried."""
        able = self.compile and self.mode != "loop" and not self.layout.n_carried
        return _CompiledField(self, clients) if able and not self._is_small else None

    @property
    def _is_small(self) -> bool:
        """Whether a point is too small to be worth keeping in pieces."""
        return self.layout.d <= SMALL

    def loss(self, z: Tensor, carried: Tensor, batch: Batch) -> Tensor:
        """Losses `(C,)` alone."""
        losses: Tensor = self._run(self._losses, batch, z, carried)[0]
        return losses

    def outcome(self, z: Tensor, carried: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Losses `(C,)`, and outputs `(C, b, ...)` where the problem predicts something."""
        with in_use():
            found: tuple[Tensor, ...] = self._run(self._outcomes, batch, z, carried)
            return found

    def statistics(self, z: Tensor, carried: Tensor, batch: Batch) -> Tensor:
        """The problem's statistics `(C, k)`."""
        sums: Tensor = self._run(self._statistics, batch, z, carried)[0]
        return sums

    def inner(self, x: Tensor, carried: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """`g(x) = x − ρ ∇L(x)`, `(C, dx)`, L the inner loss; and the carried values after it."""
        value, after = self._run(self._inner, batch, x, carried)
        return value, after

    def inner_pullback(self, x: Tensor, v: Tensor, carried: Tensor, batch: Batch) -> Tensor:
        """`∇g(x)ᵀ v = v − ρ ∇²L(x) v`, `(C, dx)`: an exact product, no Hessian is formed."""
        product: Tensor = self._run(self._inner_pullback, batch, x, v, carried)[0]
        return product

    # What follows takes and gives plain tensors, (C, ...) each: the batch's key, its parts, points.

    def _gradient(self, key: Tensor, parts: list[Tensor], carried: Tensor, *z: Tensor) -> Any:
        return self._multiple(1.0, key, parts, carried, *z)

    def _whole_gradient(self, key: Tensor, parts: list[Tensor], carried: Tensor, z: Tensor) -> Any:
        at = z.split_with_sizes(self.layout.sizes, 1)
        losses, after, *gradient = self._multiple(1.0, key, parts, carried, *at)
        return losses, after, torch.cat(gradient, 1)

    def _change(
        self, key: Tensor, parts: list[Tensor], carried: Tensor, length: Tensor, *z: Tensor
    ) -> Any:
        _, _, *change = self._multiple(-length, key, parts, carried, *z)
        return change

    def _multiple(
        self, factor: Any, key: Tensor, parts: list[Tensor], carried: Tensor, *z: Tensor
    ) -> Any:
        """Of the saddle gradients, in pieces."""
        pieces = [piece.detach().requires_grad_() for piece in z]
        losses, after = self._stacked(self._loss_of_pieces, carried, key, *parts, *pieces)
        total, n = losses.sum() * factor, len(self.layout.primal)
        gradient = torch.autograd.grad(total, pieces, materialize_grads=True)
        x, y = gradient[:n], gradient[n:]
        flat = *(piece.flatten(1) for piece in x), *(-piece.flatten(1) for piece in y)
        return losses.detach(), after.detach(), *flat

    def _losses(self, key: Tensor, parts: list[Tensor], z: Tensor, carried: Tensor) -> Any:
        with torch.no_grad():
            losses, _ = self._stacked(self._loss_of_one, z, carried, key, *parts)
        return (losses,)

    def _outcomes(self, key: Tensor, parts: list[Tensor], z: Tensor, carried: Tensor) -> Any:
        with torch.no_grad():
            return self._stacked(self._outcome_of_one, z, carried, key, *parts)

    def _statistics(self, key: Tensor, parts: list[Tensor], z: Tensor, carried: Tensor) -> Any:
        # by vmap even in a stack: a problem may differentiate here, with torch.func
        run = _looped if self.mode == "loop" or len(z) == 1 else vmapped
        with torch.no_grad():
            return (run(self._statistics_of_one, z, carried, *parts),)

    def _inner(self, key: Tensor, parts: list[Tensor], x: Tensor, carried: Tensor) -> Any:
        x = x.detach().requires_grad_()
        losses, after = self._stacked(self._inner_loss_of_one, x, carried, key, *parts)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
        return x.detach() - self._inner_step * gradient, after.detach()

    def _inner_pullback(
        self, key: Tensor, parts: list[Tensor], x: Tensor, v: Tensor, carried: Tensor
    ) -> Any:
        x = x.detach().requires_grad_()
        losses, _ = self._stacked(self._inner_loss_of_one, x, carried, key, *parts)
        (gradient,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(gradient, x, grad_outputs=v)
        return (v - self._inner_step * product,)

    @property
    def _inner_step(self) -> float:
        return cast(Compositional, self.problem).inner_step

    # And these are about one client.

    def _loss_of_one(
        self, z: Tensor, carried: Tensor, key: Tensor, *parts: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._loss_of_pieces(carried, key, *parts, *self.layout.pieces(z))

    def _outcome_of_one(
        self, z: Tensor, carried: Tensor, key: Tensor, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        x, y = self._named(self.layout.pieces(z), carried)
        batch = Batch(*parts)
        outputs = self.problem.predict(x, batch.inputs)
        loss = self.problem.loss(x, y, batch)
        return (loss,) if outputs is None else (loss, outputs)

    def _loss_of_pieces(
        self, carried: Tensor, key: Tensor, *parts_and_pieces: Tensor
    ) -> tuple[Tensor, Tensor]:
        n_pieces = len(self.layout.primal) + len(self.layout.dual)
        parts, pieces = parts_and_pieces[:-n_pieces], parts_and_pieces[-n_pieces:]
        x, y = self._named(pieces, carried)
        with KeyedDropout(key) if self.drops else nullcontext():
            loss = self.problem.loss(x, y, Batch(*parts))
        return loss, self.layout.flatten_carried(x)

    def _inner_loss_of_one(
        self, x: Tensor, carried: Tensor, key: Tensor, *parts: Tensor
    ) -> tuple[Tensor, Tensor]:
        z = torch.cat([x, x.new_zeros(self.layout.dy)])  # the inner loss knows no dual variables
        named, _ = self._named(self.layout.pieces(z), carried)
        with KeyedDropout(key) if self.drops else nullcontext():
            loss = cast(Compositional, self.problem).inner_loss(named, Batch(*parts))
        return loss, self.layout.flatten_carried(named)

    def _statistics_of_one(self, z: Tensor, carried: Tensor, *parts: Tensor) -> Tensor:
        x, _ = self.layout.unflatten(z, carried)
        return self.problem.statistics(x, Batch(*parts))

    def _named(self, pieces: Sequence[Tensor], carried: Tensor) -> tuple[Named, Named]:
        """One point's named tensors, the carried ones cloned: training updates them in place.

        Each has memory of its own, for BatchNorm would update a copy of a strided view.
        """
        x, y = self.layout.named(pieces, carried)
        own = {name: x[name].clone() for name in self.layout.carried}
        return x | own, y

    # How a function of one client is run for all of them.

    def _run(
        self, function: Callable[..., Any], batch: Batch, *points: Tensor, accumulate: int = 0
    ) -> Any:
        """The function's results; with `accumulate`, they are added to the last so many points."""
        key, parts = batch.key, batch.parts
        if key is None:
            key = self._no_keys(points[0].shape[0])
        if self.mode == "loop":
            return function(key, list(parts), *points)
        tensors = [tensor.contiguous() for tensor in (key, *parts, *points)]
        # the shapes of the points follow from the layout
        name = (function.__name__, points[0].shape, *[(p.shape, p.dtype) for p in parts])
        program = self._programs.get(name)
        if program is None:
            if len(self._programs) >= MOST_PROGRAMS and not self.compile:
                del self._programs[next(iter(self._programs))]
            flat = partial(_unpacked, function, len(parts))
            program = self._programs[name] = self._program(flat, tensors, accumulate)
        mode = self.mode
        results = program(*tensors)
        if self.mode != mode:  # what was tried in vain is not to be done again
            self._programs.clear()
        return results

    def _program(self, function: Program, tensors: Sequence[Tensor], accumulate: int) -> Program:
        """The function for such tensors: compiled, or else one that is going to be recorded."""
        if self.compile:
            try:
                return compiled(function, tensors, accumulate)
            except Exception as error:
                warnings.warn(
                    f"{type(self.problem).__name__} cannot be compiled and runs as it is "
                    f"({_first_line(error)})",
                    stacklevel=4,
                )
                self.compile = False
        program = Recorded(function)
        return partial(_added, program, accumulate) if accumulate else program

    def _stacked(self, function: Callable[..., Any], *stacks: Tensor) -> Any:
        """`function` for every client of the stack."""
        if len(stacks[0]) == 1 and not self.compile:
            return _looped(function, *stacks)
        wanted, reason = self.mode, ""
        while True:
            try:
                results = _WAYS[self.mode](function, *stacks)
                break
            except Exception as error:
                if self.mode == "loop":  # a real mistake
                    self.mode = wanted
                    raise
                self.mode, reason = _SIMPLER[self.mode], _first_line(error)
        if self.mode != wanted:
            name = type(self.problem).__name__
            how = {
                "vmap": "run as one grouped network, torch.vmap takes over",
                "loop": "vectorised over clients, running them one by one",
            }[self.mode]
            warnings.warn(f"{name} cannot be {how} ({reason})", stacklevel=2)
        return results


class _CompiledField:
    """The saddle gradients of a stack of clients, and steps against them."""

    def __init__(self, oracle: Oracle, clients: int) -> None:
        layout, self._oracle = oracle.layout, oracle
        self._carried = torch.zeros(clients, 0, dtype=layout.dtype, device=layout.device)
        self.form = Form(clients, layout.sizes, layout.d, layout.dtype, self._carried.device)

    def gradient(self, at: Parts, batch: Batch) -> Parts:
        results = self._oracle._run(self._oracle._gradient, batch, self._carried, *at)
        gradient: Parts = results[2:]
        return gradient

    def descend(self, at: Parts, batch: Batch, length: float) -> None:
        oracle = self._oracle
        points = (self._carried, oracle._number(length), *at)
        oracle._run(oracle._change, batch, *points, accumulate=len(at))


def _added(program: Program, accumulate: int, *tensors: Tensor) -> None:
    torch._foreach_add_(tensors[-accumulate:], program(*tensors))


def _unpacked(function: Callable[..., Any], n_parts: int, key: Tensor, *tensors: Tensor) -> Any:
    return function(key, list(tensors[:n_parts]), *tensors[n_parts:])


def _looped(function: Callable[..., Any], *stacks: Tensor) -> Any:
    results = [function(*row) for row in zip(*stacks, strict=True)]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(column) for column in zip(*results, strict=True))
    return torch.stack(results)


_WAYS: dict[Mode, Callable[..., Any]] = {"stack": stacked, "vmap": vmapped, "loop": _looped}
_SIMPLER: dict[Mode, Mode] = {"stack": "vmap", "vmap": "loop"}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
