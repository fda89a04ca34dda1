"""MNIST, Fashion-MNIST and QMNIST: the idx format.

LeCun, Cortes & Burges (1998); Xiao, Rasul & Vollgraf (2017); Yadav & Bottou (2019). An idx file is
a magic number (type of the numbers, number of dimensions), the size of each dimension, and the
numbers; all big-endian, usually gzipped.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.storage import (
    Block,
    as_text,
    fill,
    gather,
    locate_any,
    nothing_more,
    readable,
)
from fedsaddle.data.splits import TEST, TRAIN
from fedsaddle.errors import UserError

BYTES, INTS = 0x08, 0x0C
TYPES: dict[int, np.dtype] = {BYTES: np.dtype(np.uint8), INTS: np.dtype(">i4")}
DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
WRITER = 2  # QMNIST: class, series, writer, …


def mnist(options: DataOptions, binary: bool) -> Raw:
    """Handwritten digits: 60000 training rows, and 10000 test rows as the site "held-out"."""
    return _images(options, "mnist", DIGITS)


def fashion_mnist(options: DataOptions, binary: bool) -> Raw:
    """Pictures of clothes in MNIST's format and sizes."""
    return _images(options, "fashion-mnist", CLOTHES)


def qmnist(options: DataOptions, binary: bool) -> Raw:
    """MNIST with the writer of every digit: each of the 539 training writers is a client.

    The test digits, by 297 other writers, are the site "held-out".
    """
    from dataclasses import replace

    raw = _images(options, "mnist", DIGITS)
    assert raw.labels is not None
    clients = np.full(len(raw.labels), None, dtype=object)
    start = 0
    for part, name in zip(raw.parts, ("train", "test"), strict=True):
        file = f"qmnist-{name}-labels-idx2-int"
        path = locate_any(options, "qmnist", ("qmnist-writers", "qmnist"), f"{file}.gz", file)
        table = _small(path, INTS, 2)
        n = part.n_rows
        if len(table) < n or table.shape[1] <= WRITER:
            raise UserError(
                f"{path}: must have at least {n} rows of 8 columns, not shape {table.shape}."
            )
        if (table[:n, 0].astype(str) != raw.labels[start : start + n]).any():
            raise UserError(f"{path}: its digits are not those of {part.where}; get both again.")
        if name == "train":
            clients[:n] = [f"writer-{writer}" for writer in table[:n, WRITER].tolist()]
        start += n
    return replace(raw, source="qmnist", clients=clients)


def _images(options: DataOptions, source: str, classes: tuple[str, ...]) -> Raw:
    blocks, labels, parts, split = [], [], [], []
    for prefix, mark in (("train", TRAIN), ("t10k", TEST)):
        names = [f"{prefix}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        images, classes_of = (locate_any(options, source, (source,), f"{n}.gz", n) for n in names)
        with _opened(images) as stream:
            n, *size = _header(stream, images, BYTES, 3)
        if size != [28, 28]:
            raise UserError(f"{images}: its images are {size[0]}x{size[1]} and must be 28x28.")
        codes = _small(classes_of, BYTES, 1)
        if len(codes) != n:
            raise UserError(f"{classes_of}: {len(codes)} labels, but {images} has {n} images.")
        if not n:
            raise UserError(f"{images}: has no rows.")
        labels.append(as_text(codes, classes, classes_of))
        blocks.append(Block(images, n, partial(_read_images, images)))
        parts.append(Part(str(images), n))
        split.append(np.full(n, mark, dtype=np.int8))
    return Raw(
        source=source,
        parts=tuple(parts),
        array=gather(blocks, (1, 28, 28)),
        labels=np.concatenate(labels),
        classes=classes,
        split=np.concatenate(split),
    )


def _read_images(path: Path, out: np.ndarray) -> None:
    with _opened(path) as stream:
        _header(stream, path, BYTES, 3)
        fill(stream, out, path)
        nothing_more(stream, path)


def _small(path: Path, kind: int, n_dimensions: int) -> np.ndarray:
    with _opened(path) as stream:
        shape = _header(stream, path, kind, n_dimensions)
        values = np.empty(shape, dtype=TYPES[kind])
        fill(stream, values, path)
        nothing_more(stream, path)
    return values


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    with readable(path, "idx"), open(path, "rb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield unzipped
        else:
            yield file


def _header(stream: BufferedIOBase, path: Path, kind: int, n_dimensions: int) -> list[int]:
    start = stream.read(4)
    wanted = struct.pack(">HBB", 0, kind, n_dimensions)
    if start != wanted:
        raise UserError(
            f"{path}: begins with {start.hex() or 'nothing'} and must begin with {wanted.hex()}; "
            "it is another kind of file."
        )
    sizes = stream.read(4 * n_dimensions)
    if len(sizes) < 4 * n_dimensions:
        raise UserError(f"{path}: ends within its header; get it again.")
    shape = list(struct.unpack(f">{n_dimensions}I", sizes))
    # Deflate shrinks at most 1032 times: set no memory aside for a header that claims more.
    claimed = TYPES[kind].itemsize
    for size in shape:
        claimed *= size
    if claimed > 1032 * path.stat().st_size:
        raise UserError(f"{path}: is too small for the {claimed} bytes that its header claims.")
    return shape
