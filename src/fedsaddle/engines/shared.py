"""Numbers that all processes of a run see."""

import mmap
import os
import tempfile
import weakref

import torch
from torch import Tensor


def nameless_file(on_disk: bool = False) -> int:
    """The number of a new file that is gone when the last process that has it open has ended."""
    if hasattr(os, "memfd_create") and not on_disk:
        return os.memfd_create("fedsaddle")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedNumbers:
    """A row of numbers in a file without a name, in memory or on disk, which grows as it is needed.

    A process that is forked off sees the same numbers. Where nothing was written, they are zero.

    >>> numbers = SharedNumbers(torch.float32)
    >>> numbers.make_room(4)
    >>> numbers[1:3].fill_(1.0)
    tensor([1., 1.])
    """

    def __init__(self, dtype: torch.dtype, on_disk: bool = False) -> None:
        self._dtype, self._size, self._file = dtype, 0, nameless_file(on_disk)
        self._closing = weakref.finalize(self, os.close, self._file)
        self._numbers = torch.zeros(0, dtype=dtype)

    def make_room(self, count: int) -> None:
        """For so many numbers at least."""
        size = count * self._dtype.itemsize
        if self._size < size:
            self._size = max(size, 2 * self._size)
            os.ftruncate(self._file, self._size)

    def __getitem__(self, wanted: slice) -> Tensor:
        return self.up_to(wanted.stop)[wanted]

    def up_to(self, count: int) -> Tensor:
        """All numbers that this process sees, so many at least."""
        if count > len(self._numbers):  # another process may have made it larger
            size = os.fstat(self._file).st_size
            self._numbers = torch.frombuffer(mmap.mmap(self._file, size), dtype=self._dtype)
        return self._numbers

    def close(self) -> None:
        """Give the memory back, as soon as nobody looks at numbers in it."""
        self._numbers = torch.zeros(0, dtype=self._dtype)
        self._closing()
