"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): Python 2 pickles of 32x32 colour images."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.partition import natural_order
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.storage import Block, as_text, gather, locate_any, missing
from fedsaddle.data.sources.unpickle import unpickle
from fedsaddle.data.splits import TEST, TRAIN
from fedsaddle.errors import UserError

SHAPE = (3, 32, 32)


def cifar_10(options: DataOptions, binary: bool) -> Raw:
    """Ten classes. All of data_batch_1 … data_batch_5 that are there train; test_batch tests."""
    folder = locate_any(options, "cifar-10", ("cifar-10",), "cifar-10-batches-py")
    batches = natural_order([str(path) for path in folder.glob("data_batch_*")])
    if not batches:
        raise missing(folder / "data_batch_1", "cifar-10")
    files = [(Path(batch), TRAIN) for batch in batches] + [(folder / "test_batch", TEST)]
    return _read("cifar-10", files, "labels", folder / "batches.meta", "label_names")


def cifar_100(options: DataOptions, binary: bool) -> Raw:
    """A hundred classes (the fine labels)."""
    folders = ("cifar-100", "cifar-100-subset")
    folder = locate_any(options, "cifar-100", folders, "cifar-100-python")
    files = [(folder / "train", TRAIN), (folder / "test", TEST)]
    return _read("cifar-100", files, "fine_labels", folder / "meta", "fine_label_names")


def _read(source: str, files: list[tuple[Path, int]], key: str, meta: Path, names: str) -> Raw:
    classes = _classes(source, meta, names)
    blocks, labels, parts, split = [], [], [], []
    for path, mark in files:
        found = _unpickled(source, path)
        data, codes = _pixels(found, path), found.get(key)
        if not isinstance(codes, list) or not all(type(code) is int for code in codes):
            raise UserError(f"{path}: '{key}' must be a list of whole numbers.")
        if len(codes) != len(data) or not codes:
            raise UserError(f"{path}: {len(data)} images but {len(codes)} labels.")
        blocks.append(Block(path, len(data), partial(_read_images, source, path)))
        labels.append(as_text(np.array(codes), classes, path))
        parts.append(Part(str(path), len(data)))
        split.append(np.full(len(data), mark, dtype=np.int8))
    return Raw(
        source=source,
        parts=tuple(parts),
        array=gather(blocks, SHAPE),
        labels=np.concatenate(labels),
        classes=classes,
        split=np.concatenate(split),
    )


def _pixels(found: dict[str, object], path: Path) -> np.ndarray:
    data = found.get("data")
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072:
        raise UserError(f"{path}: 'data' must be an array of bytes with 3072 columns.")
    return data


def _read_images(source: str, path: Path, out: np.ndarray) -> None:
    """Once more from the file, so that one file's images at most are in memory beside ``out``."""
    out[...] = _pixels(_unpickled(source, path), path).reshape(-1, *SHAPE)


def _classes(source: str, path: Path, key: str) -> tuple[str, ...]:
    names = _unpickled(source, path).get(key)
    if not isinstance(names, list) or len(names) < 2 or not all(type(n) is str for n in names):
        raise UserError(f"{path}: '{key}' must be a list of class names.")
    return tuple(names)


def _unpickled(source: str, path: Path) -> dict[str, object]:
    if not path.is_file():
        raise missing(path, source)
    return unpickle(path)
