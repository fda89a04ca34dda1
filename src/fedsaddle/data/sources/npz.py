"""Arrays in NPZ files: read one at a time, never unpickled, none larger than it says it is."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase
from math import prod
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from fedsaddle.data.sources.storage import fill, fill_rows, nothing_more, readable
from fedsaddle.errors import UserError

KIND = "NPZ of plain arrays"

Arrange = Callable[[np.ndarray], np.ndarray]


class Header(NamedTuple):
    """What an array in a file is, before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype
    columns_first: bool
    """Fortran's order, in which a row's numbers are not beside each other."""


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise UserError(f"{path}: no such file.")
        with readable(path, KIND), open(path, "rb") as file:
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                raise UserError(f"{path}: holds a single array; save X and y with numpy.savez.")
            with zipfile.ZipFile(file) as archive:
                members = [name for name in archive.namelist() if name.endswith(".npy")]
        self._names = [name.removesuffix(".npy") for name in members]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with opened(self.path, name) as (stream, header):
            order = header.shape[::-1] if header.columns_first else header.shape
            values = np.empty(order, dtype=header.dtype)
            fill(stream, values, self.path)
            nothing_more(stream, self.path)
        return values.T if header.columns_first else values

    def header(self, name: str) -> Header:
        """Of an array that is there."""
        with opened(self.path, name) as (_, header):
            return header

    def read_rows(self, name: str, arrange: Arrange, out: np.ndarray) -> None:
        """Fill ``out`` with an array's rows, arranged otherwise, a few at a time."""
        with opened(self.path, name) as (stream, header):
            if not header.columns_first:
                fill_rows(stream, out, header.shape[1:], arrange, self.path, header.dtype)
                nothing_more(stream, self.path)
                return
        out[...] = arrange(self[name])  # no row is complete before the last number is read


@contextmanager
def opened(path: Path, name: str) -> Iterator[tuple[BufferedIOBase, Header]]:
    """An array of a file, opened behind its header."""
    with readable(path, KIND), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise UserError(f"{path}: has no array '{name}'.")
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as member:
            stream = cast(BufferedIOBase, member)
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream)
            elif version == (2, 0):
                shape, columns_first, dtype = np.lib.format.read_array_header_2_0(stream)
            else:
                raise ValueError(f"NPY version {version}")
            if dtype.hasobject:
                raise ValueError(f"'{name}' holds Python objects, which would have to be unpickled")
            size = stream.tell() + prod(shape) * dtype.itemsize
            if info.file_size != size:
                raise UserError(
                    f"{path}: '{name}' unpacks to {info.file_size} bytes, but its shape {shape} "
                    f"needs {size}; the file is not to be trusted."
                )
            yield stream, Header(tuple(shape), dtype, columns_first)
