"""CODA+: stagewise federated AUC maximisation.

Yuan, Guo, Xu, Ying and Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a
Constant Communication Complexity", ICML 2021, Algorithms 1-2 (codasca.py has 3-4). In
saddle-gradient signs, with z = (v, α), and G^s the saddle gradient of f + (γ/2)‖v − v_s‖², v_s the
stage's first iterate:

    for each stage s, with step size η_s:
      for each round of the stage:
        1. I times:  z_i ← z_i − η_s G_i^s(z_i; B)
        2. z ← mean of the z_i
      the next stage starts from the mean of all local iterates
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import (
    Algorithm,
    Client,
    Members,
    OutputRule,
    Phase,
    Replies,
    Round,
    Size,
    Vectors,
)
from fedsaddle.algorithms.schedules import Stages
from fedsaddle.layout import Layout


class CODAPlus(Algorithm):
    """Stages of local steps on a proximal subproblem, averaged every I steps.

    >>> method = CODAPlus(learning_rate=0.9, stage_rounds=10, decay=3)
    >>> [method.rate(number) for number in (0, 9, 10)]
    [0.9, 0.9, 0.3]
    """

    name: ClassVar[str] = "coda-plus"
    paper: ClassVar[str] = "Yuan et al. 2021, Algorithms 1-2"

    learning_rate: float = Field(0.8, gt=0, description="step size η of the first stage")
    local_steps: int = Field(10, ge=1, description="I, steps between two communications")
    prox: float = Field(0.002, ge=0, description="γ, pull of the primal to the stage's start")
    stage_rounds: int = Field(25, ge=1, description="rounds of the first stage")
    decay: float = Field(3.0, ge=1, description="every stage divides the step size by this")
    rounds_growth: float = Field(1.0, ge=1, description="every stage multiplies its rounds by this")
    steps_growth: float = Field(1.0, ge=1, description="every stage multiplies I by this")
    output_rule: OutputRule = Field(
        "average",
        description="what a stage hands on: the mean of all its local iterates (average), the "
        "iterate of a random round (random), or its last iterate (last); a run that ends within "
        "a stage returns its last iterate",
    )

    @property
    def stages(self) -> Stages:
        return Stages(self.stage_rounds, self.rounds_growth)

    def era(self, number: int) -> int:
        return self.stages.stage(number)

    def rate(self, number: int) -> float:
        """η_s"""
        return self.learning_rate / self.decay ** self.stages.stage(number)

    def steps_of(self, number: int) -> int:
        """I_s"""
        return round(self.local_steps * self.steps_growth ** self.stages.stage(number))

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        pick = {"pick": z} if self.output_rule == "random" else {}
        return super().start(z, layout, members) | {"anchor": layout.x(z)} | pick

    def memory(self) -> dict[str, Size]:
        if self.output_rule == "average":
            return {"iterate_sum": "point", "iterate_count": 1}
        return {}

    def phases(self, number: int) -> tuple[Phase, ...]:
        down: dict[str, Size] = {"z": "point"}
        if self.prox > 0 and not self.stages.begins(number):  # in a stage's first round it is z
            down["anchor"] = "primal"
        up: dict[str, Size] = {"z": "point"}
        if self.output_rule == "average" and self.stages.ends(number):
            up["stage_mean"] = "point"
        return (Phase("steps", down, up, self.steps, self.average, kept=("anchor",)),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        layout, z = at.layout, received["z"]
        center = layout.join(received.get("anchor", layout.x(z)), layout.y(z))
        gamma = layout.on_parts(self.prox, 0.0)
        eta = self.rate(at.number)
        drift = self.drift(received, memory)
        iterate_sum: Tensor | float = memory.get("iterate_sum", 0.0)
        for batch in client.minibatches(self.steps_of(at.number)):
            gradient = client.gradient(z, batch) + gamma * (z - center)
            z = layout.project(z - eta * (gradient + drift))
            if self.output_rule == "average":
                iterate_sum = iterate_sum + z
        if self.output_rule != "average":
            return {"z": z}, memory
        count = memory["iterate_count"] + self.steps_of(at.number)
        sums = {"iterate_sum": torch.as_tensor(iterate_sum), "iterate_count": count}
        return {"z": z, "stage_mean": iterate_sum / count}, memory | sums

    def drift(self, received: Vectors, memory: Vectors) -> Tensor | float:
        """What is added to every local gradient against client drift: nothing in CODA+."""
        return 0.0

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        return self.hand_on(at, state | {"z": replies.mean("z")}, replies)

    def hand_on(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        """Note the stage's output so far; at the stage's end it becomes the next one's start."""
        output = state["z"]
        if self.output_rule == "random":  # round r of the stage replaces the pick w.p. 1/r
            position = self.stages.position(at.number)
            if at.random("stage output").integers(position) == 0:
                state = state | {"pick": output}
        if not self.stages.ends(at.number):
            return state | {"output": output}
        if self.output_rule == "average":
            output = replies.mean("stage_mean")
        elif self.output_rule == "random":
            output = state["pick"]
        return state | {"z": output, "anchor": at.layout.x(output), "output": output}

    def after_round(self, at: Round, state: Vectors) -> Vectors:
        return state  # the output is kept stage by stage, by hand_on
