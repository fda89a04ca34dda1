"""Numbers that all processes of a run see: vectors pass through here, not through pipes."""

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Where a matrix lies."""

    first: int
    rows: int
    columns: int


class Arena:
    """One block of shared memory without a name, which grows as it is needed.

    A process that is forked off sees the same numbers. Matrices are laid out anew for every use:
    what was placed before `clear` may be overwritten after it.

    >>> arena = Arena(torch.float32)
    >>> place = arena.place(2, 3)
    >>> arena[place].fill_(1.0).sum().item()
    6.0
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype, self._used, self._size = dtype, 0, 0
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("fedsaddle")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._closing = weakref.finalize(self, os.close, self._file)
        self._numbers = torch.zeros(0, dtype=dtype)

    def clear(self) -> None:
        """Forget all places."""
        self._used = 0

    def place(self, rows: int, columns: int) -> Place:
        """Room for a matrix."""
        found = Place(self._used, rows, columns)
        self._used += -(-rows * columns // 16) * 16  # starts at a cache line
        size = self._used * self._dtype.itemsize
        if self._size < size:
            self._size = max(size, 2 * self._size)
            os.ftruncate(self._file, self._size)
        return found

    def put(self, vectors: Mapping[str, Tensor]) -> dict[str, Place]:
        """Copies of vectors or matrices, and where they are."""
        places = {}
        for name, vector in vectors.items():
            matrix = vector.unsqueeze(0) if vector.ndim == 1 else vector
            places[name] = self.place(*matrix.shape)
            self[places[name]].copy_(matrix)
        return places

    def __getitem__(self, place: Place) -> Tensor:
        stop = place.first + place.rows * place.columns
        if stop > len(self._numbers):  # another process may have made it larger
            size = os.fstat(self._file).st_size
            memory = mmap.mmap(self._file, size)
            self._numbers = torch.frombuffer(memory, dtype=self._dtype)
        return self._numbers[place.first : stop].view(place.rows, place.columns)

    def close(self) -> None:
        """Give the memory back, as soon as nobody looks at numbers in it."""
        self._numbers = torch.zeros(0, dtype=self._dtype)
        self._closing()
