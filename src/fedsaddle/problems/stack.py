"""A stack of clients as one tensor: code that is written for one client moves C of them at once.

`Stack` looks like one client's tensor and holds all clients' values. Layers with weights run as ONE
grouped network (`bmm`, grouped convolution in channels-last layout), for which `torch.vmap` has
only slower rules; elementwise functions run on the whole; whatever is not listed here runs under
`torch.vmap`. Gradients flow through the values held: `autograd` needs to know nothing of it.

>>> def loss(w, rows):  # of one client
...     return (rows @ w).square().mean()
>>> stacked(loss, torch.ones(3, 2), torch.arange(12.0).reshape(3, 2, 2))
tensor([ 13., 125., 365.])
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fedsaddle.problems import kernels
from fedsaddle.problems.woven import Woven, there, weavable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FACTS = _words(
    "shape dtype device ndim layout requires_grad is_cuda is_cpu is_meta is_sparse is_nested "
    "is_quantized is_mkldnn is_leaf dim size numel nelement __len__ is_floating_point is_complex "
    "element_size ndimension is_same_size stride is_contiguous __hash__"
)
"""What the tensor of one client can be asked, without looking at its values."""
_ELEMENTWISE = _words(
    "add sub rsub mul div true_divide neg abs sign reciprocal exp expm1 log log1p sqrt rsqrt "
    "square pow sin cos tanh sigmoid log_sigmoid relu relu6 leaky_relu elu selu celu gelu silu "
    "mish softplus hardtanh hardswish clamp clamp_min clamp_max maximum minimum where xlogy "
    "eq ne lt le gt ge logical_and logical_or logical_not isfinite isnan float double half long "
    "int bool to type_as detach clone contiguous __add__ __radd__ __sub__ __rsub__ __mul__ "
    "__rmul__ __truediv__ __rdiv__ __pow__ __neg__ __invert__ __and__ __or__ __eq__ __ne__ __lt__ "
    "__le__ __gt__ __ge__ bitwise_and bitwise_xor bitwise_right_shift"
)
"""Functions whose result at an element depends on that element alone."""

_for_compiler: ContextVar[bool] = ContextVar("for_compiler", default=False)


@contextmanager
def for_compiler() -> Iterator[None]:
    """Within it, layers take the form that a compiler can fuse best."""
    token = _for_compiler.set(True)
    try:
        yield
    finally:
        _for_compiler.reset(token)


def name_of(func: Any) -> str:
    """What a function of tensors, or a property, is called."""
    name: str = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
    return name


@dataclass(frozen=True)
class Merged:
    """A stack's pictures as `(b, C·c, h, w)`, the channels innermost in memory.

    >>> merged = Merged(clients=2)
    >>> pictures = torch.arange(12.0).reshape(2, 3, 2, 1, 1)
    >>> merged.held(pictures)[0].flatten().tolist()
    [0.0, 1.0, 6.0, 7.0]
    >>> torch.equal(merged.apart(merged.held(pictures)), pictures)
    True
    """

    clients: int

    def shape(self, values: Tensor) -> list[int]:
        """Of one client's pictures."""
        return [values.shape[0], values.shape[1] // self.clients, *values.shape[2:]]

    def held(self, apart: Tensor) -> Tensor:
        """Pictures `(C, b, c, h, w)` in this form."""
        values = apart.transpose(0, 1).flatten(1, 2)
        return values.contiguous(memory_format=torch.channels_last)

    def apart(self, values: Tensor) -> Tensor:
        """The pictures as `(C, b, c, ...)`."""
        b, channels, *rest = values.shape
        return values.view(b, self.clients, channels // self.clients, *rest).transpose(0, 1)


Form = Merged | Woven
"""How pictures of all clients can be one batch of pictures with more channels."""


class Stack(Tensor):
    """C clients' tensors of one shape, seen as one of them.

    The values are `(C, *shape)`; those of pictures `(b, c, h, w)` may be held in the form that
    convolutions want.
    """

    whole: Tensor
    form: Form | None
    clients: int
    _shape: torch.Size

    @staticmethod
    def __new__(cls, values: Tensor, form: Form | None = None) -> "Stack":
        shape = torch.Size(form.shape(values)) if form else values.shape[1:]
        seen: Stack = Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device=values.device
        )
        seen.whole, seen.form, seen._shape = values, form, shape
        seen.clients = form.clients if form else values.shape[0]
        return seen

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self._shape  # a tensor's own takes a dozen times as long to tell

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self._shape)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Stack({self.clients} x {tuple(self.shape)})"

    def apart(self) -> Tensor:
        """The values as `(C, *shape)`."""
        return self.form.apart(self.whole) if self.form else self.whole

    def held(self, form: Form) -> Tensor:
        """The values of pictures in this form."""
        return self.whole if self.form == form else form.held(self.apart())

    def pictures(self) -> tuple[Tensor, Form]:
        """The values of pictures as one batch, in the form that they have or in the usual one."""
        form = self.form or Merged(self.clients)
        return self.held(form), form

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _ELEMENTWISE:
            return _elementwise(func, args, kwargs)
        result = NotImplemented
        if name in _RULES:
            result = _RULES[name](func, *args, **kwargs)
        return _by_vmap(func, name, args, kwargs) if result is NotImplemented else result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} was called on a stack's shape, which holds no values")


def stacked(function: Callable[..., Any], *stacks: Tensor) -> Any:
    """What `function`, written for one client, gives for every client of the stacks `(C, ...)`."""
    clients = len(stacks[0])
    results = function(*(Stack(values) for values in stacks))
    return pytree.tree_map_only(Tensor, lambda tensor: _values(tensor, clients), results)


def vmapped(function: Callable[..., Any], *stacks: Tensor) -> Any:
    """The same by torch's own rules."""
    with _OwnRows():
        return torch.vmap(function, randomness="different")(*stacks)


def _by_vmap(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Any function at all, by torch's own rules."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    places = [j for j, leaf in enumerate(leaves) if isinstance(leaf, Stack)]

    def of_one_client(*values: Tensor) -> Any:
        filled = list(leaves)
        for j, value in zip(places, values, strict=True):
            filled[j] = value
        own_args, own_kwargs = pytree.tree_unflatten(filled, tree)
        return func(*own_args, **own_kwargs)

    values = [leaves[j].apart() for j in places]
    results = vmapped(of_one_client, *values)
    in_place = name.endswith("_") and not name.endswith("__")
    return args[0] if in_place else pytree.tree_map_only(Tensor, Stack, results)


def _elementwise(func: Any, args: Any, kwargs: dict[str, Any]) -> Stack:
    """One call for all clients, shapes aligned as broadcasting wants it."""
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    stacks = [tensor for tensor in tensors if isinstance(tensor, Stack)]
    alike = len(stacks) == len(tensors) and all(s.shape == stacks[0].shape for s in stacks[1:])
    form = next((stack.form for stack in stacks if stack.form), None) if alike else None
    ndim = 0 if alike else max(tensor.ndim for tensor in tensors)

    def values(arg: Any) -> Any:
        if not isinstance(arg, Stack):
            return arg
        missing = ndim - arg.ndim
        if missing > 0:
            return arg.apart()[(slice(None), *[None] * missing)]
        return arg.held(form) if form else arg.apart()

    named = {key: values(arg) for key, arg in kwargs.items()}
    return Stack(func(*map(values, args), **named), form)


def _clients(*tensors: Any) -> int:
    return next(tensor.clients for tensor in tensors if isinstance(tensor, Stack))


def _values(tensor: Tensor, clients: int) -> Tensor:
    """Values per client, also of a tensor that all clients share."""
    return tensor.apart() if isinstance(tensor, Stack) else tensor.expand(clients, *tensor.shape)


def _in_a_row(tensor: Tensor | None, clients: int) -> Tensor | None:
    """What belongs to channels, all clients' after one another, as a grouped layer wants it."""
    return None if tensor is None else _values(tensor, clients).flatten(0, 1)


class _RowsTimesWeights(torch.autograd.Function):
    """`rows @ weightsᵀ`, or turned, `rows @ weights`, of every client.

    The gradient of the weights comes out as they lie, not transposed.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weights: Tensor, turned: bool) -> Tensor:
        if _for_compiler.get():
            return kernels.rows_times_weights(rows, weights, turned)
        return torch.bmm(rows, weights if turned else weights.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *factors, ctx.turned = inputs
        ctx.save_for_backward(*factors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        rows, weights = ctx.saved_tensors
        of_rows = of_weights = None
        if ctx.needs_input_grad[0]:
            times: Any = _RowsTimesWeights.apply
            of_rows = times(gradient, weights, not ctx.turned)
        if ctx.needs_input_grad[1]:
            left, right = (rows, gradient) if ctx.turned else (gradient, rows)
            of_weights = torch.bmm(left.mT, right)
        return of_rows, of_weights, None


def _linear(func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if input.ndim < 2:
        return NotImplemented
    clients = _clients(input, weight, bias)
    rows = _values(input, clients)
    times: Any = _RowsTimesWeights.apply
    outputs = times(rows.flatten(1, -2), _values(weight, clients), False)
    if bias is not None:
        outputs = outputs + _values(bias, clients).unsqueeze(1)
    return Stack(outputs.unflatten(1, rows.shape[1:-1]))


def _product(func: Any, input: Tensor, other: Tensor) -> Any:
    """Of vectors, matrices, or equally many axes; other batches are left to `torch.vmap`."""
    clients = _clients(input, other)
    left, right = _values(input, clients), _values(other, clients)
    if input.ndim == 1:
        left = left.unsqueeze(-2)
    if other.ndim == 1:
        right = right.unsqueeze(-1)
    if left.ndim != right.ndim:
        return NotImplemented
    vectors = [axis for axis, factor in ((-2, input), (-1, other)) if factor.ndim == 1]
    return Stack((left @ right).squeeze(vectors))


class _WithBiases(torch.autograd.Function):
    """Pictures that have biases in them, as a function of the biases.

    Their gradient is a sum, which a convolution takes ten times as long for as a compiled loop.
    """

    @staticmethod
    def forward(pictures: Tensor, biases: Tensor) -> Tensor:
        return pictures.view_as(pictures)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, gradient.sum((0, 2, 3))


def _convolution(
    func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    """Every client's channels are groups of their own."""
    if input.ndim != 4:
        return NotImplemented
    clients = _clients(input, weight, bias)
    if _for_compiler.get() and func is functional.conv2d:
        woven = _woven_convolution(clients, input, weight, bias, *args, **kwargs)
        if woven is not None:
            return woven
    options = [*args]  # stride, padding, then dilation or padding of the output, groups
    if len(options) > 3:
        options[3] *= clients
    else:
        kwargs["groups"] = kwargs.get("groups", 1) * clients
    form = Merged(clients)
    weights, biases = _in_a_row(weight, clients), _in_a_row(bias, clients)
    known = biases.detach() if biases is not None and _for_compiler.get() else biases
    outputs = func(_held(input, form), weights, known, *options, **kwargs)
    if known is not biases:
        with_biases: Any = _WithBiases.apply
        outputs = with_biases(outputs, biases)
    return Stack(outputs, form)


def _held(tensor: Tensor, form: Form) -> Tensor:
    """Pictures in this form, also those that all clients share."""
    return (
        tensor.held(form) if isinstance(tensor, Stack) else form.held(_values(tensor, form.clients))
    )


def _woven_convolution(
    clients: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Stack | None:
    """Of few channels, in lanes of the processor's vectors; None where that cannot be done."""
    padding = padding[0] if isinstance(padding, tuple) and len({*padding}) == 1 else padding
    already = isinstance(input, Stack) and isinstance(input.form, Woven)
    if not weavable(input, weight, clients, stride, padding, dilation, groups, already):
        return None
    form = Woven(clients, input.shape[0], kernels.lanes(input.dtype))
    outputs = form.convolved(_held(input, form), _values(weight, clients), padding)
    if bias is not None:
        outputs = outputs + form.of_channels(_values(bias, clients))
    return Stack(outputs, form)


def _larger(a: Tensor, b: Tensor, of_a: Any, of_b: Any) -> tuple[Tensor, Tensor]:
    """The larger one, the first where both are alike, and what belongs to it; not-a-number wins."""
    second = (b > a) | (b != b)
    return torch.where(second, b, a), torch.where(second, of_b, of_a)


class _PoolByTwo(torch.autograd.Function):
    """The largest of two by two pixels, the first of those that are alike, as max-pooling has it.

    Which one it was is remembered, so that a gradient takes one short loop to find its way back.
    """

    @staticmethod
    def forward(pictures: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c, d = (pictures[..., row::2, column::2] for row in (0, 1) for column in (0, 1))
        (above, left), (below, right) = _larger(a, b, 0.0, 1.0), _larger(c, d, 2.0, 3.0)
        largest, place = _larger(above, below, left, right)
        return largest, there(place.permute(0, 2, 3, 1).contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        (place,) = (tensor.unsqueeze(2).unsqueeze(4) for tensor in ctx.saved_tensors)
        spread = there(gradient.permute(0, 2, 3, 1).contiguous()).unsqueeze(2).unsqueeze(4)
        places = torch.arange(4, dtype=place.dtype, device=place.device).view(2, 1, 2, 1)
        found = torch.where(place == places, spread, 0.0)
        return found.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


def _max_pool(
    func: Any,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if input.ndim != 4 or not isinstance(input, Stack) or return_indices:
        return NotImplemented
    values, form = input.pictures()
    by_two = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2))
    whole = padding in (0, (0, 0)) and dilation in (1, (1, 1))
    even = values.shape[2] % 2 == 0 and values.shape[3] % 2 == 0
    if _for_compiler.get() and by_two and whole and even:
        pool: Any = _PoolByTwo.apply
        values, _ = pool(values)
    else:
        values = func(values, kernel_size, stride, padding, dilation, ceil_mode)
    return Stack(values, form)


def _picturewise(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A function of every channel by itself."""
    if input.ndim != 4 or not isinstance(input, Stack):
        return NotImplemented
    values, form = input.pictures()
    return Stack(func(values, *args, **kwargs), form)


def _batch_norm(
    func: Any,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if input.ndim not in (2, 4) or not isinstance(input, Stack):
        return NotImplemented
    clients, pictures, form = input.clients, input.ndim == 4, Merged(input.clients)
    values = input.held(form) if pictures else input.apart().transpose(0, 1).flatten(1, 2)
    # views, for they are updated in place; a layout without such views raises, and vmap takes over
    statistics = [
        None if kept is None else _values(kept, clients).view(-1)
        for kept in (running_mean, running_var)
    ]
    weights, biases = _in_a_row(weight, clients), _in_a_row(bias, clients)
    outputs = func(values, *statistics, weights, biases, training, momentum, eps)
    return Stack(outputs, form) if pictures else Stack(form.apart(outputs))


def _group_norm(
    func: Any,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if input.ndim != 4 or not isinstance(input, Stack):
        return NotImplemented
    clients, form = input.clients, Merged(input.clients)
    weights, biases = _in_a_row(weight, clients), _in_a_row(bias, clients)
    outputs = func(input.held(form), num_groups * clients, weights, biases, eps)
    return Stack(outputs, form)


def _embedding(
    func: Any,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not isinstance(weight, Stack) or max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    clients, rows = weight.clients, weight.shape[0]
    tokens = _values(input, clients)
    first = rows * torch.arange(clients, device=tokens.device)
    places = _within(tokens, rows) + first.view(-1, *[1] * (tokens.ndim - 1))
    found = func(places, weight.apart().flatten(0, 1))
    return Stack(_without_padding(found, tokens, rows, padding_idx))


def _within(tokens: Tensor, rows: int) -> Tensor:
    """The same tokens; in place of one that there is no row for, one that no stack has a row for.

    Clients' rows lie one after the other: it would be found in the next one's, and not refused.
    """
    return torch.where((tokens >= 0) & (tokens < rows), tokens.long(), 2**40)


def _without_padding(found: Tensor, tokens: Tensor, rows: int, padding_idx: int | None) -> Tensor:
    """The row that pads has no gradient."""
    if padding_idx is None:
        return found
    return torch.where((tokens == padding_idx % rows).unsqueeze(-1), found.detach(), found)


class _OwnRows(TorchFunctionMode):
    """Within it, an embedding under `torch.vmap` is that of one client.

    By torch's own rules all clients' rows are one table: only the first one's row pads, and a token
    that there is no row for is found in the next one's.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not functional.embedding:
            return func(*args, **(kwargs or {}))
        return self._embedding(*args, **(kwargs or {}))

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        *rest: Any,
        **named: Any,
    ) -> Tensor:
        rows = weight.shape[0]
        found = functional.embedding(_within(input, rows), weight, None, *rest, **named)
        return _without_padding(found, input, rows, padding_idx)


def _gru(
    func: Any,
    input: Tensor,
    hidden: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """`nn.GRU`, which `torch.vmap` cannot run, step by step."""
    if bidirectional or not has_biases or (dropout and train) or len(weights) != 4 * num_layers:
        return NotImplemented
    outputs = input if batch_first else input.transpose(0, 1)
    last = []
    for layer in range(num_layers):
        from_input, from_hidden, input_bias, hidden_bias = weights[4 * layer : 4 * layer + 4]
        h = hidden[layer]
        steps = []
        for step in functional.linear(outputs, from_input, input_bias).unbind(1):
            reset_in, update_in, new_in = step.chunk(3, dim=1)
            gates = functional.linear(h, from_hidden, hidden_bias)
            reset_h, update_h, new_h = gates.chunk(3, dim=1)
            update = torch.sigmoid(update_in + update_h)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_h) * new_h)
            h = new + update * (h - new)
            steps.append(h)
        outputs = torch.stack(steps, dim=1)
        last.append(h)
    return outputs if batch_first else outputs.transpose(0, 1), torch.stack(last)


def _after(dim: Any) -> Any:
    """The place of one client's axis, or of several, in the values; what is no axis stays."""
    if isinstance(dim, tuple | list):
        return tuple(map(_after, dim))
    return dim + 1 if isinstance(dim, int) and dim >= 0 else dim


def _reduced(func: Any, input: Tensor, dim: Any = None, keepdim: bool = False, **other: Any) -> Any:
    """A sum or a mean."""
    assert isinstance(input, Stack)
    if dim is None and keepdim:
        return NotImplemented
    if dim is None:
        return Stack(func(input.apart().reshape(input.clients, -1), 1, **other))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if input.form is None or not {d % 4 for d in dims} <= {2, 3}:
        return Stack(func(input.apart(), tuple(map(_after, dims)), keepdim, **other))
    reduced = func(input.whole, dims, keepdim, **other)
    return Stack(reduced, input.form) if keepdim else Stack(input.form.apart(reduced))


def _along(func: Any, input: Tensor, *dims: Any, **named: Any) -> Any:
    """A function of axes: `flatten(1)`, `squeeze(-1)`, `transpose(0, 1)`, `softmax(dim=1)`."""
    if not isinstance(input, Stack) or (dims[0] if dims else named.get("dim")) is None:
        return NotImplemented
    shifted = {k: _after(v) if "dim" in k else v for k, v in named.items()}
    results = func(input.apart(), *map(_after, dims), **shifted)
    return pytree.tree_map_only(Tensor, Stack, results)


def _flatten(func: Any, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    return _along(func, input, start_dim, end_dim)


def _unflatten(func: Any, input: Tensor, dim: int, sizes: Any) -> Any:
    values: Any = _values(input, 0)
    return Stack(values.unflatten(_after(dim), sizes))


def _reshape(func: Any, input: Tensor, *shape: Any) -> Any:
    assert isinstance(input, Stack)
    if not all(isinstance(part, int) for part in shape):
        (shape,) = shape
        if not isinstance(shape, Sequence):  # view(dtype)
            return NotImplemented
    return Stack(input.apart().reshape(input.clients, *shape))


def _chunk(func: Any, input: Tensor, size: Any, dim: int = 0) -> Any:
    return pytree.tree_map_only(Tensor, Stack, func(_values(input, 0), size, _after(dim)))


def _join(func: Any, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    clients = _clients(*tensors)
    return Stack(func([_values(tensor, clients) for tensor in tensors], _after(dim)))


def _pad(func: Any, input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    if mode != "constant":
        return NotImplemented
    return Stack(func(_values(input, 0), pad, mode, value))


def _item(func: Any, input: Tensor, index: Any) -> Any:
    """Slices and numbers; what else can stand in brackets is left to `torch.vmap`."""
    index = index if isinstance(index, tuple) else (index,)
    basic = all(part is None or part is ... or isinstance(part, int | slice) for part in index)
    if not basic or not isinstance(input, Stack):
        return NotImplemented
    everything = slice(None)
    slices = all(isinstance(part, slice) for part in index)
    if input.form and slices and index[:2] == (everything, everything):
        return Stack(input.whole[index], input.form)
    return Stack(input.apart()[(everything, *index)])


def _add_in_place(func: Any, input: Tensor, other: Any) -> Any:
    """What counts batches; anything else is left to `torch.vmap`."""
    if isinstance(other, Tensor):
        return NotImplemented
    assert isinstance(input, Stack)
    func(input.whole, other)
    return input


def _cross_entropy(
    func: Any, input: Tensor, target: Tensor, *args: Any, reduction: str = "mean", **other: Any
) -> Any:
    """Also with logits for one output; per row, then reduced for every client."""
    usual = {"weight": None, "pos_weight": None, "ignore_index": -100, "label_smoothing": 0.0}
    settings = {"size_average": None, "reduce": None, **usual}
    if args or any(settings.get(k, v) != v for k, v in other.items()) or reduction == "none":
        return NotImplemented
    clients = _clients(input, target)
    values, targets = _values(input, clients), _values(target, clients)
    if values.ndim != 3 - (func is functional.binary_cross_entropy_with_logits):
        return NotImplemented
    losses = func(values.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    losses = losses.view(clients, -1)
    if reduction == "sum":
        return Stack(losses.sum(1))
    if targets.is_floating_point():
        return Stack(losses.mean(1))
    return Stack(losses.sum(1) / torch.ne(targets, -100).sum(1))


def _layer_norm(
    func: Any,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    values = _values(input, _clients(input, weight, bias))
    outputs: Tensor = Stack(func(values, normalized_shape, None, None, eps))
    outputs = outputs if weight is None else outputs * weight
    return outputs if bias is None else outputs + bias


_RULES: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "matmul": _product,
    "__matmul__": _product,
    "conv2d": _convolution,
    "conv_transpose2d": _convolution,
    "max_pool2d": _max_pool,
    "avg_pool2d": _picturewise,
    "adaptive_avg_pool2d": _picturewise,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "embedding": _embedding,
    "gru": _gru,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy_with_logits": _cross_entropy,
    "sum": _reduced,
    "mean": _reduced,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "reshape": _reshape,
    "view": _reshape,
    "unsqueeze": _along,
    "squeeze": _along,
    "transpose": _along,
    "unbind": _along,
    "chunk": _chunk,
    "split": _chunk,
    "softmax": _along,
    "log_softmax": _along,
    "cat": _join,
    "stack": _join,
    "pad": _pad,
    "__getitem__": _item,
    "add_": _add_in_place,
}
