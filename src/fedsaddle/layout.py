"""A point of a saddle problem as one flat vector `z = (x, y)`, and what its parts are called.

The layout is the only place that knows where a named tensor sits in the vector. Beside `z` a point
may carry values that no gradient moves (BatchNorm statistics, closed-form duals): the `carried`
vector, which travels with the model and is averaged with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch
from torch import Tensor

Named = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Projection = Callable[[Tensor], Tensor]


def _size(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


def _flat(shapes: Shapes, named: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    parts = [named[name].detach().reshape(-1).to(dtype) for name in shapes]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=dtype)


def _unflat(shapes: Shapes, flat: Tensor) -> Named:
    pieces = torch.split(flat, [prod(shape) for shape in shapes.values()]) if shapes else ()
    return _shaped(shapes, pieces)


def _shaped(shapes: Shapes, pieces: Sequence[Tensor]) -> Named:
    named = zip(shapes.items(), pieces, strict=True)
    return {name: piece.view(shape) for (name, shape), piece in named}


@dataclass(frozen=True)
class Layout:
    """Names, shapes and order of the primal, dual and carried tensors.

    >>> layout = Layout(primal={"w": (2,), "b": ()}, dual={"alpha": ()})
    >>> z = layout.flatten({"w": torch.tensor([1., 2.]), "b": torch.tensor(3.)},
    ...                    {"alpha": torch.tensor(4.)})
    >>> z.tolist(), layout.x(z).tolist(), layout.y(z).tolist()
    ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0], [4.0])
    """

    primal: Shapes
    dual: Shapes = field(default_factory=dict)
    carried: Shapes = field(default_factory=dict)
    projections: Mapping[str, Projection] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @cached_property
    def dx(self) -> int:
        return _size(self.primal)

    @cached_property
    def dy(self) -> int:
        return _size(self.dual)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each of the primal and dual variables has, in order."""
        return [prod(shape) for shape in (*self.primal.values(), *self.dual.values())]

    @cached_property
    def d(self) -> int:
        return self.dx + self.dy

    @cached_property
    def n_carried(self) -> int:
        return _size(self.carried)

    def flatten(self, x: Mapping[str, Tensor], y: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of named primal and dual tensors."""
        return torch.cat([_flat(self.primal, x, self.dtype), _flat(self.dual, y, self.dtype)])

    def flatten_carried(self, named: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of the carried tensors among `named`."""
        return _flat(self.carried, named, self.dtype)

    def unflatten(self, z: Tensor, carried: Tensor) -> tuple[Named, Named]:
        """Named views of one point: primal (with the carried values among it) and dual."""
        return self.named(self.pieces(z), carried)

    def pieces(self, z: Tensor) -> tuple[Tensor, ...]:
        """The flat parts of the named variables, in order, of one point or of a stack."""
        # split, not slices: under autograd every slice's gradient would be padded to full size
        return torch.split(z, self.sizes, dim=-1)

    def named(self, pieces: Sequence[Tensor], carried: Tensor) -> tuple[Named, Named]:
        """One point from its pieces, as `unflatten` gives it."""
        primal, dual = pieces[: len(self.primal)], pieces[len(self.primal) :]
        x = _shaped(self.primal, primal) | _unflat(self.carried, carried)
        return x, _shaped(self.dual, dual)

    def x(self, z: Tensor) -> Tensor:
        """The primal part, of one point or of a stack of points."""
        return z[..., : self.dx]

    def y(self, z: Tensor) -> Tensor:
        """The dual part, of one point or of a stack of points."""
        return z[..., self.dx :]

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """`z = (x, y)` from the two parts, of one point or of a stack."""
        return torch.cat([x, y], dim=-1)

    def on_parts(self, on_x: float, on_y: float) -> Tensor:
        """A factor with one number on the primal part and another on the dual part."""
        if on_x == on_y or not self.dy:  # one number for all, on any device
            return torch.tensor(on_x, dtype=self.dtype)
        factor = torch.full((self.d,), on_x, dtype=self.dtype, device=self.device)
        factor[self.dx :] = on_y
        return factor

    def project(self, z: Tensor) -> Tensor:
        """Put every constrained variable back into its set; the rest is left as it is."""
        if not self.projections:
            return z
        z = z.clone()
        start = 0
        for name, shape in (*self.primal.items(), *self.dual.items()):
            stop = start + prod(shape)
            if name in self.projections:
                z[..., start:stop] = self.projections[name](z[..., start:stop])
            start = stop
        return z
