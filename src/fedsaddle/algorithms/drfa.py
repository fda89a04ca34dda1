"""DRFA, DRFA-Prox and DRFA-GA: local steps on the worst mixture of the clients.

Deng, Kamani and Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, Algorithms
1, 2 and 3.

    for each round:
      1. m clients are drawn by λ with replacement, t′ uniformly from 1..τ
      2. τ times:  w_i ← Π(w_i − η ∇f_i(w_i; B)); a client sends w_i, and w_i as of step t′
      3. the server takes both means; another, uniform set sends f_i(mean at t′; B)
      4. λ ← Π(λ + τγv), v as in `weights`                                         (DRFA)
         λ ← argmax_u τ g(u) − ‖λ + τγv − u‖²/(2γ), g(u) = −(ρ/2)‖u − 1/N‖²        (DRFA-Prox)
         λ ← Π(λ + γv), v all clients' losses on all rows at the round's first w   (DRFA-GA)
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
from fedsaddle.algorithms.weights import SimplexDual
from fedsaddle.layout import Layout
from fedsaddle.problems import Simplex


class DRFA(SimplexDual):
    """Local steps at clients drawn by λ, and λ moved once a round by a random step's losses.

    `λ ← Π(λ + τγv)`: the losses at a random one of the τ steps stand for all of them. A client
    that is drawn twice takes its steps once and counts twice.

    >>> [(phase.name, len(phase.up)) for phase in DRFA().phases(0)]
    [('steps', 2), ('losses', 1)]
    """

    name: ClassVar[str] = "drfa"
    paper: ClassVar[str] = "Deng et al. 2020, Algorithm 1"

    learning_rate: float = Field(0.2, gt=0, description="step size η of the local steps")
    local_steps: int = Field(10, ge=1, description="τ, steps between two communications")

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"at_step": z}

    def phases(self, number: int) -> tuple[Phase, ...]:
        point: dict[str, Size] = {"z": "point"}
        both: dict[str, Size] = {"z": "point", "at_step": "point"}
        return (
            Phase("steps", point, both, self.steps, self.average, draw=self.client_weights),
            self.loss_phase(everyone=False),
        )

    def loss_phase(self, everyone: bool) -> Phase:
        down: dict[str, Size] = {"at_step": "point"}
        return Phase(
            "losses", down, {"loss": 1}, self.losses, self.ascend, trains=False, everyone=everyone
        )

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z = at_step = received["z"]
        chosen = at.random("step").integers(1, self.local_steps, endpoint=True)  # t′
        for step, batch in enumerate(client.minibatches(self.local_steps), start=1):
            z = at.layout.project(z - self.learning_rate * client.gradient(z, batch))
            at_step = z if step == chosen else at_step
        return {"z": z, "at_step": at_step}, memory

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {"z": replies.mean("z"), "at_step": replies.mean("at_step")}

    def losses(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        (batch,) = client.minibatches(1)
        return {"loss": client.loss(received["at_step"], batch)}, memory

    @property
    def dual_step(self) -> float:
        return self.local_steps * self.dual_rate  # τγ


class DRFAProx(DRFA):
    """DRFA with a regulariser that holds λ near uniform: `g(λ) = −(ρ/2)‖λ − 1/N‖²`.

    `λ ← Π((λ + τγv + τγρ/N)/(1 + τγρ))`, the argmax in closed form (N is the length of λ).

    >>> DRFAProx(regulariser=1.0).regulariser
    1.0
    """

    name: ClassVar[str] = "drfa-prox"
    paper: ClassVar[str] = "Deng et al. 2020, Algorithm 2"

    regulariser: float = Field(0.1, ge=0, description="ρ, the pull of λ to uniform")

    def ascend(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        v, pull = self.loss_estimate(at, replies), self.dual_step * self.regulariser
        moved = (state["lambda"] + self.dual_step * v + pull / len(v)) / (1 + pull)
        return state | {"lambda": Simplex()(moved)}


class DRFAGA(DRFA):
    """DRFA with an exact ascent step: all clients report their losses at the round's first model.

    `λ ← Π(λ + γ∇_λ F(w, λ))`. The losses are asked for last, so that clients are drawn by the λ
    that the round began with.

    >>> [(phase.name, phase.everyone) for phase in DRFAGA().phases(0)]
    [('steps', False), ('losses', True)]
    """

    name: ClassVar[str] = "drfa-ga"
    paper: ClassVar[str] = "Deng et al. 2020, Algorithm 3"

    def phases(self, number: int) -> tuple[Phase, ...]:
        point: dict[str, Size] = {"z": "point"}
        return (
            Phase("steps", point, point, self.steps, self.average, draw=self.client_weights),
            self.loss_phase(everyone=True),
        )

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {"z": replies.mean("z"), "at_step": state["z"]}

    def losses(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        return {"loss": client.full_loss(received["at_step"])}, memory

    @property
    def dual_step(self) -> float:
        return self.dual_rate
