"""Convolutions of few channels: the pictures of several clients, woven into a processor's vectors.

A vector of the processor holds 16 floats. A library lays a picture's channels into it: six of them,
as in LeNet-5, leave ten places empty. In a stack there are clients enough to fill it with: of eight
clients, two pictures each are one vector, with as many channels and pixels as there may be.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsaddle.problems import kernels

FEW = 16
"""Channels: fewer of them leave places of a vector empty, and torch is good at more."""


def there(tensor: Tensor) -> Tensor:
    """The same, for the compiler a tensor that is there, not one to be computed when needed."""
    return tensor.as_strided(tensor.size(), tensor.stride())


@dataclass(frozen=True)
class Woven:
    """A stack's pictures as `(n, c·L, h, w)`, the channels innermost in memory.

    Each channel has L lanes: so many pictures of each client, and clients innermost. Where clients
    or pictures do not come out even, some are there twice; nobody looks at those.

    >>> woven = Woven(clients=3, rows=5, lanes=8)  # each lane's client and row
    >>> pictures = torch.arange(15.0).reshape(3, 5, 1, 1, 1)
    >>> woven.held(pictures).flatten(1)[0].tolist()
    [0.0, 5.0, 10.0, 0.0, 1.0, 6.0, 11.0, 1.0]
    >>> torch.equal(woven.apart(woven.held(pictures)), pictures)
    True
    """

    clients: int
    rows: int
    lanes: int

    @property
    def places(self) -> int:
        """For clients, in a vector: a power of two."""
        return 1 << (self.clients - 1).bit_length()

    @property
    def at_once(self) -> int:
        """Pictures of a client in a vector."""
        return self.lanes // self.places

    def shape(self, values: Tensor) -> list[int]:
        """Of one client's pictures."""
        return [self.rows, values.shape[1] // self.lanes, *values.shape[2:]]

    def held(self, apart: Tensor) -> Tensor:
        """Pictures `(C, b, c, h, w)`, woven."""
        n = -(-self.rows // self.at_once)
        even = _filled(_filled(apart, 0, self.places), 1, n * self.at_once)
        woven = even.reshape(self.places, n, self.at_once, *even.shape[2:]).permute(
            1, 4, 5, 3, 2, 0
        )
        return there(woven.contiguous()).flatten(3).permute(0, 3, 1, 2)

    def apart(self, values: Tensor) -> Tensor:
        """The pictures as `(C, b, c, ...)`."""
        n, channels, *rest = values.shape
        c, images, places = channels // self.lanes, self.at_once, self.places
        by_lane = there(values).reshape(n, c, images, places, *rest)
        axes = range(4, by_lane.ndim)
        pictures = by_lane.permute(3, 0, 2, 1, *axes)[: self.clients]
        return pictures.reshape(self.clients, n * images, c, *rest)[:, : self.rows]

    def of_channels(self, values: Tensor) -> Tensor:
        """What belongs to a channel of a client, `(C, c)`, for every lane: `(c·L, 1, 1)`."""
        by_client = _filled(values, 0, self.places).t().unsqueeze(1)
        return there(by_client.repeat(1, self.at_once, 1)).reshape(-1, 1, 1)

    def convolved(self, values: Tensor, weights: Tensor, padding: int) -> Tensor:
        """Woven pictures convolved with the clients' weights `(C, out, in, k, k)`."""
        by_client = _filled(weights, 0, self.places).permute(3, 4, 2, 1, 0)
        inside = values.permute(0, 2, 3, 1)
        pictures = inside.reshape(*inside.shape[:3], -1, self.lanes)
        return _convolved(pictures, by_client, padding).flatten(3).permute(0, 3, 1, 2)


def weavable(
    pictures: Tensor,
    weights: Tensor,
    clients: int,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    already: bool,
) -> bool:
    """Whether a convolution can be done here, and is better done here than by torch.

    Of pictures that are woven already, more channels are.
    """
    out, into, rows, columns = weights.shape
    plain = stride in (1, (1, 1)) and dilation in (1, (1, 1)) and groups == 1
    square = rows == columns and isinstance(padding, int) and 0 <= padding < rows
    few = max(into, out) <= FEW if already else into <= FEW and out < FEW
    fits = pictures.is_cpu and clients <= kernels.lanes(pictures.dtype)
    return plain and square and few and fits and kernels.available()


def _filled(values: Tensor, axis: int, size: int) -> Tensor:
    """So many along an axis, the first ones once more where there are too few."""
    own = values.shape[axis]
    if own == size:
        return values
    return torch.cat([values] * -(-size // own), axis).narrow(axis, 0, size)


class _Convolution(torch.autograd.Function):
    """Of pictures `(n, h, w, in, L)` and weights `(k, k, in, out, clients)`.

    Turned, it is the way back, for gradients of what such weights have made of pictures: rows and
    columns of the weights run backwards, and `(n, h, w, out, L)` goes in.
    """

    @staticmethod
    def forward(pictures: Tensor, weights: Tensor, padding: int, turned: bool) -> Tensor:
        outputs: Tensor = torch.ops.fedsaddle.convolve(pictures, weights, padding, turned)
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pictures, weights, ctx.padding, ctx.turned = inputs
        ctx.save_for_backward(pictures, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        pictures, weights = ctx.saved_tensors
        back = weights.shape[0] - 1 - ctx.padding
        of_pictures = of_weights = None
        if ctx.needs_input_grad[0]:
            of_pictures = _convolved(gradient, weights, back, not ctx.turned)
        if ctx.needs_input_grad[1]:
            correlation: Any = _Correlation.apply
            pair = (gradient, pictures, back) if ctx.turned else (pictures, gradient, ctx.padding)
            of_weights = correlation(*pair, weights.shape[4])
        return of_pictures, of_weights, None, None


def _convolved(pictures: Tensor, weights: Tensor, padding: int, turned: bool = False) -> Tensor:
    found: Tensor = _Convolution.apply(pictures, weights, padding, turned)  # type: ignore[no-untyped-call]
    return found


class _Correlation(torch.autograd.Function):
    """Of pictures and gradients of what they were convolved to: the gradient of the weights."""

    @staticmethod
    def forward(pictures: Tensor, gradients: Tensor, padding: int, clients: int) -> Tensor:
        sums: Tensor = torch.ops.fedsaddle.correlate(pictures, gradients, padding, clients)
        return sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pictures, gradients, ctx.padding, _ = inputs
        ctx.save_for_backward(pictures, gradients)

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> Any:
        pictures, gradients = ctx.saved_tensors
        of_pictures = _convolved(gradients, weights, weights.shape[0] - 1 - ctx.padding, True)
        return of_pictures, _convolved(pictures, weights, ctx.padding), None, None
