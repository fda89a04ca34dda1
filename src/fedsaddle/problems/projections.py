"""Constraint sets as projections: each maps `(..., k)` to the nearest point of its set."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Nonnegative:
    """`{v : v ≥ 0}`.

    >>> Nonnegative()(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def __call__(self, v: Tensor) -> Tensor:
        return v.clamp(min=0)


@dataclass(frozen=True)
class Box:
    """`{v : low ≤ v ≤ high}`, element by element."""

    low: float
    high: float

    def __call__(self, v: Tensor) -> Tensor:
        return v.clamp(self.low, self.high)


@dataclass(frozen=True)
class Ball:
    """`{v : ‖v‖₂ ≤ radius}`.

    >>> Ball(1.0)(torch.tensor([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    radius: float

    def __call__(self, v: Tensor) -> Tensor:
        norm = v.norm(dim=-1, keepdim=True)
        return v * torch.where(norm > self.radius, self.radius / norm, torch.ones_like(norm))


@dataclass(frozen=True)
class Simplex:
    """`{v : v ≥ 0, Σv = 1}`, exactly, by sorting.

    With `u` the entries in falling order, the projection is `(v − τ)₊` where
    `τ = (Σ_{j≤k} u_j − 1)/k` for the largest `k` with `u_k > τ_k`
    (Duchi, Shalev-Shwartz, Singer and Chandra, 2008, Figure 1).

    >>> Simplex()(torch.tensor([1.0, 1.0, -1.0])).tolist()
    [0.5, 0.5, 0.0]
    """

    def __call__(self, v: Tensor) -> Tensor:
        v = v - v.amax(dim=-1, keepdim=True)  # a common shift changes nothing but the rounding
        falling = v.sort(dim=-1, descending=True).values
        k = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
        thresholds = (falling.cumsum(dim=-1) - 1) / k
        support = (falling > thresholds).sum(dim=-1, keepdim=True)
        return (v - thresholds.gather(-1, support - 1)).clamp(min=0)
