"""CDMA: cross-device minimax averaging with a global correction of the local steps.

Xie, Zhang, Shen, Liu and Qian, "CDMA: A Practical Cross-Device Federated Learning Algorithm for
General Minimax Problems", AAAI 2023, Algorithms 1-2. The two phases of a round draw their clients
separately. In saddle-gradient signs the paper's (u, v) is one vector u; η_t stands for (η_t, γ_t):

    for each round t:
      1. some clients send their full gradients at the server's z_t; the server takes
         u = mean of the G_i(z_t)                                                   (ONE, or t = 0)
         u ← (1 − α_t) u + mean of the G_i(z_t) − (1 − α_t) G_i(z_{t−1})            (ADA, eq. 2)
      2. others start from z_t and K times:
         z_i ← Π(z_i − η_t ⊙ (G_i(z_i; B) + u − G_i(z_t; B)))                       (eq. 3)
      3. z_{t+1} = mean of the z_i

    η_t = c_η/(t+1)^ρ,  γ_t = c_γ/(t+1)^ρ,  α_t = min(1, c_α/(t+1)^{2ρ})            (ADA)

Without correction (CDMA-NC) this is LocalSGDA. Where α_t = 1, z_{t−1} is sent but needs no work.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import Client, Members, Phase, Replies, Round, Size, Vectors
from fedsaddle.algorithms.parallel import DescentAscent
from fedsaddle.algorithms.schedules import falling
from fedsaddle.layout import Layout
from fedsaddle.problems.base import Kind


class CDMAOne(DescentAscent):
    """Local steps corrected by a gradient that other clients measured at the round's start.

    `z ← z − η ⊙ (G_i(z; B) + u − G_i(z_t; B))` with `u = mean G_j(z_t)`.

    >>> [phase.name for phase in CDMAOne().phases(0)]
    ['correction', 'steps']
    """

    name: ClassVar[str] = "cdma-one"
    paper: ClassVar[str] = "Xie et al. 2023, with α = 1"
    solves: ClassVar[frozenset[Kind]] = frozenset({"auc", "minimax"})

    learning_rate: float = Field(0.3, gt=0, description="step size η on the primal variables")
    local_steps: int = Field(10, ge=1, description="K, steps between two communications")

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"correction": torch.zeros_like(z)}

    def phases(self, number: int) -> tuple[Phase, ...]:
        z: dict[str, Size] = {"z": "point"}
        gradient: dict[str, Size] = {"gradient": "point"}
        corrected: dict[str, Size] = {"z": "point", "correction": "point"}
        return (
            Phase("correction", z, gradient, self.measure, self.correct, trains=False),
            Phase("steps", corrected, z, self.steps, self.average),
        )

    def measure(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        return {"gradient": client.full_gradient(received["z"])}, memory

    def correct(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {"correction": replies.mean("gradient")}

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, start, eta = received["z"], received["z"], self.rates(at)
        for batch in client.minibatches(self.local_steps):
            here, there = client.gradients((z, start), batch)
            z = at.layout.project(z - eta * (here - there + received["correction"]))
        return {"z": z}, memory

    def rates(self, at: Round) -> Tensor:
        """(η_t, γ_t), a number for every variable."""
        return self.eta(at.layout)

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return state | {"z": replies.mean("z")}


class CDMAAda(CDMAOne):
    """CDMA-ONE with falling step sizes and a correction that is a recursive momentum.

    `u ← (1 − α) u + mean (G_i(z_t) − (1 − α) G_i(z_{t−1}))`.

    >>> method = CDMAAda(correction_rate=5, power=0.5)
    >>> [method.alpha(number) for number in (0, 4, 9)]
    [1.0, 1.0, 0.5]
    """

    name: ClassVar[str] = "cdma-ada"
    paper: ClassVar[str] = "Xie et al. 2023"

    learning_rate: float = Field(0.5, gt=0, description="c_η, first step size on the primal")
    correction_rate: float = Field(
        0.95, gt=0, description="c_α, first part of a round's own gradients in the correction"
    )
    power: float = Field(0.2, ge=0, description="ρ, how fast rates fall: t^−ρ, α by t^−2ρ")

    def alpha(self, number: int) -> float:
        """α_t"""
        return min(1.0, falling(self.correction_rate, 2 * self.power, number))

    def rates(self, at: Round) -> Tensor:
        return falling(1.0, self.power, at.number) * self.eta(at.layout)

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"previous": z}

    def phases(self, number: int) -> tuple[Phase, ...]:
        correction, steps = super().phases(number)
        if number == 0:  # u_0 is plain
            return correction, steps
        down: dict[str, Size] = {"z": "point", "previous": "point"}
        return correction._replace(down=down), steps

    def measure(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        kept = 1 - self.alpha(at.number)
        gradient = client.full_gradient(received["z"])
        if at.number > 0 and kept > 0:
            gradient = gradient - kept * client.full_gradient(received["previous"])
        return {"gradient": gradient}, memory

    def correct(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        correction = replies.mean("gradient")
        if at.number > 0:
            correction = (1 - self.alpha(at.number)) * state["correction"] + correction
        return state | {"correction": correction}

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return super().average(at, state, replies) | {"previous": state["z"]}
