"""Local steps and averaging: FedAvg and LocalSGDA.

FedAvg: McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
LocalSGDA: Deng and Mahdavi, "Local Stochastic Gradient Descent Ascent", AISTATS 2021, Algorithm 1;
with reshuffled local data it is the CDMA paper's CDMA-NC.

    for each round:
      1. every client starts from the server's z
      2. K times:  z_i ← Π(z_i − η ⊙ G_i(z_i; B))
      3. the server takes the mean of the z_i
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Client, Phase, Replies, Round, Vectors


class LocalSGDA(Algorithm):
    """K local descent-ascent steps, then a uniform mean.

    >>> LocalSGDA(learning_rate=0.1, local_steps=5).local_steps
    5
    """

    name: ClassVar[str] = "local-sgda"
    paper: ClassVar[str] = "Deng and Mahdavi 2021"

    learning_rate: float = Field(0.2, gt=0, description="step size η on the primal variables")
    dual_rate: float | None = Field(
        None, gt=0, description="step size on the dual variables; as learning_rate when left out"
    )
    local_steps: int = Field(10, ge=1, description="K, steps between two communications")

    def phases(self, number: int) -> tuple[Phase, ...]:
        return (Phase("steps", {"z": "point"}, {"z": "point"}, self.steps, self.average),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z = received["z"]
        eta = at.layout.on_parts(self.learning_rate, self.dual_rate or self.learning_rate)
        for batch in client.minibatches(self.local_steps):
            z = at.layout.project(z - eta * client.gradient(z, batch))
        return {"z": z}, memory

    def weights(self, replies: Replies) -> Tensor | None:
        return None

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {"z": replies.mean("z", self.weights(replies))}


class FedAvg(LocalSGDA):
    """K local steps, then a mean weighted by the clients' numbers of rows.

    On plain risk this is the paper's method; on a problem with a dual variable the local steps
    descend on x and ascend on y.
    """

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    def weights(self, replies: Replies) -> Tensor | None:
        return replies.rows
