"""Federated averaging: local steps and a mean weighted by the clients' numbers of rows.

FedAvg: McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.
FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020, Algorithm 2, with K steps as the inexact solver.

    for each round:
      1. every client starts from the server's w
      2. K times:  w_i ← w_i − η ∇f_i(w_i; B)                      (FedAvg)
                   w_i ← w_i − η (∇f_i(w_i; B) + μ (w_i − w))      (FedProx)
      3. w ← Σ n_i w_i / Σ n_i, n_i the client's number of training rows

On a problem with a dual variable the local steps descend on x and ascend on y.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import Client, Replies, Vectors
from fedsaddle.algorithms.local import LocalSGDA
from fedsaddle.problems import Batch


class FedAvg(LocalSGDA):
    """K local steps, then a mean weighted by the clients' numbers of rows.

    `w ← Σ n_i w_i / Σ n_i`.

    >>> FedAvg(local_steps=5).local_steps
    5
    """

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"

    def weights(self, replies: Replies) -> Tensor | None:
        return replies.rows


class FedProx(FedAvg):
    """FedAvg with a pull of the primal variables to the round's start.

    `w_i ← w_i − η (∇f_i(w_i; B) + μ (w_i − w))`.

    >>> FedProx(prox=0.1).prox
    0.1
    """

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    prox: float = Field(0.01, ge=0, description="μ, pull of the primal to the round's start")

    def direction(self, z: Tensor, batch: Batch, received: Vectors, client: Client) -> Tensor:
        pull = client.layout.on_parts(self.prox, 0.0) * (z - received["z"])
        return super().direction(z, batch, received, client) + pull
