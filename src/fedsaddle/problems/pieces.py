"""Points and gradients in pieces, one for each variable, which a method sees as one matrix.

Autograd gives a gradient in pieces, and a network wants its weights in pieces. To join them after
every step, to scale the whole and to subtract it are passes over memory, together as long as half
the arithmetic of a small network. So sums and multiples stay in pieces, and nothing is joined until
somebody asks for more.

In a `Field`, a step `z − η·G(z; batch)` is not even taken before somebody looks where it led. Steps
on the way, whose points nobody can see any more, are then taken in place.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedsaddle.problems.stack import FACTS, name_of

Parts = list[Tensor] | tuple[Tensor, ...]
"""Matrices with a row per client."""
LONGEST_WALK = 32
"""Steps that are put off at most: until they are taken, their batches stay in memory."""


class Form(NamedTuple):
    """What all of a stack's points look like."""

    rows: int
    sizes: Sequence[int]
    columns: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, parts: Parts) -> "Form":
        first, sizes = parts[0], [part.shape[1] for part in parts]
        return cls(first.shape[0], sizes, sum(sizes), first.dtype, first.device)


class Field(Protocol):
    """Gradients of a stack of clients, wherever they stand."""

    form: Form

    def gradient(self, at: Parts, batch: Any) -> Parts: ...

    def descend(self, at: Parts, batch: Any, length: float) -> None:
        """`at ← at − length · G(at; batch)`, in place."""


class Known:
    """Pieces that are there, as long as nobody writes into them."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._version = parts, parts[0]._version

    @property
    def parts(self) -> Parts:
        if self._parts[0]._version != self._version:
            raise RuntimeError(
                "client.gradient(z, batch): z was changed in place before its gradient was used; "
                "make a new tensor, z = z - ..."
            )
        return self._parts


class Gradient:
    """The gradient at a point, not computed before it is known what it is for."""

    def __init__(self, field: Field, point: Tensor, batch: Any) -> None:
        self.field, self.point, self.batch = field, point, batch
        if isinstance(point, Pieces) and point.scale == 1 and isinstance(point.source, Walk):
            self.place: Known | Walk = point.source
        else:
            self.place = Known(_parts(point, field.form))

    @cached_property
    def parts(self) -> Parts:
        parts: Parts = _computed(self.field.gradient, self.place.parts, self.batch)
        return parts

    @property
    def is_known(self) -> bool:
        return "parts" in self.__dict__


class Walk:
    """A point that a step leads to, once it is taken."""

    def __init__(self, gradient: Gradient, length: float) -> None:
        self._before: Known | Walk = gradient.place
        self._field, self._batch, self._length = gradient.field, gradient.batch, length
        self._known: Parts | None = None
        self._steps: int = 1 + (self._before._steps if isinstance(self._before, Walk) else 0)
        self.seen: Callable[[], Any] = lambda: None
        if self._steps >= LONGEST_WALK:
            self._take()

    @property
    def parts(self) -> Parts:
        return self._take() if self._known is None else self._known

    def _take(self) -> Parts:
        """Takes all steps on the way that were not taken yet."""
        way: list[Walk] = []
        at: Known | Walk = self
        while isinstance(at, Walk) and at._known is None:
            way.append(at)
            at = at._before
        parts, ours = at.parts, False
        for walk in reversed(way):
            if not ours:
                parts = [part.clone(memory_format=torch.contiguous_format) for part in parts]
            _computed(walk._field.descend, parts, walk._batch, walk._length)
            ours = walk.seen() is None and walk is not self
            if not ours:
                walk._settle(parts)
        return parts

    def _settle(self, parts: Parts) -> None:
        self._known, self._steps = parts, 0
        self._before, self._batch = Known(parts), None


def _computed(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except TypeError as error:  # which an operator would take for "not my kind of operand"
        raise RuntimeError(str(error)) from error


class Pieces(Tensor):
    """`(C, d)`: pieces side by side, times `scale`.

    >>> gradient = Pieces.of([torch.ones(2, 1), torch.zeros(2, 2)])
    >>> (torch.full((3,), 5.0) - 2.0 * gradient).source.parts[0].tolist()
    [[3.0], [3.0]]
    >>> gradient.sum(dim=1)
    tensor([1., 1.])
    """

    source: Known | Gradient | Walk
    form: Form
    scale: float
    whole: Tensor | None

    @staticmethod
    def __new__(cls, source: Known | Gradient | Walk, form: Form, scale: float = 1.0) -> "Pieces":
        seen: Pieces = Tensor._make_wrapper_subclass(
            cls, (form.rows, form.columns), dtype=form.dtype, device=form.device
        )
        seen.source, seen.form, seen.scale, seen.whole = source, form, scale, None
        return seen

    @classmethod
    def of(cls, parts: Parts) -> "Pieces":
        return cls(Known(parts), Form.of(parts))

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(self.joined())

    def joined(self) -> Tensor:
        """An ordinary tensor. From now on the pieces are views of it: what is written into it is
        written into them."""
        if self.whole is None:
            self.whole = torch.cat([*self.source.parts], dim=1)
            if self.scale != 1:
                self.whole *= self.scale
            self.scale = 1.0
        self.source = Known(self.whole.split_with_sizes(self.form.sizes, 1))
        return self.whole

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RULES and len(args) == 2 and not kwargs:
            result = _RULES[func](*args)
            if result is not None:
                return result
        elif name_of(func) in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _by_the_whole(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _by_the_whole(func, args, kwargs)


def gradient(field: Field, point: Tensor, batch: Any) -> Tensor:
    """The gradient at a point, a vector or a matrix, when it is needed."""
    return Pieces(Gradient(field, point, batch), field.form)


def take_steps(vectors: Sequence[Tensor]) -> None:
    """Computes what was put off."""
    for vector in vectors:
        if isinstance(vector, Pieces):
            _ = vector.source.parts


def parts_of(vector: Tensor) -> Parts:
    """The pieces of a matrix that is in pieces; else the whole of it."""
    if isinstance(vector, Pieces) and vector.scale == 1:
        return vector.source.parts
    return [vector]


def shape_of(matrix: Tensor) -> tuple[int, ...]:
    """The shape, in pieces or not."""
    if isinstance(matrix, Pieces):
        return matrix.form.rows, matrix.form.columns
    return tuple(matrix.shape)


def pieces(z: Tensor, sizes: Sequence[int]) -> Parts:
    """A point's parts of these sizes, without joining what is in pieces."""
    if isinstance(z, Pieces) and z.scale == 1:
        return z.source.parts
    return z.split_with_sizes(list(sizes), -1)


def _parts(value: Tensor, form: Form) -> Parts:
    """A matrix, or a vector for all rows, in pieces."""
    if not isinstance(value, Pieces):
        return value.expand(form.rows, form.columns).split_with_sizes(form.sizes, 1)
    parts = value.source.parts
    return parts if value.scale == 1 else torch._foreach_mul(parts, value.scale)


def _fits(value: Any, form: Form) -> bool:
    """Whether it can take part in one pass: the same numbers, no graph and no rules behind it."""
    if isinstance(value, Pieces):
        return value.form == form
    if type(value) is not Tensor or value.requires_grad:
        return False
    alike = value.dtype == form.dtype and value.device == form.device
    return alike and value.shape in ((form.columns,), (form.rows, form.columns))


def _by_the_whole(func: Any, args: Any, kwargs: Any) -> Any:
    def joined(value: Any) -> Any:
        return value.joined() if isinstance(value, Pieces) else value

    args, kwargs = pytree.tree_map(joined, (args, kwargs or {}))
    return func(*args, **kwargs)


def _multiple(a: Any, b: Any) -> Tensor | None:
    """A number times pieces."""
    pieces, factor = (a, b) if isinstance(a, Pieces) else (b, a)
    if isinstance(factor, Tensor) and factor.ndim == 0:
        factor = factor.item()
    if not isinstance(factor, float | int):
        return None
    return Pieces(pieces.source, pieces.form, pieces.scale * factor)


def _sum(a: Any, b: Any) -> Tensor | None:
    return _added(a, b, 1.0) if isinstance(b, Pieces) else _added(b, a, 1.0)


def _difference(a: Any, b: Any) -> Tensor | None:
    return _added(a, b, -1.0)


def _difference_from(a: Any, b: Any) -> Tensor | None:
    return _added(b, a, -1.0)


def _added(a: Any, b: Any, sign: float) -> Tensor | None:
    """`a + sign · b` in one pass; from a point along its gradient, a step to be taken."""
    if isinstance(b, Pieces):
        way = b.source
        if isinstance(way, Gradient) and a is way.point and not way.is_known:
            walk = Walk(way, -sign * b.scale)
            reached = Pieces(walk, b.form)
            walk.seen = weakref.ref(reached)
            return reached
        form, scale = b.form, sign * b.scale
    else:
        form, scale = a.form, sign
    if not _fits(a, form) or not _fits(b, form):
        return None
    theirs = b.source.parts if isinstance(b, Pieces) else _parts(b, form)
    return Pieces(Known(torch._foreach_add(_parts(a, form), theirs, alpha=scale)), form)


def _copied(a: Any, b: Any) -> Tensor | None:
    """`a ← b`, joined where they are to be."""
    if not isinstance(b, Pieces) or isinstance(a, Pieces) or b.scale != 1 or not _fits(a, b.form):
        return None
    return torch.cat([*b.source.parts], dim=1, out=a) if a.ndim == 2 else None


_RULES: dict[Any, Callable[[Any, Any], Tensor | None]] = {
    **dict.fromkeys((Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul), _multiple),
    **dict.fromkeys((Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add), _sum),
    **dict.fromkeys((Tensor.sub, Tensor.__sub__, torch.sub), _difference),
    **dict.fromkeys((Tensor.__rsub__, torch.rsub), _difference_from),
    Tensor.copy_: _copied,
}
