"""What is optimised: `min_x max_y mean_i f_i(x, y)`.

A problem names its variables, gives their start, and the loss of one batch. That is all a user has
to write:

>>> class Quadratic(Problem):
...     def start(self, generator):
...         return {"x": torch.zeros(2)}, {"y": torch.zeros(2)}
...     def loss(self, x, y, batch):
...         target = batch.inputs.mean(0)
...         pull = (x["x"] - target).square().sum()
...         return pull / 2 + x["x"] @ y["y"] - y["y"].square().sum() / 2
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedsaddle.layout import Layout, Named, Projection
from fedsaddle.metrics.generative import Scorer
from fedsaddle.problems.dropout import drops

Kind = Literal["auc", "minimax", "risk", "agnostic", "compositional", "ratio"]
"""auc: a saddle whose dual has a closed form; minimax: any other saddle; risk: no dual;
agnostic: a risk whose dual is the method's, on the server; compositional: a saddle behind an inner
map (`Compositional`); ratio: risk with class weights that follow the model."""


AT_ONCE = 2**18
"""Numbers of input that a network in use is given at once: what it makes of more would not stay in
a processor's cache."""


class _Last(NamedTuple):
    """What a network was given last, and what it gave."""

    x: Named | None = None
    inputs: Tensor | None = None
    outputs: Tensor | None = None


_in_use: ContextVar[_Last | None] = ContextVar("in_use", default=None)


@contextmanager
def in_use() -> Iterator[None]:
    """Within it, a loss is that of the network as it is used, not as it is trained: nothing is
    dropped, and BatchNorm goes by what it has learnt, not by the rows at hand. A loss of rows that
    were just predicted goes by what was predicted."""
    before = _in_use.set(_Last())
    try:
        yield
    finally:
        _in_use.reset(before)


class Batch(NamedTuple):
    """Rows of one client: `inputs (b, ...)`, `labels (b,)`, and noise where a loss needs it.

    `key` is a number that the network's dropout follows from, where it has any.
    """

    inputs: Tensor
    labels: Tensor
    noise: Tensor | None = None
    key: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The rows' tensors that there are, in order."""
        return tuple(part for part in self[:3] if part is not None)


Total = Callable[[Callable[[Batch], Tensor]], Tensor]
"""Adds up a function of a batch over all measured rows, at whichever sites they are."""


class DataFacts(Protocol):
    """What a problem may know of the data: totals over all clients, never rows."""

    @property
    def positive_ratio(self) -> float: ...
    @property
    def n_classes(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def input_range(self) -> tuple[float, float] | None: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def finding_ratios(self) -> tuple[list[float], list[float]]: ...


class Problem(BaseModel):
    """A federated saddle problem; fields of a subclass are its options.

    `x` and `y` are dictionaries of named tensors; what `carried` names is found in `x` too.
    `f_i` is the mean of `loss` over client i's rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: ClassVar[str] = ""
    kind: ClassVar[Kind] = "minimax"
    task: ClassVar[str] = "none"
    best_metric: ClassVar[str | None] = None
    """The metric that picks the best model, where it is measured and no other is asked for."""
    wants_scorer: ClassVar[bool] = False
    """Whether `extra_metrics` needs a classifier that was trained on the data."""

    def start(self, generator: torch.Generator) -> tuple[Named, Named]:
        """The initial primal and dual variables, by name."""
        raise NotImplementedError

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        """The scalar `f(x, y)` on one batch."""
        raise NotImplementedError

    def carried(self) -> Named:
        """Initial values that travel with the point but are not moved by gradients."""
        return {}

    def projections(self) -> Mapping[str, Projection]:
        """Constraint sets, by variable name."""
        return {}

    def prepare(self, facts: DataFacts) -> Self:
        """This problem with what it needs to know of all clients' data filled in."""
        return self

    def predict(self, x: Named, inputs: Tensor) -> Tensor | None:
        """Logits `(n,)` (binary), `(n, classes)`, or None where nothing is predicted."""
        return None

    @property
    def predicts(self) -> bool:
        """Whether `predict` gives anything, so that AUC or accuracy can be measured."""
        return type(self).predict is not Problem.predict

    def statistics(self, x: Named, batch: Batch) -> Tensor:
        """Sums over rows that a client reports before each round, where `refresh` needs them."""
        raise NotImplementedError

    def refresh(self, carried: Named, total: Tensor) -> Named:
        """New carried values from the sum of the clients' statistics."""
        return carried

    @property
    def n_statistics(self) -> int:
        """How many sums `statistics` gives."""
        return 0

    @property
    def refreshes(self) -> bool:
        """Whether every round starts with `statistics` and `refresh`."""
        return False

    @property
    def noise_shape(self) -> tuple[int, ...] | None:
        """The shape of a row's noise, uniform on [−1, 1], where the loss needs any."""
        return None

    @property
    def drops(self) -> bool:
        """Whether the loss has dropout, which a batch's key then decides."""
        return False

    @property
    def extra(self) -> Mapping[str, bool]:
        """Names of metrics of its own, and whether larger is better."""
        return {}

    def extra_metrics(
        self, x: Named, y: Named, total: Total, scorer: Scorer | None
    ) -> dict[str, float]:
        """The metrics that `extra` names, over held-out rows; they are reached by `total` alone."""
        return {}

    def samples(self, x: Named, number: int) -> Tensor | None:
        """So many rows that the model makes up, for a problem that learns to do so."""
        return None

    def layout(self, dtype: torch.dtype = torch.float32) -> Layout:
        """Where each variable sits in the flat vectors."""
        x, y = self.start(torch.Generator().manual_seed(0))
        return Layout(
            primal={name: tuple(value.shape) for name, value in x.items()},
            dual={name: tuple(value.shape) for name, value in y.items()},
            carried={name: tuple(value.shape) for name, value in self.carried().items()},
            projections=self.projections(),
            dtype=dtype,
        )


class Compositional(Protocol):
    """What a problem of kind "compositional" has besides: the loss is taken at `g(x)`, where

    `g(x; B) = x − ρ ∇ inner_loss(x; B)` and ρ is `inner_step`.
    """

    @property
    def inner_step(self) -> float: ...
    def inner_loss(self, x: Named, batch: Batch) -> Tensor: ...


class NetworkProblem(Problem):
    """A problem whose primal variables are the parameters of a network (and what a subclass adds).

    The network's buffers (BatchNorm statistics) are carried.
    """

    model: nn.Module = Field(exclude=True, description="the network to train")

    def start(self, generator: torch.Generator) -> tuple[Named, Named]:
        return {k: v.detach().clone() for k, v in self.model.named_parameters()}, {}

    def carried(self) -> Named:
        return {name: value.detach().clone() for name, value in self.model.named_buffers()}

    @property
    def drops(self) -> bool:
        return drops(self.model)

    def switch(self, training: bool) -> None:
        """The network to training, unless it is `in_use`, or to use."""
        training = training and _in_use.get() is None
        if self.model.training != training:
            self.model.train(training)

    def forward(self, x: Named, inputs: Tensor, training: bool) -> Tensor:
        """The network's outputs with the parameters and buffers found in `x`."""
        last = _in_use.get()
        if last is not None and last.x is x and last.inputs is inputs:
            assert last.outputs is not None
            return last.outputs
        self.switch(training)
        names = (*dict(self.model.named_parameters()), *dict(self.model.named_buffers()))
        weights: Any = {name: x[name] for name in names}
        parts: Sequence[Tensor] = [inputs]
        if not self.model.training and not torch.is_grad_enabled():  # rows do not mind each other
            rows = max(1, AT_ONCE // max(1, math.prod(inputs.shape[1:])))
            parts = inputs.split(rows)  # type: ignore[no-untyped-call]
        several = [torch.func.functional_call(self.model, weights, (part,)) for part in parts]
        outputs: Tensor = several[0] if len(several) == 1 else torch.cat(several)
        if last is not None:
            _in_use.set(_Last(x, inputs, outputs))
        return outputs

    def predict(self, x: Named, inputs: Tensor) -> Tensor | None:
        return self.forward(x, inputs, training=False)
