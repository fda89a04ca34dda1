"""Fair and agnostic learning: q-FedAvg and AFL.

q-FedAvg: Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR
2020, Algorithm 2, clients selected uniformly.

    for each round, at every client:
      1. F = f_i(w) over all its rows
      2. K local steps of size η from w to w_i;  Δ = (w − w_i)/η
      3. send Δ_i = F^q Δ and h_i = q F^{q−1} ‖Δ‖² + F^q/η
    4. the server: w ← w − Σ Δ_i / Σ h_i

AFL: Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019, Algorithm Stochastic-AFL.

    for each round:
      1. every client sends ∇f_i(w; B) and f_i(w; B)
      2. w ← Π(w − η Σ λ_i ∇f_i);  λ ← Π(λ + γv), v the losses
    the mean of w over the rounds is returned
"""

from typing import ClassVar

from pydantic import Field

from fedsaddle.algorithms.base import (
    Algorithm,
    Client,
    OutputRule,
    Phase,
    Replies,
    Round,
    Size,
    Vectors,
)
from fedsaddle.algorithms.weights import SimplexDual
from fedsaddle.problems.base import Kind

SMALLEST_LOSS = 1e-10
"""q-FedAvg raises losses to the power q − 1, which may be negative."""


class QFedAvg(Algorithm):
    """Averaging in which a client counts the more the larger its loss.

    A step on `Σ f_i^{q+1} / (q+1)`, of a length set by an estimate of its curvature. With q = 0
    it is the plain mean of the clients' models.

    >>> QFedAvg(q=0.5).phases(0)[0].up
    {'change': 'point', 'curvature': 1}
    """

    name: ClassVar[str] = "q-fedavg"
    paper: ClassVar[str] = "Li et al. 2020, Algorithm 2"
    solves: ClassVar[frozenset[Kind]] = frozenset({"risk", "agnostic"})

    learning_rate: float = Field(0.2, gt=0, description="step size η of the local steps")
    local_steps: int = Field(10, ge=1, description="K, steps between two communications")
    q: float = Field(1.0, ge=0, description="how much fairness: 0 is none")

    def phases(self, number: int) -> tuple[Phase, ...]:
        up: dict[str, Size] = {"change": "point", "curvature": 1}
        return (Phase("steps", {"z": "point"}, up, self.steps, self.descend),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, eta, q = received["z"], self.learning_rate, self.q
        loss = client.full_loss(z).clamp(min=SMALLEST_LOSS)
        for batch in client.minibatches(self.local_steps):
            z = at.layout.project(z - eta * client.gradient(z, batch))
        delta = (received["z"] - z) / eta
        norm = delta.square().sum(dim=-1, keepdim=True)
        curvature = q * loss ** (q - 1) * norm + loss**q / eta
        return {"change": loss**q * delta, "curvature": curvature}, memory

    def descend(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        curvature = replies.sum("curvature").clamp(min=1e-30)  # no loss anywhere: stay
        return state | {"z": at.layout.project(state["z"] - replies.sum("change") / curvature)}


class AFL(SimplexDual):
    """One gradient a round, weighted by λ, which climbs towards the clients with large losses.

    `min_w max_λ Σ λ_i f_i(w)`. All clients are meant to take part; when some do not, unbiased
    estimates from those that answer stand in for both sums (see `weights`).

    >>> AFL().phases(0)[0].up
    {'gradient': 'point', 'loss': 1}
    """

    name: ClassVar[str] = "afl"
    paper: ClassVar[str] = "Mohri et al. 2019"

    learning_rate: float = Field(0.5, gt=0, description="step size η on the model")
    output_rule: OutputRule = Field(
        "average", description="what is returned: as for all methods; the paper takes the mean"
    )

    def phases(self, number: int) -> tuple[Phase, ...]:
        up: dict[str, Size] = {"gradient": "point", "loss": 1}
        return (Phase("gradient", {"z": "point"}, up, self.gradient, self.move),)

    def gradient(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z = received["z"]
        (batch,) = client.minibatches(1)
        return {"loss": client.loss(z, batch), "gradient": client.gradient(z, batch)}, memory

    def move(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        gradients = replies.vectors["gradient"]
        weights = self.answered_weights(at, state, replies).to(gradients.dtype)
        z = at.layout.project(state["z"] - self.learning_rate * (weights @ gradients))
        return self.ascend(at, state, replies) | {"z": z}
