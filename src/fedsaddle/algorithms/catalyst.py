"""Catalyst-Scaffold-S: corrected local steps on a sequence of proximal subproblems.

Hou, Thekumparampil, Fanti and Oh, "Efficient Algorithms for Federated Saddle Point Optimization",
2021, as the CDMA paper runs it on a part of the clients. With H_i(z; B) = G_i(z; B) + θ (z − c) the
saddle gradient of f_i + (θ/2)‖x − c_x‖² − (θ/2)‖y − c_y‖² about a centre c, on x and y alike:

    for each round:
      1. the drawn clients send their full gradients at z; the server takes
         u = mean of the H_i(z) = mean of the G_i(z) + θ (z − c)
      2. the same clients start from z and take T steps:
         z_i ← Π(z_i − η_l (H_i(z_i; B) + u − H_i(z; B)))
      3. z ← Π(z + (η_g/η_l) (mean of the z_i − z));  with η_g = η_l the plain mean
      4. every T_0 local steps:  c ← z

The paper flips a coin after every step and communicates with probability 1/K: T is geometric with
mean K, one draw a round that all clients share. The centre cancels in H_i(z_i) − H_i(z) and reaches
the clients within u only: nothing more is sent. z is sent in the first exchange and kept for the
second, so a round costs 2d each way.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

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


class CatalystScaffoldS(Algorithm):
    """A random number of corrected local steps, pulled to a centre that follows slowly.

    `z ← z − η_l (G_i(z; B) − G_i(z_old; B) + θ (z − z_old) + u)`.

    >>> first, second = CatalystScaffoldS().phases(0)
    >>> second.name, second.draw_key == first.draw_key
    ('steps', True)
    """

    name: ClassVar[str] = "catalyst-scaffold-s"
    paper: ClassVar[str] = "Hou et al. 2021"
    solves: ClassVar[frozenset[Kind]] = frozenset({"auc", "minimax"})

    learning_rate: float = Field(0.3, gt=0, description="η_l, step size of the local steps")
    global_rate: float | None = Field(
        None, gt=0, description="η_g; as learning_rate when left out: the server takes the mean"
    )
    prox: float = Field(0.01, ge=0, description="θ, pull of all variables to the centre")
    local_steps: int = Field(10, ge=1, description="K, mean number of steps a round")
    center_steps: int = Field(200, ge=1, description="T_0, local steps between moves of the centre")

    def era(self, number: int) -> int:
        return number  # z is kept from one phase to the next, not longer

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        own = {"correction": torch.zeros_like(z), "center": z, "steps_taken": z.new_zeros(1)}
        return super().start(z, layout, members) | own

    def phases(self, number: int) -> tuple[Phase, ...]:
        z: dict[str, Size] = {"z": "point"}
        up: dict[str, Size] = {"gradient": "point"}
        down: dict[str, Size] = {"z": "point", "correction": "point"}
        measure = Phase("correction", z, up, self.measure, self.correct, ("z",), trains=False)
        steps = Phase("steps", down, z, self.steps, self.average, ("z",), drawn_as="correction")
        return measure, steps

    def measure(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        return {"gradient": client.full_gradient(received["z"])}, memory

    def correct(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        pull = self.prox * (state["z"] - state["center"])
        return state | {"correction": replies.mean("gradient") + pull}

    def steps_of(self, at: Round) -> int:
        """T, the same for everyone in the round."""
        return int(at.random("local steps").geometric(1 / self.local_steps))

    def steps(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        z, start = received["z"], received["z"]
        for batch in client.minibatches(self.steps_of(at)):
            change = client.gradient(z, batch) - client.gradient(start, batch, track=False)
            change = change + self.prox * (z - start)
            z = at.layout.project(z - self.learning_rate * (change + received["correction"]))
        return {"z": z}, memory

    def average(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        stretch = (self.global_rate or self.learning_rate) / self.learning_rate
        z = at.layout.project(state["z"] + stretch * (replies.mean("z") - state["z"]))
        before = state["steps_taken"]
        after = before + self.steps_of(at)
        due = int(after) // self.center_steps > int(before) // self.center_steps
        center = z if due else state["center"]
        return state | {"z": z, "center": center, "steps_taken": after}
