"""Functions of tensors that are watched once, and from then on replayed.

A gradient of a stack of clients is a hundred operations on tensors, and finding out which, through
`Stack`, `torch.vmap` and autograd, takes longer than all of them together where a network is small.
They are the same each time as long as shapes are. So when shapes come back, they are written down
as they happen, below autograd, and from then on just done: the same operations in the same order,
with the same results to the last bit. Nothing is compiled; writing them down takes milliseconds.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

Program = Callable[..., Any]
_PLAIN = (
    "abs.default add.Tensor add.Scalar addmm.default baddbmm.default bmm.default cat.default "
    "clone.default cos.default div.Tensor div.Scalar exp.default expand.default eq.Scalar "
    "eq.Tensor gather.default ge.Scalar gt.Scalar index_select.default le.Scalar log.default "
    "lt.Scalar maximum.default mean.default mean.dim minimum.default mm.default mul.Tensor "
    "mul.Scalar neg.default ones_like.default permute.default pow.Tensor_Scalar "
    "reciprocal.default relu.default rsqrt.default rsub.Scalar select.int sigmoid.default "
    "sin.default split_with_sizes.default sqrt.default squeeze.dim squeeze.dims sub.Tensor "
    "sub.Scalar sum.default sum.dim_IntList t.default tanh.default transpose.int "
    "unsqueeze.default view.default where.self zeros_like.default"
)
"""Operations that torch has a function for which takes the same, in a little more than half the
time that an operation takes to be called by its own name."""
_LOOKS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Recorded:
    """A function of tensors whose shapes stay the same, with a tuple of tensors as its result.

    The first call is as any other: many shapes never come back. The second is recorded, and the
    third compares what is replayed with what the function does. A function that is not the same
    each time (one that looks at values, keeps count, or draws numbers otherwise than by torch) is
    called as it is.

    >>> polynomial = Recorded(lambda x: (x * x + 1,))
    >>> [polynomial(torch.tensor([k]))[0].item() for k in (1.0, 2.0, 3.0, 4.0)]
    [2.0, 5.0, 10.0, 17.0]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._run: Program = self._first

    def __call__(self, *tensors: Tensor) -> Any:
        return self._run(*tensors)

    def _first(self, *tensors: Tensor) -> Any:
        self._run = self._second
        return self._function(*tensors)

    def _second(self, *tensors: Tensor) -> Any:
        apart = [tensor.detach() for tensor in tensors]  # also where one is given twice
        before = _other_generators()
        with _Recorder(apart) as recorder:
            results = self._function(*apart)
        program = recorder.program(results) if _other_generators() == before else None
        self._run = self._function if program is None else partial(self._third, program)
        return results

    def _third(self, program: Program, *tensors: Tensor) -> Any:
        before = torch.get_rng_state()
        replayed = program(*tensors)
        torch.set_rng_state(before)
        results = self._function(*tensors)
        self._run = program if _same(replayed, results) else self._function
        return results


def _other_generators() -> tuple[Any, ...]:
    """The state of those that are not torch's, which is seen in what torch does."""
    _, numbers, position, *_ = np.random.get_state()
    return random.getstate(), np.asarray(numbers).tobytes(), position


@cache
def _functions() -> dict[Any, Callable[..., Any]]:
    names = [word.split(".") for word in _PLAIN.split()]
    return {
        getattr(getattr(torch.ops.aten, name), overload): getattr(
            torch if hasattr(torch, name) else Tensor, name
        )
        for name, overload in names
    }


def _same(results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(results) == len(expected) and all(
        a.shape == b.shape and a.allclose(b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(results, expected, strict=True)
    )


class _Line(NamedTuple):
    text: str
    makes: list[str]
    uses: list[str]
    acts: bool
    """Whether it does more than to give a result."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation on tensors as a line of Python."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = WeakTensorKeyDictionary()
        self._given = [f"t{k}" for k in range(len(tensors))]
        for name, tensor in zip(self._given, tensors, strict=True):
            self._names[tensor] = name
        self._known: dict[str, Any] = {}
        """What the lines refer to that is not made by them: operations, and tensors of old."""
        self._lines: list[_Line] = []
        self._numbers = count()
        self._hopeless = False
        """Whether something may have depended on values, and not on shapes alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # there is none about here, and to import it takes a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._hopeless |= any(tag in func.tags for tag in _LOOKS)
        results = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default and args[0] in self._names:
            self._names[results] = self._names[args[0]]  # nothing to do where nothing has a graph
            return results
        if func is torch.ops.aten.lift_fresh.default:  # a tensor made of numbers: each time anew
            func, args = torch.ops.aten.clone.default, (results.clone(),)
        uses: list[str] = []
        words = [self._written(arg, uses) for arg in args]
        words += [f"{name}={self._written(arg, uses)}" for name, arg in kwargs.items()]
        several = isinstance(results, tuple | list)
        makes = [self._named(result) for result in (results if several else [results])]
        left = "".join(f"{name}, " for name in makes) if several else makes[0]
        text = f"{left or '_'} = {self._called(func)}({', '.join(words)})"
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        self._lines.append(_Line(text, makes, uses, func._schema.is_mutable or seeded))
        return results

    def _called(self, func: Any) -> str:
        name = str(func).replace(".", "_").replace("::", "_")
        self._known[name] = _functions().get(func, func)
        return name

    def _named(self, result: Any) -> str:
        """A new name for a result; none for what was there before, and is changed in place."""
        self._hopeless |= isinstance(result, tuple | list)  # of no known operation, so far
        if not isinstance(result, Tensor) or result in self._names:
            return "_"
        name = self._names[result] = f"v{next(self._numbers)}"
        return name

    def _written(self, value: Any, uses: list[str]) -> str:
        """An argument as it is written in Python."""
        if isinstance(value, Tensor):
            if value not in self._names:
                self._names[value] = self._constant(value)
            uses.append(self._names[value])
            return uses[-1]
        if isinstance(value, list | tuple):
            return "[" + "".join(f"{self._written(one, uses)}, " for one in value) + "]"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._known)}"
        self._known[name] = value
        return name

    def program(self, results: Sequence[Tensor]) -> Program | None:
        """What was written down, without what nobody needs; None where that is not all."""
        same = any(
            result not in self._names or self._names[result] in self._known for result in results
        )
        if self._hopeless or same:  # a result would be one and the same tensor each time
            return None
        given = [self._names[result] for result in results]
        needed, text = {*given}, [f"    return {', '.join(given)},"]
        for line in reversed(self._lines):
            if not line.acts and not needed & {*line.makes}:
                continue
            over = sorted({*line.uses, *line.makes} - needed - {*self._known, *self._given, "_"})
            text += [f"    del {', '.join(over)}"] if over else []  # its memory is for the next
            text.append(f"    {line.text}")
            needed |= {*line.uses}
        source = "\n".join([f"def program({', '.join(self._given)}):", *reversed(text)])
        scope = dict(self._known)
        exec(compile(source, "<recorded>", "exec"), scope)
        program: Program = torch.no_grad()(scope["program"])
        return program
