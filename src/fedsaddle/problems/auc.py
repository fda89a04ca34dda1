"""AUC maximisation as a saddle problem.

Ying, Wen and Lyu (2016); the federated form is CODASCA eq. (2) (Yuan et al., ICML 2021); the margin
form is AUCM (Yuan et al., ICCV 2021). `h` is the sigmoid of the network's one output, `p`
the share of positives among ALL clients' rows: the same number at every client.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from fedsaddle.layout import Named, Projection
from fedsaddle.problems.base import Batch, DataFacts, Kind, NetworkProblem
from fedsaddle.problems.projections import Nonnegative

UNTRAINED = 0.5
"""The score of a network that knows nothing: where a and b start. From 0 they would first pull all
scores down to themselves, which, with few positives in the first rounds, ends in a flat sigmoid."""


class AUC(NetworkProblem):
    """Rank positives above negatives.

    square: `F = (1−p)(h−a)²1₊ + p(h−b)²1₋ + 2(1+α)(p·h·1₋ − (1−p)·h·1₊) − p(1−p)α²`;
    margin: the cross term is `2α(p(1−p)m + p·h·1₋ − (1−p)·h·1₊)` with `α ≥ 0`.

    With `closed_form`, a, b and α are not stepped but set each round to their optimum given the
    scores, `a = E[h|+]`, `b = E[h|−]`, `α = b − a` (square) or `[m + b − a]₊` (margin), from four
    sums per client. This is stable where a client's own prevalence is far from `p`.
    """

    name: ClassVar[str] = "auc"
    kind: ClassVar[Kind] = "auc"
    task: ClassVar[str] = "binary"

    surrogate: Literal["square", "margin"] = Field(
        "square", description="square: CODASCA eq. (2); margin: AUCM with α ≥ 0"
    )
    margin: float = Field(1.0, gt=0, description="m of the margin surrogate")
    closed_form: bool = Field(
        False, description="set a, b, α each round from four sums per client instead of stepping"
    )
    positive_ratio: float | None = Field(
        None, gt=0, lt=1, description="p; counted over all clients when left out"
    )

    def prepare(self, facts: DataFacts) -> Self:
        if self.positive_ratio is not None:
            return self
        return self.model_copy(update={"positive_ratio": facts.positive_ratio})

    def start(self, generator: torch.Generator) -> tuple[Named, Named]:
        x, _ = super().start(generator)
        if self.closed_form:
            return x, {}
        means = {name: torch.tensor(UNTRAINED) for name in ("a", "b")}
        return x | means, {"alpha": torch.zeros(())}

    def carried(self) -> Named:
        if not self.closed_form:
            return super().carried()
        means = {name: torch.tensor(UNTRAINED) for name in ("a", "b")}
        return super().carried() | means | {"alpha": torch.zeros(())}

    def projections(self) -> Mapping[str, Projection]:
        if self.closed_form or self.surrogate == "square":
            return {}
        return {"alpha": Nonnegative()}

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        assert self.positive_ratio is not None, "call prepare(data) first"
        p = self.positive_ratio
        a, b = x["a"], x["b"]
        alpha = x["alpha"] if self.closed_form else y["alpha"]
        h = torch.sigmoid(self.forward(x, batch.inputs, training=True).squeeze(-1))
        positive = batch.labels.to(h.dtype)
        negative = 1 - positive
        spread = (1 - p) * (h - a).square() * positive + p * (h - b).square() * negative
        gap = p * h * negative - (1 - p) * h * positive
        if self.surrogate == "square":
            cross = 2 * (1 + alpha) * gap
        else:
            cross = 2 * alpha * (p * (1 - p) * self.margin + gap)
        return (spread + cross).mean() - p * (1 - p) * alpha.square()

    def predict(self, x: Named, inputs: Tensor) -> Tensor | None:
        return self.forward(x, inputs, training=False).squeeze(-1)

    @property
    def n_statistics(self) -> int:
        return 4

    @property
    def refreshes(self) -> bool:
        return self.closed_form

    def statistics(self, x: Named, batch: Batch) -> Tensor:
        """Four sums: of the scores and the number of the positives, then of the negatives."""
        h = torch.sigmoid(self.forward(x, batch.inputs, training=False).squeeze(-1))
        positive = batch.labels.to(h.dtype)
        negative = 1 - positive
        return torch.stack(
            [(h * positive).sum(), positive.sum(), (h * negative).sum(), negative.sum()]
        )

    def refresh(self, carried: Named, total: Tensor) -> Named:
        """a, b, α at their optimum; a class that no answering client holds keeps its value."""
        sum_positive, n_positive, sum_negative, n_negative = total
        a = sum_positive / n_positive if n_positive > 0 else carried["a"]
        b = sum_negative / n_negative if n_negative > 0 else carried["b"]
        alpha = b - a if self.surrogate == "square" else (self.margin + b - a).clamp(min=0)
        return carried | {"a": a, "b": b, "alpha": alpha}
