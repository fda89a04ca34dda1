"""Local descent-ascent steps and averaging.

LocalSGDA, LocalSGDA+: Deng and Mahdavi, "Local Stochastic Gradient Descent Ascent", AISTATS 2021,
Algorithms 1 and 2; with reshuffled local data LocalSGDA is the CDMA paper's CDMA-NC.
Extra Step Local SGD: Beznosikov, Samokhin and Gasnikov, "Distributed Saddle-Point Problems: Lower
Bounds, Optimal and Robust Algorithms", 2020. FedAvg and FedProx, on the same loop: averaging.py.

    for each round:
      1. every client starts from the server's z
      2. K times:  z_i ← Π(z_i − η ⊙ G_i(z_i; B))                                  (LocalSGDA)
                   the same, with G's dual part at (x̃, y_i), x̃ the snapshot          (LocalSGDA+)
                   z½ = Π(z_i − η ⊙ G_i(z_i; B1));  z_i ← Π(z_i − η ⊙ G_i(z½; B2))   (extra step)
      3. the server takes the mean of the z_i
      4. every so many rounds x̃ becomes the mean x                                 (LocalSGDA+)
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import (
    Client,
    Members,
    Phase,
    Replies,
    Round,
    Size,
    Vectors,
)
from fedsaddle.algorithms.parallel import DescentAscent
from fedsaddle.layout import Layout
from fedsaddle.problems import Batch


class LocalSGDA(DescentAscent):
    """K local descent-ascent steps, then a uniform mean.

    >>> LocalSGDA(learning_rate=0.1, local_steps=5).local_steps
    5
    """

    name: ClassVar[str] = "local-sgda"
    paper: ClassVar[str] = "Deng and Mahdavi 2021"

    local_steps: int = Field(10, ge=1, description="K, steps between two communications")

    def phases(self, number: int) -> tuple[Phase, ...]:
        return (Phase("steps", {"z": "point"}, {"z": "point"}, self.steps, self.average),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, eta = received["z"], self.eta(at.layout)
        for batch in client.minibatches(self.local_steps):
            z = at.layout.project(z - eta * self.direction(z, batch, received, client))
        return {"z": z}, memory

    def direction(self, z: Tensor, batch: Batch, received: Vectors, client: Client) -> Tensor:
        """What a local step goes against."""
        return client.gradient(z, batch)

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {"z": replies.mean("z", self.weights(replies))}


class LocalSGDAPlus(LocalSGDA):
    """LocalSGDA whose dual gradient is taken at a snapshot of the primal variables.

    `x ← x − η ∇x F(x, y; B)`, `y ← y + γ ∇y F(x̃, y; B)` on the same minibatch. The snapshot x̃ goes
    to a client once, not every round.

    >>> method = LocalSGDAPlus(snapshot_rounds=3)
    >>> [method.era(number) for number in range(5)]
    [0, 0, 0, 1, 1]
    """

    name: ClassVar[str] = "local-sgda-plus"
    paper: ClassVar[str] = "Deng and Mahdavi 2021, Algorithm 2"

    snapshot_rounds: int = Field(5, ge=1, description="rounds that a primal snapshot x̃ serves")

    def era(self, number: int) -> int:
        return number // self.snapshot_rounds

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"snapshot": layout.x(z)}

    def phases(self, number: int) -> tuple[Phase, ...]:
        down: dict[str, Size] = {"z": "point", "snapshot": "primal"}
        up: dict[str, Size] = {"z": "point"}
        return (Phase("steps", down, up, self.steps, self.average, kept=("snapshot",)),)

    def direction(self, z: Tensor, batch: Batch, received: Vectors, client: Client) -> Tensor:
        layout, y = client.layout, client.layout.y(z)
        snapshot = received["snapshot"].expand(*y.shape[:-1], -1)
        dual = client.gradient(layout.join(snapshot, y), batch, track=False)
        return layout.join(layout.x(client.gradient(z, batch)), layout.y(dual))

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        state = super().average(at, state, replies)
        if self.era(at.number + 1) == self.era(at.number):
            return state
        return state | {"snapshot": at.layout.x(state["z"])}


class ExtraStepLocalSGD(LocalSGDA):
    """Local extragradient steps: look ahead on one minibatch, step from z on another.

    `z½ = z − η ⊙ G(z; B1)`, `z ← z − η ⊙ G(z½; B2)`.

    >>> ExtraStepLocalSGD(local_steps=4).phases(0)[0].name
    'steps'
    """

    name: ClassVar[str] = "extra-step-local-sgd"
    paper: ClassVar[str] = "Beznosikov et al. 2020"

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, eta, project = received["z"], self.eta(at.layout), at.layout.project
        batches = client.minibatches(2 * self.local_steps)
        for first, second in zip(batches, batches, strict=True):
            ahead = project(z - eta * client.gradient(z, first))
            z = project(z - eta * client.gradient(ahead, second))
        return {"z": z}, memory
