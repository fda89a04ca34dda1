"""CODA+ and CODASCA: stagewise federated AUC maximisation.

Yuan, Guo, Xu, Ying and Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a
Constant Communication Complexity", ICML 2021, Algorithms 1-4. In saddle-gradient signs, with
z = (v, α), and G^s the saddle gradient of f + (γ/2)‖v − v_s‖², v_s the stage's first iterate:

    for each stage s, with step size η_s:
      c = c_i = 0                                                          (CODASCA)
      for each round of the stage:
        1. I times:  z_i ← z_i − η_s G_i^s(z_i; B)                         (CODA+, Algorithm 2)
                     z_i ← z_i − η_s (G_i^s(z_i; B) − c_i + c)             (CODASCA, Algorithm 4)
        2. c_i ← c_i − c + (z − z_i)/(I η_s);  c ← mean of the c_i         (CODASCA, eq. 6)
        3. z ← mean of the z_i                                             (CODA+)
           z ← z + η_g (mean of the z_i − z)                               (CODASCA)
      the next stage starts from the mean of all local iterates (CODA+)
      or from the iterate of a round drawn uniformly (CODASCA)

When only some clients take part, c moves by (1/N) Σ Δc_i over those that answered, as in SCAFFOLD.
"""

from dataclasses import replace
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

    learning_rate: float = Field(0.5, gt=0, description="step size η of the first stage")
    local_steps: int = Field(10, ge=1, description="I, steps between two communications")
    prox: float = Field(0.002, ge=0, description="γ, pull of the primal to the stage's start")
    stage_rounds: int = Field(25, ge=1, description="rounds of the first stage")
    decay: float = Field(3.0, ge=1, description="every stage divides the step size by this")
    rounds_growth: float = Field(1.0, ge=1, description="every stage multiplies its rounds by this")
    steps_growth: float = Field(1.0, ge=1, description="every stage multiplies I by this")
    output_rule: OutputRule = Field(
        "average",
        description="what a stage hands on: the mean of all its local iterates (average), "
        "the iterate of a random round (random), or its last iterate (last)",
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
        return super().start(z, layout, members) | {"anchor": layout.x(z)}

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
            if at.random("stage output").integers(position) > 0:
                output = state["output"]
        if not self.stages.ends(at.number):
            return state | {"output": output}
        if self.output_rule == "average":
            output = replies.mean("stage_mean")
        return state | {"z": output, "anchor": at.layout.x(output), "output": output}

    def after_round(self, at: Round, state: Vectors) -> Vectors:
        return state  # the output is kept stage by stage, by hand_on


class CODASCA(CODAPlus):
    """CODA+ with control variates on the primal AND the dual variables.

    >>> sorted(CODASCA().phases(3)[0].up)
    ['control_change', 'z']
    """

    name: ClassVar[str] = "codasca"
    paper: ClassVar[str] = "Yuan et al. 2021, Algorithms 3-4"

    global_rate: float = Field(1.0, gt=0, description="η_g, the server's step towards the mean")
    output_rule: OutputRule = Field(
        "random", description="what a stage hands on: as for CODA+; the paper draws a round"
    )

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"control": torch.zeros_like(z)}

    def memory(self) -> dict[str, Size]:
        return super().memory() | {"control": "point"}

    def phases(self, number: int) -> tuple[Phase, ...]:
        (phase,) = super().phases(number)
        down: dict[str, Size] = {**phase.down, "control": "point"}
        up: dict[str, Size] = {**phase.up, "control_change": "point"}
        return (replace(phase, down=down, up=up),)

    def drift(self, received: Vectors, memory: Vectors) -> Tensor | float:
        return received["control"] - memory["control"]

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        reply, kept = super().steps(at, received, memory, client)
        moved = received["z"] - reply["z"]
        change = moved / (self.steps_of(at.number) * self.rate(at.number)) - received["control"]
        return reply | {"control_change": change}, kept | {"control": memory["control"] + change}

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        z = state["z"] + self.global_rate * (replies.mean("z") - state["z"])
        control = state["control"] + replies.sum("control_change") / len(at.members)
        if self.stages.ends(at.number):
            control = torch.zeros_like(control)
        moved = state | {"z": at.layout.project(z), "control": control}
        return self.hand_on(at, moved, replies)
