"""Focal loss: cross-entropy that attends to the rows the model finds hard.

Lin, Goyal, Girshick, He and Dollár, "Focal Loss for Dense Object Detection", ICCV 2017, eq. (5):

    FL = −α_t (1 − p_t)^γ log p_t,   p_t the probability of the row's own class
"""

from typing import ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn import functional

from fedsaddle.layout import Named
from fedsaddle.problems.base import Batch
from fedsaddle.problems.risk import Risk


class Focal(Risk):
    """Cross-entropy times `(1 − p_t)^γ`; a network with one output is binary.

    With γ = 0 and no weights it is the plain risk.

    >>> from torch import nn
    >>> Focal(model=nn.Linear(2, 1), gamma=1.5).gamma
    1.5
    """

    name: ClassVar[str] = "focal"

    gamma: float = Field(2.0, ge=0, description="γ, how much easy rows are left aside (0: not)")
    alpha: float | list[float] | None = Field(
        None,
        description="α, the positive class's weight (the other's is 1 − α), or a weight per class",
    )

    @field_validator("alpha")
    @classmethod
    def _weights(cls, alpha: float | list[float] | None) -> float | list[float] | None:
        if isinstance(alpha, float) and not 0 <= alpha <= 1:
            raise ValueError("one weight must lie between 0 and 1")
        if isinstance(alpha, list) and (len(alpha) < 2 or min(alpha) < 0):
            raise ValueError("give a weight of 0 or more for each class")
        return alpha

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        outputs = self.forward(x, batch.inputs, training=True)
        labels = batch.labels.long()
        if outputs.shape[-1] == 1:  # log p_t and log(1 − p_t) of the logit, with the label's sign
            signed = outputs.squeeze(-1) * (2 * labels - 1).to(outputs.dtype)
            own, others = functional.logsigmoid(signed), functional.logsigmoid(-signed)
        else:
            logits = torch.log_softmax(outputs, dim=-1)
            own = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            classes = torch.arange(outputs.shape[-1], device=outputs.device)
            mine = labels.unsqueeze(-1) == classes
            others = torch.logsumexp(logits.masked_fill(mine, -torch.inf), dim=-1)
        losses = -torch.exp(self.gamma * others) * own
        return (losses if self.alpha is None else self._weight(labels, losses) * losses).mean()

    def _weight(self, labels: Tensor, like: Tensor) -> Tensor:
        alpha = self.alpha if isinstance(self.alpha, list) else [1 - (self.alpha or 0), self.alpha]
        return torch.tensor(alpha, dtype=like.dtype, device=like.device)[labels]
