"""Control variates against client drift, as SCAFFOLD and CODASCA use them.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1 with option II. The server keeps `control` (c), every
client its own (c_i), both zero at first and both in saddle-gradient signs:

    1. a client adds c − c_i to every local gradient                       (drift)
    2. after K steps of size η from z to z_i:  Δc_i = (z − z_i)/(Kη) − c   (change)
       c_i ← c_i + Δc_i
    3. the server:  c ← c + (1/N) Σ Δc_i over those that answered          (moved)

N counts all clients, so that c stays the mean of all c_i when only some take part.
"""

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Replies, Round, Vectors


def drift(received: Vectors, memory: Vectors) -> Tensor:
    """`c − c_i`, what is added to every local gradient."""
    return received["control"] - memory["control"]


def change(received: Vectors, z: Tensor, travel: float) -> Tensor:
    """`Δc_i` of a client that is now at `z`; `travel` is `Kη`, its steps times their size.

    Nothing once η has fallen, stage by stage, below what a float can be: nobody moves any more.
    """
    if travel < torch.finfo(z.dtype).tiny:
        return torch.zeros_like(z)
    return (received["z"] - z) / travel - received["control"]


def moved(at: Round, state: Vectors, replies: Replies) -> Tensor:
    """The server's new `c`."""
    return state["control"] + replies.sum("control_change") / len(at.members)
