"""Dropout that depends on the client and its step, not on who is computed beside whom."""

from collections.abc import Sequence
from types import FunctionType
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


def _seen_through(function: Any) -> FunctionType:
    """A function of torch's that would be one call to who overrides functions, as its calls."""
    within = {**function.__globals__, "has_torch_function": lambda tensors: False}
    copy = FunctionType(function.__code__, within, None, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_heads = _seen_through(functional.multi_head_attention_forward)


def drops(network: nn.Module) -> bool:
    """Whether a network has layers that need a key, or code of its own that may."""
    return any(
        (isinstance(module, _MODULES) and module.p > 0)
        or (isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0)
        or any(_calls_dropout(kind) for kind in type(module).__mro__)
        for module in network.modules()
    )


def _calls_dropout(kind: type) -> bool:
    """Whether a class that is not torch's has a method with dropout in it."""
    if kind.__module__.partition(".")[0] in ("torch", "builtins"):
        return False
    names = {
        name
        for method in vars(kind).values()
        if isinstance(method, FunctionType)
        for name in method.__code__.co_names
    }
    functions = (*_BY_ELEMENT, *_BY_CHANNEL, functional.scaled_dot_product_attention)
    return not names.isdisjoint(function.__name__ for function in functions)


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
        if func is functional.multi_head_attention_forward:
            with self:
                return _heads(*args, **kwargs)
        dropping = kwargs.get("dropout_p", 0.0) > 0 or len(args) > 4
        if func is functional.scaled_dot_product_attention and dropping:
            return self._attention(*args, **kwargs)
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

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """The shares of the values, some of which are dropped, and their sum."""
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(times, -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=key.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        shares = self._dropout(functional.dropout, scores.softmax(-1), dropout_p)
        return shares @ value

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
