"""LocalSCGDAM: compositional descent-ascent with momentum.

Zhang, Zhang, Yang, Souvenir and Gao, "Federated Compositional Deep AUC Maximization", NeurIPS 2023,
Algorithm 1, for min_x max_y f(g(x), y) where f and g are both means over the clients. h estimates
g(x); u and v are one vector m = (u, −v) in saddle-gradient signs, γ and β differ on x and y:

    G̃(x, y, h; ξ, ζ) = (∇g_i(x; ξ)ᵀ ∇_h f_i(h, y; ζ), −∇_y f_i(h, y; ζ))
    each client, in the first round only:  h ← g_i(x; ξ);  m ← G̃(x, y, h; ξ, ζ)
    for each round:
      1. every client starts from the server's z, m and h
      2. K times:  z ← Π(z − η γ ⊙ m)
      3.           h ← (1 − ηα) h + ηα g_i(x; ξ)
      4.           m ← (1 − ηβ) ⊙ m + ηβ ⊙ G̃(x, y, h; ξ, ζ)
      5. the server takes the means of the z_i, m_i and h_i

ξ and ζ are samples of the two levels' own distributions: two streams of minibatches, drawn
independently. The outer stream ζ is the one that LocalSGDAM draws, so with ρ = 0 (g is the
identity) and ηα = 1 (h is x) the two methods take the very same steps.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import Client, Members, Phase, Round, Size, Vectors
from fedsaddle.algorithms.momentum import LocalSGDAM
from fedsaddle.layout import Layout
from fedsaddle.problems import Batch
from fedsaddle.problems.base import Kind


class LocalSCGDAM(LocalSGDAM):
    """LocalSGDAM for a loss behind an inner map, which is tracked by a moving average.

    `h ← (1 − ηα) h + ηα g(x; ξ)` takes the place of x in the loss, and the inner map's Jacobian
    pulls the gradient back to x.

    >>> sorted(LocalSCGDAM().phases(0)[0].up.items())
    [('inner', 'primal'), ('momentum', 'point'), ('z', 'point')]
    """

    name: ClassVar[str] = "local-scgdam"
    paper: ClassVar[str] = "Zhang et al. 2023, Algorithm 1"
    solves: ClassVar[frozenset[Kind]] = frozenset({"compositional"})

    inner_rate: float = Field(
        9.0, gt=0, description="α, the new value's part in the inner estimate over η"
    )

    @property
    def averaged(self) -> tuple[str, ...]:
        return (*super().averaged, "inner_rate")

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"inner": layout.x(z)}

    def phases(self, number: int) -> tuple[Phase, ...]:
        vectors: dict[str, Size] = {"z": "point", "momentum": "point", "inner": "primal"}
        return (Phase("steps", vectors, vectors, self.steps, self.average),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        layout, (gamma, beta) = at.layout, self.rates(at.layout)
        alpha = self.learning_rate * self.inner_rate
        z, m, h = received["z"], received["momentum"], received["inner"]
        first = at.number == 0
        count = self.local_steps + first
        samples = zip(client.minibatches(count, "inner"), client.minibatches(count), strict=True)
        if first:
            xi, zeta = next(samples)
            h = client.inner(layout.x(z), xi)
            m = self.gradient(z, h, xi, zeta, client)
        for xi, zeta in samples:
            z = layout.project(z - gamma * m)
            h = (1 - alpha) * h + alpha * client.inner(layout.x(z), xi)
            m = (1 - beta) * m + beta * self.gradient(z, h, xi, zeta, client)
        return {"z": z, "momentum": m, "inner": h}, memory

    def gradient(self, z: Tensor, h: Tensor, xi: Batch, zeta: Batch, client: Client) -> Tensor:
        """G̃, the stochastic compositional saddle gradient."""
        layout = client.layout
        outer = client.gradient(layout.join(h, layout.y(z).expand(len(h), -1)), zeta)
        return layout.join(client.inner_pullback(layout.x(z), layout.x(outer), xi), layout.y(outer))
