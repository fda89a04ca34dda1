"""MedMNIST (Yang et al., 2023), and any NPZ file with train_images, val_images and test_images.

The publisher's training rows are dealt to clients; its validation and test rows are the site
"held-out". Where a row has several findings (chestmnist), ``data.positive`` is the number of one;
without it a problem for several findings takes all.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from math import prod
from pathlib import Path
from typing import cast

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.storage import (
    Block,
    as_text,
    fill,
    fill_rows,
    gather,
    locate_any,
    nothing_more,
    readable,
)
from fedsaddle.data.splits import TEST, TRAIN, VALIDATION
from fedsaddle.errors import UserError

SPLITS = {"train": TRAIN, "val": VALIDATION, "test": TEST}
DESCRIPTIONS = {
    "pathmnist": "Colon tissue 28x28, 107180 rows, nine kinds.",
    "chestmnist": "Chest X-rays 28x28, 112120 rows, 14 findings, or one (positive: its number).",
    "dermamnist": "Skin lesions 28x28, 10015 rows, seven kinds.",
    "octmnist": "Retinal tomography 28x28, 109309 rows, four kinds.",
    "pneumoniamnist": "Children's chest X-rays 28x28, 5856 rows, 73 % pneumonia.",
    "retinamnist": "Retinal photographs 28x28, 1600 rows, five grades.",
    "breastmnist": "Breast ultrasound 28x28, 780 rows, 27 % malignant.",
    "bloodmnist": "Blood cells 28x28, 17092 rows, eight kinds.",
    "tissuemnist": "Kidney cells 28x28, 236386 rows, eight kinds.",
    "organamnist": "Abdominal organs 28x28 (axial), 58830 rows, eleven kinds.",
    "organcmnist": "Abdominal organs 28x28 (coronal), 23583 rows, eleven kinds.",
    "organsmnist": "Abdominal organs 28x28 (sagittal), 25211 rows, eleven kinds.",
}
CLASSES = {  # with the positive one: the illness, which in breastmnist is class 0
    "pneumoniamnist": (("normal", "pneumonia"), "pneumonia"),
    "breastmnist": (("malignant", "normal, benign"), "malignant"),
}
CHEST = (
    *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia"),
    *("pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
)


def medmnist(options: DataOptions, binary: bool) -> Raw:
    """The set that ``options.source`` names, from ``root/medmnist``."""
    name = str(options.source)
    path = locate_any(options, name, ("medmnist",), f"{name}.npz")
    return read_splits(options, path, name, binary)


def has_splits(path: Path) -> bool:
    """Whether an NPZ file has MedMNIST's arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "train_images.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read_splits(options: DataOptions, path: Path, name: str, binary: bool) -> Raw:
    """One NPZ file; a split that it lacks has no rows."""
    with readable(path, "NPZ"), zipfile.ZipFile(path) as archive:
        present = archive.namelist()
    splits = [split for split in SPLITS if f"{split}_images.npy" in present]
    if "train" not in splits:
        raise UserError(f"{path}: has no array 'train_images'.")
    blocks, labels, parts, marks = [], [], [], []
    first: tuple[int, ...] = ()
    for split in splits:
        with _member(path, f"{split}_images") as (_, shape, dtype):
            pass
        if dtype != np.uint8 or len(shape) < 3 or not prod(shape):
            raise UserError(
                f"{path}: '{split}_images' must be bytes of shape (rows, height, width) or "
                f"(rows, height, width, 3), not {dtype} of shape {shape}."
            )
        first = first or shape[1:]
        if shape[1:] != first:
            raise UserError(f"{path}: '{split}_images' are {shape[1:]}, but training's {first}.")
        labels.append(_labels(path, f"{split}_labels", shape[0]))
        blocks.append(Block(path, shape[0], partial(_read, path, f"{split}_images")))
        parts.append(Part(f"{path} ({split})", shape[0]))
        marks.append(np.full(shape[0], SPLITS[split], dtype=np.int8))
    if len({codes.shape[1] for codes in labels}) > 1:
        raise UserError(f"{path}: its label arrays differ in their number of columns.")
    in_colour = len(first) == 3 and first[-1] == 3
    codes = np.concatenate(labels)
    findings: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    positive = None
    if codes.shape[1] > 1 and options.positive is None and not binary:
        numbers = tuple(map(str, range(codes.shape[1])))
        findings = CHEST if name == "chestmnist" and len(CHEST) == len(numbers) else numbers
        values = codes.astype(str).astype(object)
    else:
        values, classes, positive = _values(options, codes, path, name)
    return Raw(
        source=name,
        parts=tuple(parts),
        array=gather(blocks, (3, *first[:-1]) if in_colour else (1, *first)),
        labels=values,
        classes=classes,
        positive=positive,
        findings=findings,
        split=np.concatenate(marks),
    )


def _values(
    options: DataOptions, codes: np.ndarray, path: Path, name: str
) -> tuple[np.ndarray, tuple[str, ...], str | None]:
    """Labels as text, the classes in order, and the positive one."""
    n_findings = codes.shape[1]
    if n_findings == 1:
        numbers = tuple(str(code) for code in range(int(codes.max()) + 1))
        classes, positive = CLASSES.get(name, (numbers, None))
        return as_text(codes[:, 0], classes, path), classes, positive
    wanted = (options.positive or "").strip()
    if not (wanted.isdecimal() and int(wanted) < n_findings):
        raise UserError(
            f"data.positive: each row of {path} has {n_findings} findings; "
            f"choose one by its number, 0 to {n_findings - 1}."
        )
    one = codes[:, int(wanted)]
    if one.min() < 0:
        raise UserError(f"{path}: finding {int(wanted)} is unknown (-1) in some rows; give all.")
    classes = (f"not {int(wanted)}", str(int(wanted)))
    return as_text((one != 0).astype(int), classes, path), (), None


def _labels(path: Path, name: str, n: int) -> np.ndarray:
    with _member(path, name) as (stream, shape, dtype):
        if dtype.kind not in "iu" or shape[:1] != (n,) or len(shape) > 2 or not prod(shape):
            raise UserError(
                f"{path}: '{name}' must be whole numbers, one per image (shape ({n}, 1)), "
                f"not {dtype} of shape {shape}."
            )
        codes = np.empty(shape, dtype=dtype)
        fill(stream, codes, path)
        nothing_more(stream, path)
    codes = codes.reshape(n, -1).astype(np.int64)
    lowest = -1 if codes.shape[1] > 1 else 0  # a finding may be unknown
    if not lowest <= int(codes.min()) <= int(codes.max()) < 1000:
        raise UserError(f"{path}: '{name}' must lie in {lowest}..999.")
    return codes


def _read(path: Path, name: str, out: np.ndarray) -> None:
    with _member(path, name) as (stream, shape, _):
        if len(shape) == 4 and shape[-1] == 3:
            fill_rows(stream, out, shape[1:], lambda block: np.moveaxis(block, -1, 1), path)
        else:
            fill(stream, out, path)
        nothing_more(stream, path)


@contextmanager
def _member(path: Path, name: str) -> Iterator[tuple[BufferedIOBase, tuple[int, ...], np.dtype]]:
    """An array of the file, opened behind its header; never unpickled."""
    with readable(path, "NPZ"), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise UserError(f"{path}: has no array '{name}'.")
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as opened:
            stream = cast(BufferedIOBase, opened)
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            elif version == (2, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
            else:
                raise ValueError(f"NPY version {version}")
            if dtype.hasobject or fortran:
                raise UserError(f"{path}: '{name}' must be plain numbers in C order.")
            size = stream.tell() + prod(shape) * dtype.itemsize
            if info.file_size != size:
                raise UserError(
                    f"{path}: '{name}' unpacks to {info.file_size} bytes, but its shape {shape} "
                    f"needs {size}; the file is not to be trusted."
                )
            yield stream, tuple(shape), dtype
