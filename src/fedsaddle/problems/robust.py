"""Training against one perturbation that is added to every row of every client.

Xie et al., "CDMA: A Practical Cross-Device Federated Learning Algorithm for General Minimax
Problems", AAAI 2023, Appendix D.1, after Deng and Mahdavi, "Local Stochastic Gradient Descent
Ascent", AISTATS 2021. With h_x the network and ℓ the cross-entropy:

    min_x max_y mean_i mean_j ℓ(h_x(a_ij + y), b_ij) − (λ/2)‖y‖²,    or ‖y‖₂ ≤ r in place of λ

The papers let a_ij + y leave the range of the data; `clip` keeps it within.
"""

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from fedsaddle.errors import UserError
from fedsaddle.layout import Named, Projection
from fedsaddle.metrics.generative import Scorer
from fedsaddle.metrics.robustness import Norm, ascend, pgd
from fedsaddle.problems.base import Batch, DataFacts, Kind, Total
from fedsaddle.problems.projections import Ball
from fedsaddle.problems.risk import Risk


class Robust(Risk):
    """Cross-entropy under the worst shared perturbation y of the input's shape.

    Two metrics of its own, over held-out rows, all sites' together:

    - `robust_loss`: the objective at the best y that gradient ascent finds for the model, from the
      trained y or from 0;
    - `pgd_accuracy`: the accuracy when every row is attacked by itself, within the range of the
      data (`metrics.robustness.pgd`).
    """

    name: ClassVar[str] = "robust"
    kind: ClassVar[Kind] = "minimax"

    penalty: float = Field(1.0, ge=0, description="λ of the penalty (λ/2)‖y‖²")
    radius: float | None = Field(None, gt=0, description="r, bound on ‖y‖₂ (left out: none)")
    input_shape: list[int] | None = Field(
        None, description="shape of y; that of the data when left out"
    )
    input_range: tuple[float, float] | None = Field(
        None,
        description="lowest and highest value of an input; when left out [−1, 1] for images (their "
        "bytes are scaled so) and none for other data",
    )
    clip: bool = Field(
        False,
        description="cut perturbed rows a + y to the range, in training and in robust_loss (the "
        "attack on single rows always keeps to it)",
    )
    ascent_steps: int = Field(20, ge=0, description="ascent steps on y of the metric robust_loss")
    ascent_rate: float = Field(
        1.0, gt=0, description="first step size of that ascent, halved where it does not climb"
    )
    pgd_eps: float = Field(0.1, ge=0, description="how far the attack on single rows may go")
    pgd_norm: Norm = Field("linf", description="the norm in which it is measured")
    pgd_steps: int = Field(10, ge=0, description="steps of the attack (0: no attack)")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.penalty == 0 and self.radius is None:
            raise ValueError("the perturbation needs a bound: penalty above 0, or a radius")
        if self.input_range is not None and self.input_range[0] >= self.input_range[1]:
            raise ValueError("input_range must be the lowest value, then the highest")
        return self

    def prepare(self, facts: DataFacts) -> Self:
        shape = self.input_shape or list(facts.input_shape)
        within = self.input_range or facts.input_range
        if self.clip and within is None:
            raise UserError(
                "problem.clip: the range of this data is not known; give it as problem.input_range."
            )
        return self.model_copy(update={"input_shape": shape, "input_range": within})

    def start(self, generator: torch.Generator) -> tuple[Named, Named]:
        assert self.input_shape is not None, "call prepare(data) first"
        x, _ = super().start(generator)
        return x, {"perturbation": torch.zeros(self.input_shape)}

    def projections(self) -> Mapping[str, Projection]:
        return {} if self.radius is None else {"perturbation": Ball(self.radius)}

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        perturbation = y["perturbation"]
        risk = super().loss(x, {}, self._perturbed(batch, perturbation))
        return risk - self.penalty / 2 * perturbation.square().sum()

    def _perturbed(self, batch: Batch, perturbation: Tensor) -> Batch:
        inputs = batch.inputs + perturbation
        if self.clip and self.input_range is not None:
            inputs = inputs.clamp(*self.input_range)
        return batch._replace(inputs=inputs)

    @property
    def extra(self) -> Mapping[str, bool]:
        return {"robust_loss": False} | ({"pgd_accuracy": True} if self.pgd_steps else {})

    def extra_metrics(
        self, x: Named, y: Named, total: Total, scorer: Scorer | None
    ) -> dict[str, float]:
        metrics = {"robust_loss": self._robust_loss(x, y["perturbation"], total)}
        if self.pgd_steps:
            correct, rows = total(lambda batch: self._withstood(x, batch))
            metrics["pgd_accuracy"] = float(correct / rows)
        return metrics

    def _robust_loss(self, x: Named, trained: Tensor, total: Total) -> float:
        shape = trained.shape

        def project(flat: Tensor) -> Tensor:
            return flat if self.radius is None else Ball(self.radius)(flat)

        def risk_and_gradient(flat: Tensor) -> tuple[float, Tensor]:
            """Of the mean risk over all rows, from sums; the penalty knows no rows."""

            def sums(batch: Batch) -> Tensor:
                with torch.enable_grad():
                    y = flat.detach().requires_grad_()
                    risk = self._row_losses(x, self._perturbed(batch, y.view(shape))).sum()
                    (gradient,) = torch.autograd.grad(risk, y)
                ends = risk.new_tensor([risk.item(), len(batch.labels)])
                return torch.cat([gradient, ends]).double()

            gathered = total(sums)
            gradient, (risk, rows) = gathered[:-2], gathered[-2:]
            value = risk / rows - self.penalty / 2 * flat.double().square().sum()
            return float(value), (gradient / rows).to(flat.dtype) - self.penalty * flat

        flat = trained.detach().reshape(-1)
        starts = [project(flat), torch.zeros_like(flat)]
        value, _ = ascend(risk_and_gradient, starts, self.ascent_steps, self.ascent_rate, project)
        return value

    def _row_losses(self, x: Named, batch: Batch) -> Tensor:
        """The cross-entropy of every row, of the network as it is used."""
        outputs = self.forward(x, batch.inputs, training=False)
        if outputs.shape[-1] == 1:
            return functional.binary_cross_entropy_with_logits(
                outputs.squeeze(-1), batch.labels.to(outputs.dtype), reduction="none"
            )
        return functional.cross_entropy(outputs, batch.labels, reduction="none")

    def _withstood(self, x: Named, batch: Batch) -> Tensor:
        """How many attacked rows are predicted right, and how many there are."""

        def loss(inputs: Tensor) -> Tensor:
            return self._row_losses(x, batch._replace(inputs=inputs))

        attacked = pgd(
            loss,
            batch.inputs,
            self.pgd_eps,
            self.pgd_steps,
            self.pgd_norm,
            within=self.input_range,
        )
        outputs = self.forward(x, attacked, training=False)
        if outputs.shape[-1] == 1:
            predicted = (outputs.squeeze(-1) > 0).long()
        else:
            predicted = outputs.argmax(dim=-1)
        correct = (predicted == batch.labels).sum()
        return torch.stack([correct, torch.full_like(correct, len(batch.labels))]).double()
