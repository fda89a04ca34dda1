"""NPZ: array X, and optionally y (labels) and client (the client of every row).

Labels of several findings are y of shape (n, k), or one array each, named by ``data.label``.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import tidy
from fedsaddle.data.sources.raw import Part, Raw, all_present
from fedsaddle.errors import UserError, nearest


def arrays(options: DataOptions, paths: list[Path], binary: bool) -> Raw:
    """Read the files; several files without a client array are one site each.

    A two-dimensional X is a table of numeric columns x0, x1, …; any other X is used as it is,
    and bytes are taken for images.
    """
    import pandas as pd

    inputs: list[np.ndarray] = []
    labels, clients, parts = [], [], []
    for path in paths:
        found = _read(path)
        X = _array(found, "X", None, path)
        if X.ndim < 2 or X.dtype.kind not in "fiub":
            raise UserError(
                f"{path}: X must hold numbers in two or more dimensions, "
                f"not {X.dtype} of shape {X.shape}."
            )
        if not len(X):
            raise UserError(f"{path}: has no rows.")
        if inputs and X.shape[1:] != inputs[0].shape[1:]:
            raise UserError(
                f"{path}: a row of X has shape {X.shape[1:]}, "
                f"but {inputs[0].shape[1:]} in {paths[0]}."
            )
        inputs.append(X)
        label, client = options.label or "y", options.client or "client"
        labelled = isinstance(label, list) or label in found
        if options.label or binary or labelled:
            labels.append(labels_of(found, label, path, len(X)))
            if labels[-1].shape[1:] != labels[0].shape[1:]:
                raise UserError(f"{path}: has other findings than {paths[0]}.")
        if options.client or client in found:
            clients.append(_one_per_row(found, client, "client", path, len(X)))
        elif len(paths) > 1:
            clients.append(np.full(len(X), path.stem, dtype=object))
        if labels and len(labels) != len(inputs):
            lacking, having = (paths[0], path) if labelled else (path, paths[0])
            raise UserError(f"{lacking}: no array '{label}', which {having} has.")
        parts.append(Part(str(path), len(X)))
    X = np.concatenate(inputs)
    is_table = X.ndim == 2
    rows = np.concatenate([np.arange(1, len(part) + 1) for part in inputs])
    names = [f"x{i}" for i in range(X.shape[1])]
    return Raw(
        source=", ".join(map(str, paths)),
        parts=tuple(parts),
        table=pd.DataFrame(X, columns=names, index=rows) if is_table else None,
        array=None if is_table else X if X.dtype == np.uint8 else X.astype(np.float32, copy=False),
        labels=np.concatenate(labels) if labels else None,
        clients=np.concatenate(clients) if clients else None,
        findings=_names(options, labels),
    )


def _names(options: DataOptions, labels: list[np.ndarray]) -> tuple[str, ...]:
    if isinstance(options.label, list):
        return tuple(options.label)
    several = labels and labels[0].ndim == 2
    return tuple(str(k) for k in range(labels[0].shape[1])) if several else ()


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        # Never unpickle: a stranger's file could run code.
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise UserError(f"{path}: holds a single array; save X and y with numpy.savez.")
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as NPZ of plain arrays ({error}).") from error


def _array(found: dict[str, np.ndarray], name: str, option: str | None, path: Path) -> np.ndarray:
    if name not in found:
        setting = f"data.{option}: " if option else ""
        raise UserError(f"{setting}{path} has no array '{name}'; {nearest(name, list(found))}")
    return found[name]


def labels_of(
    found: dict[str, np.ndarray], label: str | Sequence[str], path: Path, n: int
) -> np.ndarray:
    """The label of every row as text, or (n, k) with None where one of k findings is unknown."""
    if not isinstance(label, str):
        columns = [_array(found, name, "label", path) for name in label]
        if any(column.shape != (n,) for column in columns):
            raise UserError(f"{path}: each finding must have one value per row of X, shape ({n},).")
        values = np.stack(columns, axis=1)
    else:
        values = _array(found, label, "label", path)
        if values.ndim != 2 or values.shape[0] != n or values.shape[1] < 2:
            return _one_per_row(found, label, "label", path, n)
    return np.array([[tidy(cell) for cell in row] for row in values.tolist()], dtype=object)


def _one_per_row(
    found: dict[str, np.ndarray], name: str, option: str, path: Path, n: int
) -> np.ndarray:
    values = _array(found, name, option, path)
    if values.shape != (n,):
        raise UserError(
            f"{path}: array '{name}' must have one value per row of X, shape ({n},), "
            f"not {values.shape}."
        )
    tidied = np.array([tidy(value) for value in values.tolist()], dtype=object)
    return all_present(tidied, name, option, str(path))
