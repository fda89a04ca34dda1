"""Plain risk: cross-entropy, the baseline that minimax problems are compared with."""

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from fedsaddle.layout import Named
from fedsaddle.problems.base import Batch, Kind, NetworkProblem


class Risk(NetworkProblem):
    """Mean cross-entropy; a network with one output is binary, with k outputs multi-class."""

    name: ClassVar[str] = "risk"
    kind: ClassVar[Kind] = "risk"

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        outputs = self.forward(x, batch.inputs, training=True)
        if outputs.shape[-1] == 1:
            return functional.binary_cross_entropy_with_logits(
                outputs.squeeze(-1), batch.labels.to(outputs.dtype)
            )
        return functional.cross_entropy(outputs, batch.labels)

    def predict(self, x: Named, inputs: Tensor) -> Tensor | None:
        outputs = self.forward(x, inputs, training=False)
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs
