"""LIBSVM files: one row a line, ``label index:value …``, what is not listed is 0.

A file whose name ends in ``.t`` is, by the publisher's custom, the test set of the others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import tidy
from fedsaddle.data.sources.published import fetch_advice, locate
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.storage import Block, gather
from fedsaddle.data.splits import TEST, TRAIN
from fedsaddle.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SUFFIXES = (".libsvm", ".svm", ".svmlight")
MOST_BYTES = 4 * 2**30
MOST_TIMES = 64
"""Rows become dense: at most to so many bytes, or so many times the size of the files."""

_LINE = re.compile(rb"\s*[+-]?[0-9.]+(e[+-]?[0-9]+)?(\s+[0-9]+:\S+)+\s*(#.*)?")


def is_libsvm(path: Path) -> bool:
    """By its suffix; a name without one, or with that of a test set, by its first line.

    >>> is_libsvm(Path("train.svm")), is_libsvm(Path("train.csv"))
    (True, False)
    """
    if path.suffix.lower() == ".t" and Path(path.stem).suffix.lower() in SUFFIXES:
        return True
    if path.suffix.lower() not in ("", ".t") or not path.is_file():
        return path.suffix.lower() in SUFFIXES
    with open(path, "rb") as file:
        return _LINE.fullmatch(file.readline(2**20)) is not None


def a9a(options: DataOptions, binary: bool) -> Raw:
    """Adult as 123 binary features; a9a.t is the test set. In ``root/libsvm``, or ``root``."""
    paths = [locate(options, "libsvm", name, fetch_advice("a9a")) for name in ("a9a", "a9a.t")]
    return replace(libsvm(options, paths, binary), source="a9a")


def libsvm(options: DataOptions, paths: list[Path], binary: bool) -> Raw:
    """Read the files into one dense float32 matrix; several training files are one site each.

    The numbers that the files list are held in memory; the matrix is memory-mapped if it is large.
    """
    for option in ("label", "client"):
        if getattr(options, option) is not None:
            raise UserError(f"data.{option} does not apply to LIBSVM files; remove it.")
    X, labels = _read(paths, options.width)
    counts = [len(part) for part in labels]
    is_test = [path.suffix.lower() == ".t" for path in paths]
    if all(is_test):  # then it is simply the data
        is_test = [False] * len(paths)
    sites = [None if test else path.stem for path, test in zip(paths, is_test, strict=True)]
    several = len(sites) - sites.count(None) > 1
    marks = np.repeat([TEST if test else TRAIN for test in is_test], counts).astype(np.int8)
    return Raw(
        source=", ".join(map(str, paths)),
        parts=tuple(Part(str(path), n) for path, n in zip(paths, counts, strict=True)),
        array=X,
        labels=np.concatenate(labels),
        clients=np.repeat(np.array(sites, dtype=object), counts) if several else None,
        split=marks if any(is_test) else None,
    )


def _read(paths: list[Path], width: int | None) -> tuple[np.ndarray | Store, list[np.ndarray]]:
    from sklearn.datasets import load_svmlight_file

    loaded = []
    for path in paths:
        try:
            # As published, indices count from 1.
            loaded.append(load_svmlight_file(str(path), dtype=np.float32, zero_based=False))
        except (ValueError, OSError, OverflowError) as error:
            reason = str(error).strip() or type(error).__name__
            raise UserError(f"{path}: cannot be read as LIBSVM ({reason}).") from error
        if not loaded[-1][0].shape[0]:
            raise UserError(f"{path}: has no rows.")
    found = [X.shape[1] for X, _ in loaded]
    width = width or max(found)
    if width < max(found):
        where = paths[found.index(max(found))]
        raise UserError(f"data.width: {where} has a feature {max(found)}, more than {width}.")
    _check_density(paths, sum(X.shape[0] for X, _ in loaded), width)
    blocks = []
    for path, (X, _) in zip(paths, loaded, strict=True):
        X.resize(X.shape[0], width)  # the largest index may be missing from a file
        blocks.append(Block(path, X.shape[0], partial(_fill_dense, X)))
    labels = [np.array([tidy(y) for y in ys], dtype=object) for _, ys in loaded]
    return gather(blocks, (width,), np.float32), labels


def _check_density(paths: list[Path], n: int, width: int) -> None:
    """A small file can list a few numbers of huge rows: those are not written out."""
    size, listed = 4 * n * width, sum(path.stat().st_size for path in paths)
    if size > max(MOST_BYTES, MOST_TIMES * listed):
        raise UserError(
            f"{paths[0]}: {n} rows of {width} features are {size / 2**30:.0f} GB when dense, and "
            "nearly all of them 0; choose a data set with fewer features."
        )


def _fill_dense(X: csr_matrix, out: np.ndarray) -> None:
    for start in range(0, len(out), 1024):
        out[start : start + 1024] = X[start : start + 1024].toarray()
