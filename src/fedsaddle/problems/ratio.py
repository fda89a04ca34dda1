"""Ratio loss: cross-entropy whose class weights follow how rare the model finds each class.

Wang, Xu, Wang and Zhu, "Addressing Class Imbalance in Federated Learning", AAAI 2021. Their server
holds a small balanced auxiliary set. Each round it takes, for every class j, the update ΔW_j of the
last layer that j's auxiliary rows alone would make, compares for each class c

    1. r_c = |ΔW_c[c]| / |mean over j ≠ c of ΔW_j[c]|      (row c of the last layer, summed)
    2. weight of class c:  1 + β r_c,  β = 0.1

and clients train on the cross-entropy with these weights. A rare class moves its own output much
and is moved little by the others: r_c is large.

What differs here. There is no auxiliary set on the server: its place is taken by the training rows
of the clients that answer, balanced because each class counts by its mean. And of the last layer
the bias is compared, whose update is the mean of `1[j=c] − p_c` over j's rows (p the model's
probabilities), so that

    r_c = (1 − mean of p_c over c's rows) / (mean over j ≠ c of the mean of p_c over j's rows)

needs the outputs only, of any network: sums per class are all that leaves a client. (The authors'
code sums those weights of row c that respond to one class alone; behind a ReLU these are the same
differences, weighted by positive features. It cuts ratios at 5000; with momentum that diverges.)
"""

from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedsaddle.layout import Named
from fedsaddle.problems.base import Batch, DataFacts, Kind
from fedsaddle.problems.risk import Risk


class RatioLoss(Risk):
    """Cross-entropy with class weights `1 + β r_c`, refreshed each round from per-class sums.

    >>> from torch import nn
    >>> problem = RatioLoss(model=nn.Linear(2, 1), n_classes=2)
    >>> total = torch.tensor([90.0, 10.0, 9.0, 1.0, 100.0, 10.0])  # p = 0.1 for every row
    >>> problem.refresh({"class_weights": torch.ones(2)}, total)["class_weights"]
    tensor([1.0111, 1.9000])
    """

    name: ClassVar[str] = "ratio"
    kind: ClassVar[Kind] = "ratio"

    strength: float = Field(0.1, ge=0, description="β, how much a class's ratio adds to its weight")
    max_ratio: float = Field(10.0, gt=0, description="larger ratios are cut to this")
    n_classes: int | None = Field(None, ge=2, description="number of classes; counted if left out")

    def prepare(self, facts: DataFacts) -> Self:
        if self.n_classes is not None:
            return self
        return self.model_copy(update={"n_classes": facts.n_classes})

    @property
    def _classes(self) -> int:
        assert self.n_classes is not None, "call prepare(data) first"
        return self.n_classes

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
        return self._classes * (self._classes + 1)

    @property
    def refreshes(self) -> bool:
        return True

    def statistics(self, x: Named, batch: Batch) -> Tensor:
        """For every class j the sums of all p_c over its rows; then the number of its rows."""
        p = torch.softmax(self._logits(x, batch.inputs, training=False), dim=-1)
        classes = torch.arange(self._classes, device=p.device)
        members = (batch.labels.unsqueeze(-1) == classes).to(p.dtype)
        return torch.cat([(members.T @ p).reshape(-1), members.sum(dim=0)])

    def refresh(self, carried: Named, total: Tensor) -> Named:
        """A class that no answering client holds, or that is alone, keeps its weight."""
        sums, rows = torch.split(total, [self._classes**2, self._classes])
        present = (rows > 0).to(total.dtype)
        means = sums.view(self._classes, -1) / rows.clamp(min=1).unsqueeze(-1)
        own = means.diagonal()
        n_others = present.sum() - present
        others = (means.sum(dim=0) - own) / n_others.clamp(min=1)
        ratio = ((1 - own) / others.clamp(min=1e-12)).clamp(max=self.max_ratio)
        known = (present > 0) & (n_others > 0)
        weights = torch.where(known, 1 + self.strength * ratio, carried["class_weights"])
        return carried | {"class_weights": weights}
