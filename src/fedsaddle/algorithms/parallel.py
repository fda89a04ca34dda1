"""Gradient descent-ascent without local steps.

Lin, Jin and Jordan, "On Gradient Descent Ascent for Nonconvex-Concave Minimax Problems", ICML 2020,
Algorithm 2, its minibatch spread over the clients; the CODA papers' naive parallel algorithm (NPA).

    for each round:
      1. every client sends G_i(z; B) at the server's z
      2. z ← Π(z − η ⊙ mean of the G_i(z; B))
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Client, Phase, Replies, Round, Vectors
from fedsaddle.layout import Layout


class DescentAscent(Algorithm):
    """Fields of the methods with one step size for the primal and one for the dual variables."""

    learning_rate: float = Field(0.2, gt=0, description="step size η on the primal variables")
    dual_rate: float | None = Field(
        None, gt=0, description="step size on the dual variables; as learning_rate when left out"
    )

    def eta(self, layout: Layout) -> Tensor:
        """η, a number for every variable."""
        return layout.on_parts(self.learning_rate, self.dual_rate or self.learning_rate)


class ParallelSGDA(DescentAscent):
    """One gradient from every client, one step on the server.

    `z ← z − η ⊙ mean G_i(z; B)`; with `batch_size` 0 the gradient is over all of a client's rows.

    >>> ParallelSGDA().phases(0)[0].name
    'gradient'
    """

    name: ClassVar[str] = "parallel-sgda"
    paper: ClassVar[str] = "Lin et al. 2020; NPA"

    learning_rate: float = Field(1.0, gt=0, description="step size η on the primal variables")

    def phases(self, number: int) -> tuple[Phase, ...]:
        return (Phase("gradient", {"z": "point"}, {"gradient": "point"}, self.measure, self.step),)

    def measure(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z = received["z"]
        if self.batch_size == 0:  # in passes of bounded size
            return {"gradient": client.full_gradient(z)}, memory
        (batch,) = client.minibatches(1)
        return {"gradient": client.gradient(z, batch)}, memory

    def step(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        z = state["z"] - self.eta(at.layout) * replies.mean("gradient")
        return state | {"z": at.layout.project(z)}
