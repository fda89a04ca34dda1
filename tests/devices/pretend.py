"""A device that is not the CPU, for machines that have no other: "pretend:0", "pretend:1".

Its tensors hold ordinary ones and compute with them, but as on a real device no operation takes
tensors of two places, and numbers are seen from outside only after a copy. `register` is for good:
call it in a process of its own.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

aten = torch.ops.aten
COPIES = (aten.copy_.default, aten._copy_from.default, aten._to_copy.default)
MADE: set[torch.device] = set()
"""The devices that a tensor was ever on, in this process."""


class Backend(backend_registration._DummyBackendModule):
    """What torch asks of a device's module, and what fedsaddle does."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.device = ""

    def is_initialized(self) -> bool:
        return bool(MADE)

    def manual_seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def set_device(self, device: str) -> None:
        self.device = device


class Distant(Tensor):
    """A tensor on such a device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> "Distant":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )
        made.held = held
        MADE.add(device)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def new_tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return run(operation, *args, **(kwargs or {}))


def run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation on the tensors within."""
    known: dict[int, Tensor] = {}
    places = set()

    def within(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, Distant):
            known[id(value.held)] = value
            places.add(value.device)
            return value.held
        if isinstance(value, Tensor) and value.ndim:  # one number may come from the CPU
            places.add(value.device)
        return value

    wanted = kwargs.get("device")
    args, kwargs = pytree.tree_map(within, (args, kwargs))
    if len(places) > 1 and operation not in COPIES:
        raise RuntimeError(f"{operation}: tensors on {sorted(map(str, places))}")
    result = operation(*args, **kwargs)
    if wanted is None:
        (wanted, *_) = {tensor.device for tensor in known.values()}
    if wanted.type == "cpu":
        return result
    device = torch.device(wanted.type, wanted.index or 0)

    def outside(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return known.get(id(value)) if id(value) in known else Distant(value, device)

    return pytree.tree_map(outside, result)


def register() -> Backend:
    backend = Backend()
    backend_registration._setup_privateuseone_for_python_backend("pretend", backend)
    library = torch.library.Library("_", "IMPL")  # what starts from the CPU or from nothing
    library.fallback(run, "PrivateUse1")
    backend.library = library  # it is gone when nobody holds it
    torch.tensor = partial(_made_and_moved, torch.tensor)  # which asks no backend in Python
    return backend


def _made_and_moved(make: Any, values: Any, *, device: Any = None, **options: Any) -> Tensor:
    return make(values, **options).to(device)
