"""Publishers' binary files, read without trusting what they say of themselves.

Rows that would fill the memory are written once, decoded, to a cache file and read from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.published import fetch_advice
from fedsaddle.errors import UserError

MOST_IN_MEMORY = 256 * 2**20
"""Decoded bytes of one source that are held in memory; more are memory-mapped from a cache file."""
BLOCK = 16 * 2**20
CACHE = ".fedsaddle-cache"


def locate_any(options: DataOptions, source: str, folders: tuple[str, ...], *names: str) -> Path:
    """The first file or folder of these names in the data set's folders, or in the root itself."""
    for folder in (*(options.folder / name for name in folders), options.folder):
        for name in names:
            if (folder / name).exists():
                return folder / name
    raise missing(options.folder / folders[0] / names[0], source)


def missing(path: Path, source: str) -> UserError:
    """The complaint that a publisher's file is not there."""
    return UserError(f"{path} is missing; {fetch_advice(source)}")


@contextlib.contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """What goes wrong inside is the file's fault, and the user is told which file's."""
    try:
        yield
    except MemoryError as error:
        raise UserError(f"{path}: does not fit into memory ({error}).") from error
    except (
        OSError,  # also a bad gzip header or checksum
        EOFError,
        ValueError,
        RuntimeError,  # an encrypted or unsupported zip member
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
    ) as error:
        raise UserError(
            f"{path}: cannot be read as {kind} ({error}); is it complete? Get it again."
        ) from error


def fill(stream: BufferedIOBase, out: np.ndarray, where: Path) -> None:
    """Read exactly the bytes of an array, or say how many there were."""
    view, got = out.view(np.uint8).reshape(-1).data, 0
    while got < len(view):
        count = stream.readinto(view[got : got + BLOCK])
        if not count:
            raise UserError(
                f"{where}: ends after {got} of {len(view)} bytes of data; get it again."
            )
        got += count


def fill_rows(
    stream: BufferedIOBase,
    out: np.ndarray,
    shape: tuple[int, ...],
    arrange: Callable[[np.ndarray], np.ndarray],
    where: Path,
    dtype: np.dtype | None = None,
) -> None:
    """Read rows that a file holds as ``shape`` into ``out``, arranged otherwise, in blocks.

    The file's numbers are of type ``dtype``, or of that of ``out``.
    """
    dtype = dtype or out.dtype
    for rows in _blocks(out, dtype.itemsize * prod(shape)):
        block = np.empty((len(rows), *shape), dtype=dtype)
        fill(stream, block, where)
        rows[...] = arrange(block)


def _blocks(rows: np.ndarray, row_bytes: int) -> Iterator[np.ndarray]:
    """The rows, some megabytes at a time."""
    step = max(1, BLOCK // max(1, row_bytes))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def nothing_more(stream: BufferedIOBase, where: Path) -> None:
    """Refuse what follows the data; this also makes a compressed file check its checksum."""
    if stream.read(1):
        raise UserError(f"{where}: has more data than its header says; get it again.")


@dataclass(frozen=True)
class Block:
    """Some rows: how many, from which file, and what reads them into an array."""

    path: Path
    n_rows: int
    read: Callable[[np.ndarray], None]


def gather(
    blocks: list[Block], shape: tuple[int, ...], dtype: DTypeLike = np.uint8
) -> np.ndarray | Store:
    """All blocks' rows, in order: in memory, or memory-mapped if they are many.

    They are bytes, or float32, which must be finite.
    """
    whole, dtype = (sum(block.n_rows for block in blocks), *shape), np.dtype(dtype)
    size = prod(whole) * dtype.itemsize
    if size <= MOST_IN_MEMORY:
        rows = np.empty(whole, dtype=dtype)
        _read_blocks(blocks, rows)
        return rows
    path = _cache_path([block.path for block in blocks], whole, dtype)
    if not path.is_file() or path.stat().st_size != size:
        _write_cache(path, blocks, whole, dtype)
    return Mapped(path, whole, dtype)


def _read_blocks(blocks: list[Block], rows: np.ndarray) -> None:
    start = 0
    for block in blocks:
        own = rows[start : start + block.n_rows]
        block.read(own)
        if rows.dtype.kind == "f":
            _check_finite(own, block.path)
        start += block.n_rows


def _check_finite(rows: np.ndarray, where: Path) -> None:
    first = 1
    for some in _blocks(rows, rows.nbytes // max(1, len(rows))):
        finite = np.isfinite(some).reshape(len(some), -1).all(axis=1)
        if not finite.all():
            bad = first + int(np.argmin(finite))
            raise UserError(f"{where}: inputs must be finite, but row {bad} is not.")
        first += len(some)


def _cache_path(paths: list[Path], shape: tuple[int, ...], dtype: np.dtype) -> Path:
    """Beside the data if possible, named by the files and their state: a changed file gets anew."""
    folder = paths[0].parent
    if not os.access(folder, os.W_OK):
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsaddle"
    which = hashlib.sha256(repr([str(path.resolve()) for path in paths]).encode())
    stats = [path.stat() for path in paths]
    changes = [(s.st_size, s.st_mtime_ns) for s in stats]
    state = hashlib.sha256(repr([shape, dtype.str, changes]).encode())
    return folder / CACHE / f"{which.hexdigest()[:16]}-{state.hexdigest()[:16]}.bin"


def _write_cache(path: Path, blocks: list[Block], shape: tuple[int, ...], dtype: np.dtype) -> None:
    size = prod(shape) * dtype.itemsize
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise UserError(
                f"{blocks[0].path}: its {size / 1e9:.1f} GB do not fit on the disk of "
                f"{path.parent} ({free / 1e9:.1f} GB free)."
            )
        rows = np.memmap(part, dtype=dtype, mode="w+", shape=shape)
        _read_blocks(blocks, rows)
        rows.flush()
        part.replace(path)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written ({error}).") from error
    finally:
        part.unlink(missing_ok=True)
    for old in path.parent.glob(f"{path.name.split('-')[0]}-*.bin"):
        if old != path:
            old.unlink(missing_ok=True)


class Mapped(Store):
    """Rows in a file: only those asked for are read. Another process maps the same file."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> None:
        self.path, self._shape, self._dtype = path, shape, np.dtype(dtype)
        self._rows: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._rows is None:
            with readable(self.path, "a cache file"):
                mapped = np.memmap(self.path, dtype=self._dtype, mode="r", shape=self._shape)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not writable")  # nothing writes to it
                self._rows = torch.from_numpy(mapped)
        return self._rows[rows.cpu()].to(rows.device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}


def as_text(codes: np.ndarray, classes: tuple[str, ...], where: Path) -> np.ndarray:
    """Class names of class numbers.

    >>> as_text(np.array([1, 0]), ("cat", "dog"), Path("labels")).tolist()
    ['dog', 'cat']
    """
    codes = np.asarray(codes)
    if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(classes):
        raise UserError(
            f"{where}: labels must lie in 0..{len(classes) - 1}, "
            f"but they span {codes.min()}..{codes.max()}."
        )
    values: np.ndarray = np.array(classes, dtype=object)[codes]
    return values
