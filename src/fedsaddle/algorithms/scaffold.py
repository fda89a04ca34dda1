"""SCAFFOLD: federated averaging corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1 with option II.

    for each round:
      1. every client starts from the server's w
      2. K times:  w_i ← w_i − η (∇f_i(w_i; B) − c_i + c)
      3. c_i ← c_i − c + (w − w_i)/(Kη)
      4. w ← w + η_g (mean of the w_i − w);  c ← c + (1/N) Σ Δc_i
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms import control
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


class SCAFFOLD(Algorithm):
    """K local steps, each corrected by the difference of the server's and the client's control.

    `w_i ← w_i − η (∇f_i(w_i; B) − c_i + c)`: were the controls exact gradients, every client would
    step along the mean gradient, however different its data.

    >>> (phase,) = SCAFFOLD().phases(0)
    >>> sorted(phase.down), sorted(phase.up)
    (['control', 'z'], ['control_change', 'z'])
    """

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al. 2020, Algorithm 1"
    solves: ClassVar[frozenset[Kind]] = frozenset({"risk"})

    learning_rate: float = Field(0.2, gt=0, description="step size η of the local steps")
    global_rate: float = Field(1.0, gt=0, description="η_g, the server's step towards the mean")
    local_steps: int = Field(10, ge=1, description="K, steps between two communications")

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        return super().start(z, layout, members) | {"control": torch.zeros_like(z)}

    def memory(self) -> dict[str, Size]:
        return {"control": "point"}

    def phases(self, number: int) -> tuple[Phase, ...]:
        down: dict[str, Size] = {"z": "point", "control": "point"}
        up: dict[str, Size] = {"z": "point", "control_change": "point"}
        return (Phase("steps", down, up, self.steps, self.average),)

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, drift = received["z"], control.drift(received, memory)
        for batch in client.minibatches(self.local_steps):
            z = at.layout.project(z - self.learning_rate * (client.gradient(z, batch) + drift))
        change = control.change(received, z, self.local_steps * self.learning_rate)
        return {"z": z, "control_change": change}, {"control": memory["control"] + change}

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        z = state["z"] + self.global_rate * (replies.mean("z") - state["z"])
        moved = control.moved(at, state, replies)
        return state | {"z": at.layout.project(z), "control": moved}
