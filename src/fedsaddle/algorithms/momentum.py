"""Local steps with momentum, model and momentum averaged.

LocalSGDM: Yu, Jin and Yang, "On the Linear Speedup Analysis of Communication Efficient Momentum
SGD", ICML 2019, Algorithm 1; LocalSGDM_RL is its run on the ratio loss in the LocalSCGDAM paper.
LocalSGDAM: Sharma, Panda, Joshi and Varshney, "Federated Minimax Optimization: Improved Convergence
Analyses and Algorithms", ICML 2022, in the form of the LocalSCGDAM paper (compositional.py), whose
u and v are one vector m = (u, −v) in saddle-gradient signs. γ and β differ on x and y:

    each client, in the first round only:  m ← G_i(z; B)
    for each round:
      1. every client starts from the server's z and m
      2. K times:  m ← μ m + ∇f_i(w; B);  w ← w − η m                              (LocalSGDM)
                   z ← Π(z − η γ ⊙ m);  m ← (1 − ηβ) ⊙ m + ηβ ⊙ G_i(z; B)          (LocalSGDAM)
      3. the server takes the means of the z_i and of the m_i

A LocalSGDAM step moves first and then measures, so its first round draws K + 1 minibatches.
"""

from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedsaddle.algorithms.base import (
    Algorithm,
    Client,
    Members,
    Phase,
    Replies,
    Round,
    Size,
    Vectors,
)
from fedsaddle.layout import Layout
from fedsaddle.problems.base import Kind


class Momentum(Algorithm):
    """What the momentum methods share: z and m go down, come up, and are averaged."""

    local_steps: int = Field(10, ge=1, description="K, steps between two communications")

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"momentum": torch.zeros_like(z)}

    def phases(self, number: int) -> tuple[Phase, ...]:
        vectors: dict[str, Size] = {"z": "point", "momentum": "point"}
        return (Phase("steps", vectors, vectors, self.steps, self.average),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        raise NotImplementedError

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {name: replies.mean(name) for name in replies.vectors if name != "carried"}


class LocalSGDM(Momentum):
    """Momentum SGD on each client, model and momentum averaged.

    `m ← μ m + ∇f_i(w; B)`, `w ← w − η m`.

    >>> sorted(LocalSGDM().phases(0)[0].up)
    ['momentum', 'z']
    """

    name: ClassVar[str] = "local-sgdm"
    paper: ClassVar[str] = "Yu et al. 2019"
    solves: ClassVar[frozenset[Kind]] = frozenset({"risk"})

    learning_rate: float = Field(0.05, gt=0, description="step size η")
    momentum: float = Field(0.9, ge=0, lt=1, description="μ, what is kept of the momentum")

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, m = received["z"], received["momentum"]
        for batch in client.minibatches(self.local_steps):
            m = self.momentum * m + client.gradient(z, batch)
            z = at.layout.project(z - self.learning_rate * m)
        return {"z": z, "momentum": m}, memory


class LocalSGDMRL(LocalSGDM):
    """LocalSGDM on the ratio loss, which weighs rare classes up.

    The method is LocalSGDM; the weights are the problem's (`problems.RatioLoss`).

    >>> LocalSGDMRL.solves
    frozenset({'ratio'})
    """

    name: ClassVar[str] = "local-sgdm-rl"
    paper: ClassVar[str] = "Wang et al. 2021; Yu et al. 2019"
    solves: ClassVar[frozenset[Kind]] = frozenset({"ratio"})


class LocalSGDAM(Momentum):
    """Descent-ascent along a moving average of the saddle gradients, averaged with the point.

    `z ← z − ηγ ⊙ m`, then `m ← (1 − ηβ) ⊙ m + ηβ ⊙ G(z; B)` at the new point.

    >>> gamma, beta = LocalSGDAM(primal_rate=2, dual_rate=1).rates(Layout({"x": (1,)}, {"y": (1,)}))
    >>> gamma.tolist() == torch.tensor([0.2, 0.1]).tolist()
    True
    """

    name: ClassVar[str] = "local-sgdam"
    paper: ClassVar[str] = "Sharma et al. 2022"
    solves: ClassVar[frozenset[Kind]] = frozenset({"auc", "minimax"})

    learning_rate: float = Field(0.1, gt=0, description="η, common factor of all rates below")
    primal_rate: float = Field(6.0, gt=0, description="γ_x, step size on the primal over η")
    dual_rate: float = Field(1.0, gt=0, description="γ_y, step size on the dual over η")
    primal_momentum: float = Field(
        3.0, gt=0, description="β_x, the new gradient's part in the primal momentum over η"
    )
    dual_momentum: float = Field(
        3.0, gt=0, description="β_y, the new gradient's part in the dual momentum over η"
    )

    @model_validator(mode="after")
    def _shares(self) -> Self:
        """A moving average gives the new value a part of at most 1."""
        for name in self.averaged:
            if (share := getattr(self, name) * self.learning_rate) > 1:
                raise ValueError(f"{name} times learning_rate is {share:g}; at most 1 is wanted")
        return self

    @property
    def averaged(self) -> tuple[str, ...]:
        """The fields that, times η, are a moving average's part."""
        return ("primal_momentum", "dual_momentum")

    def rates(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """ηγ and ηβ, a number for every variable."""
        eta = self.learning_rate
        gamma = layout.on_parts(eta * self.primal_rate, eta * self.dual_rate)
        return gamma, layout.on_parts(eta * self.primal_momentum, eta * self.dual_momentum)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, m = received["z"], received["momentum"]
        gamma, beta = self.rates(at.layout)
        first = at.number == 0
        batches = client.minibatches(self.local_steps + first)
        if first:
            m = client.gradient(z, next(batches))
        for batch in batches:
            z = at.layout.project(z - gamma * m)
            m = (1 - beta) * m + beta * client.gradient(z, batch)
        return {"z": z, "momentum": m}, memory
