"""Where rows come from: bundled and downloaded data sets by name, anything else by path."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsaddle.data.options import DataOptions
from fedsaddle.data.partition import natural_order
from fedsaddle.data.sources.arrays import arrays
from fedsaddle.data.sources.bundled import breast_cancer, digits
from fedsaddle.data.sources.heart import heart_disease
from fedsaddle.data.sources.raw import Raw
from fedsaddle.data.sources.tables import tables
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
}


def read(options: DataOptions, binary: bool) -> Raw:
    """The rows of ``options.source``."""
    if isinstance(options.source, str) and options.source in SOURCES:
        for option in ("label", "client"):
            if getattr(options, option) is not None:
                raise UserError(
                    f"data.{option} does not apply to {options.source}, "
                    "which knows its own; remove it."
                )
        return SOURCES[options.source].read(options, binary)
    paths = find_files(options.source)
    kinds = {path.suffix.lower() == ".npz" for path in paths}
    if len(kinds) > 1:
        raise UserError("data.source mixes NPZ files with tables; give one kind.")
    return arrays(options, paths, binary) if kinds == {True} else tables(options, paths, binary)


def find_files(source: str | list[str]) -> list[Path]:
    """The files that a path, a list of paths, a folder or a glob stands for."""
    if isinstance(source, list):
        paths = [path for one in source for path in find_files(one)]
        if not paths:
            raise UserError("data.source is an empty list; name at least one file.")
    elif Path(source).is_dir():
        names = [str(path) for path in Path(source).iterdir() if path.suffix.lower() in SUFFIXES]
        paths = [Path(name) for name in natural_order(names)]
        if not paths:
            raise UserError(f"{source}: the folder has no CSV, Parquet or NPZ file.")
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
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"{path}: not a CSV, Parquet or NPZ file (by its suffix).")
        if any(path.stem == other.stem for other in paths[:i]):
            raise UserError(
                f"{path}: two sites' files are called '{path.stem}'; a file's name names its site."
            )
    return paths
