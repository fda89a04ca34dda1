"""MedMNIST (Yang et al., 2023), and any NPZ file with train_images, val_images and test_images.

The publisher's training rows are dealt to clients; its validation and test rows are the site
"held-out". Where a row has several findings (chestmnist), ``data.positive`` is the number of one;
without it a problem for several findings takes all.
"""

from __future__ import annotations

import zipfile
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.npz import Arrays
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.storage import Block, as_text, gather, locate_any
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
    arrays = Arrays(path)
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    if "train" not in splits:
        raise UserError(f"{path}: has no array 'train_images'.")
    blocks, labels, parts, marks = [], [], [], []
    first = _image_shape(arrays, "train")
    for split in splits:
        if (shape := _image_shape(arrays, split)) != first:
            raise UserError(f"{path}: '{split}_images' are {shape}, but training's {first}.")
        blocks.append(_block(arrays, split))
        n = blocks[-1].n_rows
        labels.append(_labels(arrays, f"{split}_labels", n))
        parts.append(Part(f"{path} ({split})", n))
        marks.append(np.full(n, SPLITS[split], dtype=np.int8))
    if len({codes.shape[1] for codes in labels}) > 1:
        raise UserError(f"{path}: its label arrays differ in their number of columns.")
    codes = np.concatenate(labels)
    findings: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    positive = None
    if codes.shape[1] > 1 and options.positive is None and not binary:
        findings = finding_names(name, codes.shape[1])
        values = codes.astype(str).astype(object)
    else:
        values, classes, positive = _values(options.positive, codes, path, name)
    return Raw(
        source=name,
        parts=tuple(parts),
        array=gather(blocks, first),
        labels=values,
        classes=classes,
        positive=positive,
        findings=findings,
        split=np.concatenate(marks),
    )


def split_images(path: Path, split: str) -> np.ndarray | Store:
    """The images of one split of a file."""
    arrays = Arrays(path)
    if f"{split}_images" not in arrays:
        raise UserError(f"{path}: has no array '{split}_images'.")
    return gather([_block(arrays, split)], _image_shape(arrays, split))


def split_labels(path: Path, split: str, n: int, classes: tuple[str, ...]) -> np.ndarray:
    """The labels of one split of ``n`` images as text, one or several per row.

    Where rows have several findings and ``classes`` are those of one of them, it is that one.
    """
    codes = _labels(Arrays(path), f"{split}_labels", n)
    of_one = len(classes) == 2 and classes[0] == f"not {classes[1]}"
    if codes.shape[1] > 1 and not of_one:
        return codes.astype(str).astype(object)
    return _values(classes[-1], codes, path, path.stem)[0]


def finding_names(name: str, number: int) -> tuple[str, ...]:
    """What the columns of a set's labels are called."""
    if name == "chestmnist" and number == len(CHEST):
        return CHEST
    return tuple(map(str, range(number)))


def _values(
    chosen: str | None, codes: np.ndarray, path: Path, name: str
) -> tuple[np.ndarray, tuple[str, ...], str | None]:
    """Labels as text, the classes in order, and the positive one."""
    n_findings = codes.shape[1]
    if n_findings == 1:
        numbers = tuple(str(code) for code in range(int(codes.max()) + 1))
        classes, positive = CLASSES.get(name, (numbers, None))
        return as_text(codes[:, 0], classes, path), classes, positive
    wanted = (chosen or "").strip()
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


def _image_shape(arrays: Arrays, split: str) -> tuple[int, ...]:
    """The shape of a split's images, colours first."""
    shape, dtype, _ = arrays.header(f"{split}_images")
    if dtype != np.uint8 or len(shape) < 3 or not prod(shape):
        raise UserError(
            f"{arrays.path}: '{split}_images' must be bytes of shape (rows, height, width) or "
            f"(rows, height, width, 3), not {dtype} of shape {shape}."
        )
    return (3, *shape[1:-1]) if _in_colour(shape) else (1, *shape[1:])


def _in_colour(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[-1] == 3


def _block(arrays: Arrays, split: str) -> Block:
    def arrange(rows: np.ndarray) -> np.ndarray:
        return np.moveaxis(rows, -1, 1) if _in_colour(rows.shape) else rows[:, None]

    name = f"{split}_images"
    read = partial(arrays.read_rows, name, arrange)
    return Block(arrays.path, arrays.header(name).shape[0], read)


def _labels(arrays: Arrays, name: str, n: int) -> np.ndarray:
    path = arrays.path
    if name not in arrays:
        raise UserError(f"{path}: has no array '{name}'.")
    shape, dtype, _ = arrays.header(name)
    if dtype.kind not in "iu" or shape[:1] != (n,) or len(shape) > 2 or not prod(shape):
        raise UserError(
            f"{path}: '{name}' must be whole numbers, one per image (shape ({n}, 1)), "
            f"not {dtype} of shape {shape}."
        )
    codes = arrays[name].reshape(n, -1).astype(np.int64)
    lowest = -1 if codes.shape[1] > 1 else 0  # a finding may be unknown
    if not lowest <= int(codes.min()) <= int(codes.max()) < 1000:
        raise UserError(f"{path}: '{name}' must lie in {lowest}..999.")
    return codes
