"""CODASCA: CODA+ with control variates.

Yuan, Guo, Xu, Ying and Yang, "Federated Deep AUC Maximization for Heterogeneous Data with a
Constant Communication Complexity", ICML 2021, Algorithms 3-4. With z and G^s as in coda_plus.py:

    for each stage s, with step size η_s:
      c = c_i = 0
      for each round of the stage:
        1. I times:  z_i ← z_i − η_s (G_i^s(z_i; B) − c_i + c)
        2. c_i ← c_i − c + (z − z_i)/(I η_s);  c ← mean of the c_i         (eq. 6)
        3. z ← z + η_g (mean of the z_i − z)
      the next stage starts from the iterate of a round drawn uniformly

When only some clients take part, c moves by (1/N) Σ Δc_i over those that answered, as in SCAFFOLD.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms import control
from fedsaddle.algorithms.base import (
    Client,
    Members,
    OutputRule,
    Phase,
    Replies,
    Round,
    Size,
    Vectors,
)
from fedsaddle.algorithms.coda_plus import CODAPlus
from fedsaddle.layout import Layout


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
        return (phase._replace(down=down, up=up),)

    def drift(self, received: Vectors, memory: Vectors) -> Tensor | float:
        return control.drift(received, memory)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        reply, kept = super().steps(at, received, memory, client)
        travel = self.steps_of(at.number) * self.rate(at.number)
        change = control.change(received, reply["z"], travel)
        return reply | {"control_change": change}, kept | {"control": memory["control"] + change}

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        z = state["z"] + self.global_rate * (replies.mean("z") - state["z"])
        new_control = control.moved(at, state, replies)
        if self.stages.ends(at.number):
            new_control = torch.zeros_like(new_control)
        moved = state | {"z": at.layout.project(z), "control": new_control}
        return self.hand_on(at, moved, replies)
