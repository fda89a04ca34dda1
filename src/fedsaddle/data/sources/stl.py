"""STL-10 (Coates, Ng & Lee, 2011): 96x96 colour images in plain binary files.

An image is 3x96x96 bytes with columns first; labels are bytes 1 to 10. The publisher's 5000
training and 8000 test images are used, and not the 100000 without labels.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.storage import (
    Block,
    as_text,
    fill_rows,
    gather,
    locate_any,
    missing,
    nothing_more,
    readable,
)
from fedsaddle.data.splits import TEST, TRAIN
from fedsaddle.errors import UserError

SHAPE = (3, 96, 96)
CLASSES = (
    "airplane",
    "bird",
    "car",
    "cat",
    "deer",
    "dog",
    "horse",
    "monkey",
    "ship",
    "truck",
)


def stl_10(options: DataOptions, binary: bool) -> Raw:
    """Read train_X.bin, train_y.bin, test_X.bin and test_y.bin."""
    folder = locate_any(options, "stl-10", ("stl-10",), "stl10_binary")
    blocks, labels, parts, split = [], [], [], []
    for name, mark in (("train", TRAIN), ("test", TEST)):
        images, classes = folder / f"{name}_X.bin", folder / f"{name}_y.bin"
        for path in (images, classes):
            if not path.is_file():
                raise missing(path, "stl-10")
        with readable(classes, "bytes"):
            codes = np.fromfile(classes, dtype=np.uint8)
        expected = len(codes) * int(np.prod(SHAPE))
        if images.stat().st_size != expected or not len(codes):
            raise UserError(
                f"{images}: has {images.stat().st_size} bytes, but {expected} are needed for the "
                f"{len(codes)} labels of {classes}; get both again."
            )
        if codes.min() == 0:
            raise UserError(f"{classes}: labels must lie in 1..10, but one is 0.")
        labels.append(as_text(codes - 1, CLASSES, classes))
        blocks.append(Block(images, len(codes), partial(_read, images)))
        parts.append(Part(str(images), len(codes)))
        split.append(np.full(len(codes), mark, dtype=np.int8))
    return Raw(
        source="stl-10",
        parts=tuple(parts),
        array=gather(blocks, SHAPE),
        labels=np.concatenate(labels),
        classes=CLASSES,
        split=np.concatenate(split),
    )


def _read(path: Path, out: np.ndarray) -> None:
    with readable(path, "bytes"), open(path, "rb") as file:
        fill_rows(file, out, SHAPE, lambda block: block.swapaxes(2, 3), path)
        nothing_more(file, path)
