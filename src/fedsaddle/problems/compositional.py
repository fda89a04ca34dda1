"""Compositional AUC maximisation: the AUC of the network that one cross-entropy step would give.

Zhang, Zhang, Yang, Souvenir and Gao, "Federated Compositional Deep AUC Maximization", NeurIPS 2023,
eq. (2)-(4), after Yuan, Guo, Chawla and Yang, "Compositional Training for End-to-End Deep AUC
Maximization", ICLR 2022. With x = (w, a, b) and y = α:

    min_x max_y f(g(x), y),   g(x) = x − ρ [∇_w L_CE(w); 0; 0],   f the AUC loss

and both f and g are means over the clients.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedsaddle.layout import Named
from fedsaddle.problems.auc import AUC
from fedsaddle.problems.base import Batch, Kind


class CompositionalAUC(AUC):
    """Rank positives above negatives, one cross-entropy step ahead of the network.

    `loss` is f, the AUC loss at the point it is given: a method for this kind of problem gives it
    (an estimate of) g(x). Measurements and predictions use w as it is.

    >>> from torch import nn
    >>> CompositionalAUC(model=nn.Linear(2, 1), inner_step=0.5).inner_step
    0.5
    """

    name: ClassVar[str] = "compositional-auc"
    kind: ClassVar[Kind] = "compositional"

    inner_step: float = Field(
        0.1, ge=0, description="ρ, length of the inner cross-entropy step (0: plain AUC)"
    )

    def inner_loss(self, x: Named, batch: Batch) -> Tensor:
        """L_CE, the mean cross-entropy of the network's one output."""
        outputs = self.forward(x, batch.inputs, training=True).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(outputs, batch.labels.to(outputs.dtype))
