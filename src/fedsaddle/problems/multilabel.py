"""AUC of several findings at once: one network with an output per finding.

The CODASCA paper's chest X-rays (Yuan et al., ICML 2021, Section 6) have several findings each. The
loss is the mean over the findings k of the AUC loss of Ying, Wen and Lyu (2016), over the rows
whose finding is known (1 or 0; any other value, such as −1, is unknown). With h_k the sigmoid
of output k, p_k the share of positives among the known, m_k the mask and q_k the share of known:

    f = mean_k mean_j (m_jk/q_k) · F(h_k, a_k, b_k, α_k; p_k)

As a mean over rows it may be taken in parts; p and q are the same numbers at every client.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedsaddle.errors import UserError
from fedsaddle.layout import Named, Projection
from fedsaddle.problems.base import Batch, DataFacts, NetworkProblem
from fedsaddle.problems.projections import Nonnegative


class MultilabelAUC(NetworkProblem):
    """Rank positives above negatives for every finding; labels are `(n, k)`.

    x is the network with a_k and b_k, y is α_k. Metrics: `auc_<finding>`, of all sites together
    and of each, and `mean_auc` over the findings that have both classes.

    >>> from torch import nn
    >>> problem = MultilabelAUC(model=nn.Linear(4, 2), findings=["edema", "effusion"],
    ...                         positive_ratios=[0.1, 0.3])
    >>> list(problem.start(torch.Generator())[0])
    ['weight', 'bias', 'a', 'b']
    """

    name: ClassVar[str] = "multilabel-auc"
    task: ClassVar[str] = "multilabel"
    best_metric: ClassVar[str | None] = "validation/mean_auc"

    findings: list[str] = Field(
        [], description="names of the findings, in the order of the outputs; the data's by default"
    )
    surrogate: Literal["square", "margin"] = Field(
        "square", description="square: CODASCA eq. (2); margin: AUCM with α ≥ 0"
    )
    margin: float = Field(1.0, gt=0, description="m of the margin surrogate")
    positive_ratios: list[float] | None = Field(
        None, description="p_k of every finding; counted over all clients when left out"
    )
    known_ratios: list[float] | None = Field(
        None, description="q_k, share of rows where the finding is known; counted when left out"
    )

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(set(self.findings)) != len(self.findings):
            raise ValueError("two findings have the same name")
        for ratios in (self.positive_ratios, self.known_ratios):
            if ratios is not None and len(ratios) != len(self.findings):
                raise ValueError("give one ratio per finding")
        if any(not 0 < p < 1 for p in self.positive_ratios or ()):
            raise ValueError("every positive ratio must lie between 0 and 1")
        if any(not 0 < q <= 1 for q in self.known_ratios or ()):
            raise ValueError("every known ratio must be above 0 and at most 1")
        return self

    def prepare(self, facts: DataFacts) -> Self:
        findings = self.findings or list(facts.classes)
        if tuple(findings) != tuple(facts.classes):
            raise UserError(
                f"problem.findings: {', '.join(findings)} were given, "
                f"but the data have {', '.join(facts.classes)}."
            )
        positive, known = facts.finding_ratios
        for finding, p in zip(findings, self.positive_ratios or positive, strict=True):
            if not 0 < p < 1:
                raise UserError(
                    f"problem '{self.name}' needs training rows with and without every finding; "
                    f"of '{finding}' there are not both."
                )
        counted = {
            "findings": findings,
            "positive_ratios": self.positive_ratios or positive,
            "known_ratios": self.known_ratios or known,
        }
        return self.model_copy(update=counted)

    def start(self, generator: torch.Generator) -> tuple[Named, Named]:
        x, _ = super().start(generator)
        zeros = torch.zeros(len(self.findings))
        return x | {"a": zeros, "b": zeros.clone()}, {"alpha": zeros.clone()}

    def projections(self) -> Mapping[str, Projection]:
        return {"alpha": Nonnegative()} if self.surrogate == "margin" else {}

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        h = torch.sigmoid(self.forward(x, batch.inputs, training=True))
        assert self.positive_ratios is not None, "give positive_ratios, or call prepare(data) first"
        p = h.new_tensor(self.positive_ratios)
        q = h.new_tensor(self.known_ratios or [1.0] * len(self.findings))
        positive, negative = (batch.labels == 1).to(h.dtype), (batch.labels == 0).to(h.dtype)
        a, b, alpha = x["a"], x["b"], y["alpha"]
        spread = (1 - p) * (h - a).square() * positive + p * (h - b).square() * negative
        gap = p * h * negative - (1 - p) * h * positive
        if self.surrogate == "square":
            cross = 2 * (1 + alpha) * gap
        else:
            cross = 2 * alpha * (p * (1 - p) * self.margin * (positive + negative) + gap)
        concave = p * (1 - p) * alpha.square() * (positive + negative)
        return ((spread + cross - concave) / q).mean()
