"""Where rows come from: bundled and downloaded data sets by name, anything else by path."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.partition import natural_order
from fedsaddle.data.sources.adult import adult
from fedsaddle.data.sources.arrays import arrays
from fedsaddle.data.sources.bundled import breast_cancer, digits
from fedsaddle.data.sources.cifar import cifar_10, cifar_100
from fedsaddle.data.sources.folders import image_lists, lists_images
from fedsaddle.data.sources.ham10000 import ham10000, ham10000_8x8
from fedsaddle.data.sources.heart import heart_disease
from fedsaddle.data.sources.idx import fashion_mnist, mnist, qmnist
from fedsaddle.data.sources.images import ImageFiles
from fedsaddle.data.sources.libsvm import SUFFIXES as LIBSVM_SUFFIXES
from fedsaddle.data.sources.libsvm import a9a, is_libsvm, libsvm
from fedsaddle.data.sources.medmnist import DESCRIPTIONS, has_splits, medmnist, read_splits
from fedsaddle.data.sources.raw import Raw
from fedsaddle.data.sources.shakespeare import leaf, plays, tiny
from fedsaddle.data.sources.stl import stl_10
from fedsaddle.data.sources.tables import tables
from fedsaddle.data.splits import TRAIN, VALIDATION
from fedsaddle.errors import UserError, nearest

SUFFIXES = (".csv", ".parquet", ".npz")


@dataclass(frozen=True)
class Source:
    """A named data set: its reader and one line about it."""

    read: Callable[[DataOptions, bool], Raw]
    description: str


SOURCES = {
    "breast-cancer": Source(
        breast_cancer, "Breast tumours, 569 rows, 37 % malignant (comes with scikit-learn)."
    ),
    "digits": Source(
        digits, "Handwritten digits 8x8, 1797 rows; 8 against the rest, or all ten (scikit-learn)."
    ),
    "heart-disease": Source(
        heart_disease, "Heart disease at four hospitals, 920 rows, 55 % positive (UCI, data.root)."
    ),
    "adult": Source(
        adult, "Incomes of the 1994 census, 48842 rows, 24 % above 50 000 dollars (UCI, data.root)."
    ),
    "a9a": Source(a9a, "Adult as 123 binary features, 48842 rows (LIBSVM, data.root)."),
    "shakespeare": Source(
        tiny, "Next character, 253 speakers, a million windows of 80 (data.root)."
    ),
    "shakespeare-plays": Source(
        plays, "Next character, 253 speakers of eight plays in XML (data.root)."
    ),
    "shakespeare-leaf": Source(
        leaf, "Next character, roles as LEAF's scripts write them (data.root)."
    ),
    "mnist": Source(mnist, "Handwritten digits 28x28, 60000 rows and 10000 to test."),
    "fashion-mnist": Source(fashion_mnist, "Clothes 28x28, 60000 rows and 10000 to test."),
    "qmnist": Source(qmnist, "MNIST by writer: 539 clients of 19 to 131 digits."),
    "cifar-10": Source(cifar_10, "Colour images 32x32 of ten classes, 50000 and 10000 to test."),
    "cifar-100": Source(cifar_100, "Colour images 32x32 of 100 classes, 50000 and 10000 to test."),
    "stl-10": Source(stl_10, "Colour images 96x96 of ten classes, 5000 and 8000 to test."),
    "ham10000": Source(ham10000, "Skin lesions from four collections, 11 % melanoma."),
    "ham10000-8x8": Source(ham10000_8x8, "All 10015 skin lesions of ham10000 in 8x8 grey pixels."),
    **{name: Source(medmnist, text) for name, text in DESCRIPTIONS.items()},
}


def read(options: DataOptions, binary: bool) -> Raw:
    """The rows of ``options.source``."""
    raw = _read(options, binary)
    for option in ("image_size", "image_mode"):
        if getattr(options, option) is not None and not isinstance(raw.array, ImageFiles):
            raise UserError(f"data.{option} is for image files, and {raw.source} has none.")
    if options.validation == 0 and raw.split is not None:
        # Who wants no validation rows wants them to train: the publisher's too.
        raw = replace(raw, split=np.where(raw.split == VALIDATION, TRAIN, raw.split))
    return raw


def _read(options: DataOptions, binary: bool) -> Raw:
    if isinstance(options.source, str) and options.source in SOURCES:
        for option in ("label", "client"):
            if getattr(options, option) is not None:
                raise UserError(
                    f"data.{option} does not apply to {options.source}, "
                    "which knows its own; remove it."
                )
        return SOURCES[options.source].read(options, binary)
    paths = find_files(options.source)
    if any(map(is_libsvm, paths)):
        if not all(map(is_libsvm, paths)):
            raise UserError("data.source mixes LIBSVM files with others; give one kind.")
        return libsvm(options, paths, binary)
    kinds = {path.suffix.lower() == ".npz" for path in paths}
    if len(kinds) > 1:
        raise UserError("data.source mixes NPZ files with tables; give one kind.")
    if kinds == {True} and len(paths) == 1 and has_splits(paths[0]):
        if options.label is not None:
            raise UserError(f"data.label does not apply to {paths[0]}, whose labels have a name.")
        return read_splits(options, paths[0], paths[0].stem, binary)
    if any(lists_images(path) for path in paths):
        return image_lists(options, paths, binary)
    return arrays(options, paths, binary) if kinds == {True} else tables(options, paths, binary)


def find_files(source: str | list[str]) -> list[Path]:
    """The files that a path, a list of paths, a folder or a glob stands for."""
    if isinstance(source, list):
        paths = [path for one in source for path in find_files(one)]
        if not paths:
            raise UserError("data.source is an empty list; name at least one file.")
    elif Path(source).is_dir():
        suffixes = (*SUFFIXES, *LIBSVM_SUFFIXES)
        names = [str(path) for path in Path(source).iterdir() if path.suffix.lower() in suffixes]
        paths = [Path(name) for name in natural_order(names)]
        if not paths:
            raise UserError(f"{source}: the folder has no CSV, Parquet, NPZ or LIBSVM file.")
    elif Path(source).is_file():
        paths = [Path(source)]
    elif glob.has_magic(source):
        paths = [Path(name) for name in natural_order(glob.glob(source, recursive=True))]
        if not paths:
            raise UserError(f"data.source: no file matches '{source}'.")
    elif Path(source).suffix or len(Path(source).parts) > 1:
        raise UserError(f"{source}: no such file.")
    else:
        raise UserError(
            f"data.source: no data set and no file '{source}'; {nearest(source, list(SOURCES))}"
        )
    for i, path in enumerate(paths):
        if path.suffix.lower() not in SUFFIXES and not is_libsvm(path):
            raise UserError(
                f"{path}: not a CSV, Parquet or NPZ file, nor of LIBSVM (by its suffix)."
            )
        if path.suffix != ".t" and any(path.stem == other.stem for other in paths[:i]):
            raise UserError(
                f"{path}: two sites' files are called '{path.stem}'; a file's name names its site."
            )
    return paths
