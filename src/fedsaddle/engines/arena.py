"""Where vectors of a phase lie, so that all processes see them: they do not pass through pipes."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.engines.shared import SharedNumbers

KEPT = 2**12
"""Rows that are kept at hand: to look one up takes a tenth of the time that it takes to find it."""


class Place(NamedTuple):
    """Where a matrix lies."""

    first: int
    rows: int
    columns: int


class Arena:
    """One block of shared numbers for matrices, which are laid out anew for every use.

    What was placed before `clear` may be overwritten after it.

    >>> arena = Arena(torch.float32)
    >>> place = arena.place(2, 3)
    >>> arena[place].fill_(1.0).sum().item()
    6.0
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._numbers, self._used = SharedNumbers(dtype), 0
        self._rows: dict[tuple[int, int], Tensor] = {}

    def clear(self) -> None:
        """Forget all places."""
        self._used = 0

    def place(self, rows: int, columns: int) -> Place:
        """Room for a matrix."""
        found = Place(self._used, rows, columns)
        self._used += -(-rows * columns // 16) * 16  # starts at a cache line
        self._numbers.make_room(self._used)
        return found

    def put(self, vectors: Mapping[str, Tensor]) -> dict[str, Place]:
        """Copies of vectors or matrices, and where they are."""
        places = {}
        for name, vector in vectors.items():
            places[name] = self.place(len(vector) if vector.ndim == 2 else 1, vector.shape[-1])
            self[places[name]].copy_(vector)
        return places

    def __getitem__(self, place: Place) -> Tensor:
        first, rows, columns = place
        return self._numbers.up_to(first + rows * columns).as_strided(
            (rows, columns), (columns, 1), first
        )

    def row(self, place: Place, number: int = 0) -> Tensor:
        """One row of the matrix there, the same tensor for all who ask."""
        first, columns = place.first + number * place.columns, place.columns
        row = self._rows.get((first, columns))
        if row is None:
            if len(self._rows) >= KEPT:
                self._rows.clear()
            row = self._numbers.up_to(first + columns).as_strided((columns,), (1,), first)
            self._rows[first, columns] = row
        return row

    def close(self) -> None:
        self._rows.clear()
        self._numbers.close()
