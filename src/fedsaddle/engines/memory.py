"""What clients remember, stored only for clients that have taken part; on disk when large."""

import tempfile
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms.base import Vectors


class ClientMemory:
    """Named vectors per client; one that is not there yet reads as zero.

    >>> memory = ClientMemory({"control": 2}, torch.float32)
    >>> memory.write(np.array([7]), {"control": torch.tensor([[1.0, 2.0]])})
    >>> memory.read(np.array([3, 7]))["control"].tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """

    def __init__(
        self, lengths: Mapping[str, int], dtype: torch.dtype, limit_bytes: float = float("inf")
    ) -> None:
        self._lengths, self._dtype, self._limit = dict(lengths), dtype, limit_bytes
        self._width = sum(self._lengths.values())
        self.era = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._slots: dict[int, int] = {}
        self._rows = self._allocate(0)

    def enter(self, era: int) -> None:
        """Memory of an earlier era is forgotten."""
        if era != self.era:
            self.clear()
            self.era = era

    def _allocate(self, capacity: int) -> Tensor:
        if capacity * self._width * self._dtype.itemsize <= self._limit:
            return torch.zeros(capacity, self._width, dtype=self._dtype)
        numpy_type = torch.zeros(0, dtype=self._dtype).numpy().dtype
        with tempfile.TemporaryFile() as file:  # the mapping outlives the name and the handle
            mapped = np.memmap(file, numpy_type, "w+", shape=(capacity, self._width))
        return torch.from_numpy(mapped)

    def read(self, clients: np.ndarray) -> Vectors:
        """A stack `(C, k)` of every named vector."""
        stack = torch.zeros(len(clients), self._width, dtype=self._dtype)
        known = [j for j, client in enumerate(clients.tolist()) if client in self._slots]
        if known:
            stack[known] = self._rows[[self._slots[int(clients[j])] for j in known]]
        names, lengths = list(self._lengths), list(self._lengths.values())
        return dict(zip(names, torch.split(stack, lengths, dim=1), strict=True)) if names else {}

    def write(self, clients: np.ndarray, vectors: Vectors) -> None:
        if not self._width:
            return
        slots = [self._slots.setdefault(client, len(self._slots)) for client in clients.tolist()]
        if len(self._slots) > len(self._rows):
            larger = self._allocate(max(2 * len(self._rows), len(self._slots)))
            larger[: len(self._rows)] = self._rows
            self._rows = larger
        self._rows[slots] = torch.cat([vectors[name] for name in self._lengths], dim=1)

    def state(self) -> Vectors:
        """Everything, as named vectors, clients in order."""
        clients = sorted(self._slots)
        rows = self._rows[[self._slots[client] for client in clients]]
        return {
            "era": torch.tensor([self.era]),
            "clients": torch.tensor(clients, dtype=torch.int64),
            "rows": rows,
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.clear()
        self.era = int(state["era"])
        clients = state["clients"].tolist()
        self._slots = {client: slot for slot, client in enumerate(clients)}
        self._rows = self._allocate(len(clients))
        self._rows[:] = state["rows"]
