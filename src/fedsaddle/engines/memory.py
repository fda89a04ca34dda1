"""What clients remember, stored only for clients that have taken part; on disk when large."""

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsaddle.algorithms.base import Vectors
from fedsaddle.engines.shared import SharedNumbers
from fedsaddle.errors import UserError

NOTHING = -1
"""The slot of a client that remembers nothing yet: all zeros."""


class ClientMemory:
    """Named vectors per client, in slots that all processes of a run see.

    Who asks clients has slots for what they remember now and for what they will, which whoever
    computes it writes there; once a client's reply is used, the one takes the other's place.
    To use a reply copies nothing, and a phase that comes to nothing leaves no trace.

    >>> memory = ClientMemory({"control": 2}, torch.float32)
    >>> now, then = memory.stage([3, 7])
    >>> memory.read(now)["control"].tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    >>> memory.write(then, {"control": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    >>> memory.commit([7])
    >>> memory.read(memory.stage([3, 7])[0])["control"].tolist()
    [[0.0, 0.0], [3.0, 4.0]]
    """

    def __init__(
        self, lengths: Mapping[str, int], dtype: torch.dtype, limit_bytes: int = sys.maxsize
    ) -> None:
        self.names, self._lengths = list(lengths), list(lengths.values())
        self._dtype, self._width = dtype, sum(self._lengths)
        self._near = SharedNumbers(dtype)
        self._far = SharedNumbers(dtype, on_disk=self._width > 0)  # else no disk is needed
        self._near_slots = limit_bytes // max(1, self._width * dtype.itemsize)
        """Those that lie in memory."""
        self.era = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._slots: dict[int, int] = {}
        self._staged: dict[int, int] = {}
        self._free: list[int] = []
        self._made = 0

    def enter(self, era: int) -> None:
        """Memory of an earlier era is forgotten."""
        if era != self.era:
            self.clear()
            self.era = era

    def stage(self, clients: Sequence[int]) -> tuple[list[int], list[int]]:
        """The slots of what these clients remember, and of what they will."""
        if not self.names:
            return [], []
        self.commit([])
        self._free += self._new_slots(max(0, len(clients) - len(self._free)))
        self._staged = {client: self._free.pop() for client in clients}
        return [self._slots.get(client, NOTHING) for client in clients], [*self._staged.values()]

    def commit(self, clients: Sequence[int]) -> None:
        """From now on these clients remember what was staged; the others' is dropped."""
        if not self.names:
            return
        for client in clients:
            if client in self._slots:
                self._free.append(self._slots[client])
            self._slots[client] = self._staged.pop(client)
        self._free += self._staged.values()
        self._staged = {}

    def _new_slots(self, count: int) -> range:
        new = range(self._made, self._made + count)
        self._made += count
        near = min(self._made, self._near_slots)
        self._near.make_room(near * self._width)
        self._far.make_room((self._made - near) * self._width)
        return new[::-1]  # they are taken from the end

    def _at(self, slot: int) -> Tensor:
        if slot == NOTHING:
            return torch.zeros(self._width, dtype=self._dtype)
        near = slot < self._near_slots
        numbers = self._near if near else self._far
        first = self._width * (slot if near else slot - self._near_slots)
        return numbers[first : first + self._width]

    def read(self, slots: Sequence[int]) -> Vectors:
        """A copy `(C, k)` of every named vector."""
        rows = [self._at(slot).split_with_sizes(self._lengths) for slot in slots]
        return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(self.names)}

    def write(self, slots: Sequence[int], vectors: Vectors) -> None:
        """Every named vector, a row per slot."""
        if {*vectors} != {*self.names}:
            raise UserError(
                f"algorithm: clients remember {sorted(vectors)}, but memory() declares "
                f"{sorted(self.names)}."
            )
        rows = [self._at(slot).split_with_sizes(self._lengths) for slot in slots]
        for k, name in enumerate(self.names):
            for row, vector in zip(rows, vectors[name], strict=True):
                row[k].copy_(vector)

    def state(self) -> Vectors:
        """Everything, as named vectors, clients in order."""
        clients = sorted(self._slots)
        rows = torch.zeros(len(clients), self._width, dtype=self._dtype)
        for row, client in zip(rows, clients, strict=True):
            row.copy_(self._at(self._slots[client]))
        return {
            "era": torch.tensor([self.era]),
            "clients": torch.tensor(clients, dtype=torch.int64),
            "rows": rows,
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.clear()
        self.era = int(state["era"])
        clients = state["clients"].tolist()
        self._slots = dict(zip(clients, self._new_slots(len(clients)), strict=True))
        for client, row in zip(clients, state["rows"], strict=True):
            self._at(self._slots[client]).copy_(row)

    def close(self) -> None:
        self._near.close()
        self._far.close()
