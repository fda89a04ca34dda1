"""The dual of agnostic learning: weights λ on the simplex, kept by the server.

The problem is `min_w max_{λ ∈ simplex} Σ_g λ_g f_g(w)`. A group g has n_g clients and
`f_g` is the mean of their losses; without named groups every client is a group of its own.

    a client's weight:          p_i = λ_g / n_g, for i in g
    Σ_g λ_g ∇f_g, estimated:    (N/m) Σ_i p_i ∇f_i      over the m of N clients that answered
    ∇_λ, estimated:             v_g = (N/m) Σ_i f_i/n_g  over those of them that are in g

Both are exact when all N answer, and unbiased when the m are a uniform sample of the N.
λ is in double precision: it never travels, and a million small weights must add up to one.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsaddle.algorithms.base import Algorithm, Members, Replies, Round, Vectors
from fedsaddle.errors import UserError
from fedsaddle.layout import Layout
from fedsaddle.problems import Simplex
from fedsaddle.problems.base import Kind

OBSERVED = 64
"""Weights are among the metrics when they are at most this many."""


def group_sizes(members: Members) -> Tensor:
    """`n_g`: how many clients each group has."""
    return torch.bincount(members.group_of, minlength=len(members.group_names))


class SimplexDual(Algorithm):
    """A method whose server weighs clients, or named groups of clients."""

    solves: ClassVar[frozenset[Kind]] = frozenset({"risk", "agnostic"})

    dual_rate: float = Field(
        0.01,
        ge=0,
        description="step size γ on the weights λ (0: they stay uniform); the fewer of the clients "
        "take part, the smaller it should be",
    )

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        sizes = group_sizes(members)
        for empty in (sizes == 0).nonzero()[:, 0].tolist():
            name = members.group_names[empty]
            raise UserError(f"federation.groups.{name}: no client in it has training rows.")
        weights = torch.full((len(sizes),), 1 / len(sizes), dtype=torch.float64)
        return super().start(z, layout, members) | {"lambda": weights}

    def client_weights(self, state: Vectors, members: Members) -> Tensor:
        """`p_i` of every member; they add up to one."""
        return (state["lambda"] / group_sizes(members))[members.group_of]

    def answered_weights(self, at: Round, state: Vectors, replies: Replies) -> Tensor:
        """`(N/m) p_i` of those that answered."""
        members = at.members
        position = torch.searchsorted(members.able, replies.clients)
        return self.client_weights(state, members)[position] * (len(members) / len(replies))

    def loss_estimate(self, at: Round, replies: Replies) -> Tensor:
        """`v`, from the replies named "loss"."""
        members, sizes = at.members, group_sizes(at.members)
        group = members.group_of[torch.searchsorted(members.able, replies.clients)]
        losses = replies.vectors["loss"].squeeze(1).double()
        summed = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, group, losses)
        return summed / sizes * (len(members) / len(replies))

    @property
    def dual_step(self) -> float:
        """How far λ goes along `v` in a round."""
        return self.dual_rate

    def ascend(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        """`λ ← Π(λ + γv)`."""
        v = self.loss_estimate(at, replies)
        return state | {"lambda": Simplex()(state["lambda"] + self.dual_step * v)}

    def observe(self, state: Vectors, members: Members) -> dict[str, float]:
        if len(members.group_names) > OBSERVED:
            return {}
        named = zip(members.group_names, state["lambda"].tolist(), strict=True)
        return {f"lambda/{name}": weight for name, weight in named}
