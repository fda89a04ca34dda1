"""Dropout that depends on the client and its step, not on who is computed beside whom."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from fedsaddle.problems.stack import name_of

_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_BY_ELEMENT = (functional.dropout,)
_BY_CHANNEL = {functional.dropout1d: 2, functional.dropout2d: 0, functional.dropout3d: 4}
"""Functions that drop whole channels, and how many axes a row has where it comes alone."""


_RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")
"""Functions of several layers, with dropout between them."""


def drops(network: nn.Module) -> bool:
    """Whether a network has layers that need a key."""
    return any(
        (isinstance(module, _MODULES) and module.p > 0)
        or (isinstance(module, nn.RNNBase) and module.dropout > 0)
        for module in network.modules()
    )


def _mixed(number: Tensor) -> Tensor:
    """A number whose bits all depend on all bits of the given one (the splitmix64 finaliser)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        kept = (1 << (64 - shift)) - 1  # the sign must not be shifted in
        high = torch.bitwise_and(torch.bitwise_right_shift(number, shift), kept)
        number = torch.bitwise_xor(number, high) * factor
    return number


def uniform(key: Tensor, layer: int, size: int) -> Tensor:
    """`size` numbers on [0, 1) that follow from a key and a layer's number.

    >>> drawn = uniform(torch.tensor(7), 0, 1000)
    >>> bool((drawn >= 0).all() and (drawn < 1).all()), round(float(drawn.mean()), 1)
    (True, 0.5)
    """
    places = torch.arange(size, device=key.device) + (layer << 40)
    bits = _mixed(places + _mixed(key))
    return torch.bitwise_and(torch.bitwise_right_shift(bits, 40), (1 << 24) - 1) / (1 << 24)


class KeyedDropout(TorchFunctionMode):
    """Within it, every dropout layer draws from the key: one number for each client and step."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self._key, self._layer = key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _BY_ELEMENT or func in _BY_CHANNEL:
            return self._dropout(func, *args, **kwargs)
        # of sequences of one length: packed ones come with their lengths
        if name_of(func) in _RECURRENT and isinstance(args[2], list | tuple):
            return self._recurrent(func, *args)
        return func(*args, **kwargs)

    def _dropout(
        self,
        func: Any,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        self._layer += 1
        shape = tuple(input.shape)
        if func in _BY_CHANNEL:
            axes = 1 if input.ndim == _BY_CHANNEL[func] else 2
            shape = (*shape[:axes], *[1] * (input.ndim - axes))
        size = int(torch.Size(shape).numel())
        kept = uniform(self._key, self._layer, size).reshape(shape) >= p
        return input * (kept.to(input.dtype) * (1 / (1 - p) if p < 1 else 0.0))

    def _recurrent(
        self,
        func: Any,
        input: Tensor,
        hidden: Any,
        weights: Sequence[Tensor],
        biases: bool,
        layers: int,
        p: float,
        training: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        """One layer after the other. An LSTM's hidden state is of two tensors."""
        how = (both_ways, batch_first)
        if not training or p == 0:
            return func(input, hidden, weights, biases, layers, p, training, *how)
        outputs, ends = input, []
        states, own = 2 if both_ways else 1, len(weights) // layers
        for k in range(layers):
            outputs = self._dropout(functional.dropout, outputs, p) if k else outputs
            begin = tree_map(lambda state, k=k: state[states * k : states * (k + 1)], hidden)
            these = weights[own * k : own * (k + 1)]
            outputs, *end = func(outputs, begin, these, biases, 1, 0.0, training, *how)
            ends.append(end)
        return outputs, *(torch.cat(end) for end in zip(*ends, strict=True))
