"""Ratio loss: cross-entropy whose class weights follow how rare the model finds each class.

Wang, Xu, Wang and Zhu, "Addressing Class Imbalance in Federated Learning", AAAI 2021. Their server
holds a small auxiliary set with equally many rows of every class. Each round, at the new model,

    1. ΔW_j, for every class j: the update of the last layer's weights that j's auxiliary rows alone
       would make, −∇_W of their mean cross-entropy
    2. S_c, for every class c: those weights k of row c, the one that makes output c, on which c
       stands out: |ΔW_j[c,k]| ≤ 0.8 |ΔW_c[c,k]| for every other class j
    3. r_c = |Σ_{k∈S_c} ΔW_c[c,k]| / |Σ_{k∈S_c} mean over j ≠ c of ΔW_j[c,k]|
    4. the weight of class c in the cross-entropy:  α + β r_c,  α = 1, β = 0.1

A rare class moves its own output much and is moved little by the others: r_c is large. (Steps 2
and 3 are spelled out by the authors' code only; their ratio of a single weight is the paper's Ra.
The paper estimates from ΔW_j also how many rows of each class were trained on, to decide whether
the loss is called for; here choosing the problem decides that.)

What differs here:

- No rows leave a client, so the auxiliary set is spread over them: the first few rows of each class
  among a client's training rows (of every pass over them, if there are too many for one), which
  remain training rows. It sends their summed gradients by class; the server adds up those of the
  clients that answer, and each class counts by its mean, whoever lacks it.
- Sums in 3 are of absolute values, so that features of either sign do not cancel; behind a ReLU
  that is the same.
- Where no weight stands out (common for the frequent one of two classes), S_c is the whole row; the
  authors set r_c = 10 there. Ratios are cut at 10, the authors' not: with momentum that diverges.
"""

from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedsaddle.errors import UserError
from fedsaddle.layout import Named
from fedsaddle.problems.base import Batch, DataFacts, Kind
from fedsaddle.problems.risk import Risk

STANDS_OUT = 0.8
"""What the other classes' updates of a weight may be of a class's own."""


class RatioLoss(Risk):
    """Cross-entropy with class weights `1 + β r_c`, refreshed each round from per-class sums.

    >>> from torch import nn
    >>> problem = RatioLoss(model=nn.Linear(1, 1), n_classes=2)
    >>> updates = [100 * (0 - 0.1), 10 * (1 - 0.1)]  # every row's feature is 1, its p is 0.1
    >>> total = torch.tensor([*updates, 100, 10])
    >>> problem.refresh({"class_weights": torch.ones(2)}, total)["class_weights"]
    tensor([1.0111, 1.9000])
    """

    name: ClassVar[str] = "ratio"
    kind: ClassVar[Kind] = "ratio"

    strength: float = Field(0.1, ge=0, description="β, how much a class's ratio adds to its weight")
    max_ratio: float = Field(10.0, gt=0, description="larger ratios are cut to this")
    auxiliary_rows: int = Field(
        16, ge=1, description="rows of each class that a client sets aside to measure the ratios on"
    )
    last_layer: str | None = Field(
        None, description="name of the last layer's weights in the network; found if left out"
    )
    n_classes: int | None = Field(None, ge=2, description="number of classes; counted if left out")

    def prepare(self, facts: DataFacts) -> Self:
        n_classes = self.n_classes or facts.n_classes
        prepared = self.model_copy(update={"n_classes": n_classes})
        return prepared.model_copy(update={"last_layer": prepared._last_layer})

    @property
    def _classes(self) -> int:
        assert self.n_classes is not None, "call prepare(data) first"
        return self.n_classes

    @property
    def _last_layer(self) -> str:
        """The name of the last weights with a row per output."""
        weights = dict(self.model.named_parameters())
        if self.last_layer is not None:
            if self.last_layer in weights:
                return self.last_layer
            raise UserError(
                f"problem.last_layer is {self.last_layer!r}, which the network does not have; "
                f"it has {', '.join(weights)}"
            )
        outputs = {self._classes} | ({1} if self._classes == 2 else set())
        for name, value in reversed(weights.items()):
            if value.ndim > 1 and value.shape[0] in outputs:
                return name
        raise UserError(
            "the ratio loss compares updates of the last layer's weights, and the network has no "
            "weights with a row per output; name them in problem.last_layer"
        )

    @property
    def _weights(self) -> Tensor:
        return self.model.get_parameter(self._last_layer)

    def carried(self) -> Named:
        return super().carried() | {"class_weights": torch.ones(self._classes)}

    def _logits(self, x: Named, inputs: Tensor, training: bool) -> Tensor:
        """One output per class; a network with a single output is given a second one of 0."""
        outputs = self.forward(x, inputs, training)
        if outputs.shape[-1] > 1:
            return outputs
        return torch.cat([torch.zeros_like(outputs), outputs], dim=-1)

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        labels = batch.labels.long()
        logits = self._logits(x, batch.inputs, training=True)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return (x["class_weights"][labels] * losses).mean()

    @property
    def n_statistics(self) -> int:
        return self._classes * (self._weights.numel() + 1)

    @property
    def refreshes(self) -> bool:
        return True

    def statistics(self, x: Named, batch: Batch) -> Tensor:
        """For every class the summed updates of the last layer by its auxiliary rows; then counts.

        The rows are found by sorting, never by a mask, so that a stack of clients has one shape.
        """
        last, classes = self._last_layer, torch.arange(self._classes, device=batch.labels.device)
        members = batch.labels == classes.unsqueeze(-1)
        first = members.long().argsort(dim=-1, descending=True, stable=True)
        first = first[:, : self.auxiliary_rows]
        counted = members.gather(-1, first).to(x[last].dtype)
        inputs = batch.inputs[first.reshape(-1)]
        labels = classes.unsqueeze(-1).expand_as(first).reshape(-1)

        def agreement(weights: Tensor) -> Tensor:
            logits = self._logits(x | {last: weights}, inputs, training=False)
            losses = functional.cross_entropy(logits, labels, reduction="none")
            return -(losses.reshape(counted.shape) * counted).sum(dim=-1)

        updates: Tensor = torch.func.jacrev(agreement)(x[last])  # a class's slope by all weights
        return torch.cat([updates.reshape(-1), counted.sum(dim=-1)])

    def refresh(self, carried: Named, total: Tensor) -> Named:
        """A class of which no answering client has rows, or that is alone, keeps its weight."""
        sums, rows = total[: -self._classes], total[-self._classes :]
        present = rows > 0
        n_others = present.sum() - present.long()
        means = sums.view(self._classes, -1) / rows.clamp(min=1).unsqueeze(-1)
        weights = [
            1 + self.strength * self._ratio(means, c, int(n_others[c]))
            if present[c] and n_others[c] > 0
            else carried["class_weights"][c]
            for c in range(self._classes)
        ]
        return carried | {"class_weights": torch.stack(weights)}

    def _ratio(self, means: Tensor, c: int, n_others: int) -> Tensor:
        """r_c from every class's mean update; that of a class without rows is 0."""
        if self._weights.shape[0] == 1:  # class 0's output is minus the one there is
            row = means if c == 1 else -means
        else:
            row = means.view(self._classes, self._classes, -1)[:, c]
        own = row[c]
        others = torch.cat([row[:c], row[c + 1 :]])
        clear = others.abs().amax(dim=0) <= STANDS_OUT * own.abs()
        clear = clear if clear.any() else torch.ones_like(clear)
        by_others = (others.sum(dim=0) / n_others)[clear].abs().sum()
        return (own[clear].abs().sum() / by_others.clamp(min=1e-12)).clamp(max=self.max_ratio)
