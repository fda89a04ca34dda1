"""NPZ: array X, and optionally y (labels) and client (the client of every row).

Labels of several findings are y of shape (n, k), or one array each, named by ``data.label``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import tidy
from fedsaddle.data.sources.npz import Arrays, Header
from fedsaddle.data.sources.raw import Part, Raw, all_present
from fedsaddle.data.sources.storage import Block, gather
from fedsaddle.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd


def arrays(options: DataOptions, paths: list[Path], binary: bool) -> Raw:
    """Read the files; several files without a client array are one site each.

    A two-dimensional X is a table of numeric columns x0, x1, …, held in memory; any other X is used
    as it is, memory-mapped if it is large, and bytes are taken for images.
    """
    files: list[Arrays] = []
    headers: list[Header] = []
    labels, clients, parts = [], [], []
    for path in paths:
        found = Arrays(path)
        X = _header(found, path)
        if headers and X.shape[1:] != headers[0].shape[1:]:
            raise UserError(
                f"{path}: a row of X has shape {X.shape[1:]}, "
                f"but {headers[0].shape[1:]} in {paths[0]}."
            )
        files.append(found)
        headers.append(X)
        n = X.shape[0]
        label, client = options.label or "y", options.client or "client"
        labelled = isinstance(label, list) or label in found
        if options.label or binary or labelled:
            labels.append(labels_of(found, label, path, n))
            if labels[-1].shape[1:] != labels[0].shape[1:]:
                raise UserError(f"{path}: has other findings than {paths[0]}.")
        if options.client or client in found:
            clients.append(_one_per_row(found, client, "client", path, n))
        elif len(paths) > 1:
            clients.append(np.full(n, path.stem, dtype=object))
        if labels and len(labels) != len(files):
            lacking, having = (paths[0], path) if labelled else (path, paths[0])
            raise UserError(f"{lacking}: no array '{label}', which {having} has.")
        parts.append(Part(str(path), n))
    is_table = len(headers[0].shape) == 2
    return Raw(
        source=", ".join(map(str, paths)),
        parts=tuple(parts),
        table=_table(files) if is_table else None,
        array=None if is_table else rows_of(files, headers),
        labels=np.concatenate(labels) if labels else None,
        clients=np.concatenate(clients) if clients else None,
        findings=_names(options, labels),
    )


def _header(found: Arrays, path: Path) -> Header:
    if "X" not in found:
        raise UserError(f"{path} has no array 'X'; {nearest('X', list(found))}")
    X = found.header("X")
    if len(X.shape) < 2 or X.dtype.kind not in "fiub":
        raise UserError(
            f"{path}: X must hold numbers in two or more dimensions, "
            f"not {X.dtype} of shape {X.shape}."
        )
    if not X.shape[0]:
        raise UserError(f"{path}: has no rows.")
    return X


def _table(files: list[Arrays]) -> pd.DataFrame:
    import pandas as pd

    inputs = [found["X"] for found in files]
    rows = np.concatenate([np.arange(1, len(X) + 1) for X in inputs])
    names = [f"x{i}" for i in range(inputs[0].shape[1])]
    return pd.DataFrame(np.concatenate(inputs), columns=names, index=rows)


def rows_of(files: list[Arrays], headers: list[Header]) -> np.ndarray | Store:
    """All files' X: bytes stay bytes, other numbers become float32."""
    in_bytes = all(header.dtype == np.uint8 for header in headers)
    blocks = [
        Block(found.path, header.shape[0], partial(found.read_rows, "X", lambda rows: rows))
        for found, header in zip(files, headers, strict=True)
    ]
    return gather(blocks, headers[0].shape[1:], np.uint8 if in_bytes else np.float32)


def _names(options: DataOptions, labels: list[np.ndarray]) -> tuple[str, ...]:
    if isinstance(options.label, list):
        return tuple(options.label)
    several = labels and labels[0].ndim == 2
    return tuple(str(k) for k in range(labels[0].shape[1])) if several else ()


def _array(
    found: Mapping[str, np.ndarray], name: str, option: str | None, path: Path
) -> np.ndarray:
    if name not in found:
        setting = f"data.{option}: " if option else ""
        raise UserError(f"{setting}{path} has no array '{name}'; {nearest(name, list(found))}")
    return found[name]


def labels_of(
    found: Mapping[str, np.ndarray], label: str | Sequence[str], path: Path, n: int
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
    found: Mapping[str, np.ndarray], name: str, option: str, path: Path, n: int
) -> np.ndarray:
    values = _array(found, name, option, path)
    if values.shape != (n,):
        raise UserError(
            f"{path}: array '{name}' must have one value per row of X, shape ({n},), "
            f"not {values.shape}."
        )
    tidied = np.array([tidy(value) for value in values.tolist()], dtype=object)
    return all_present(tidied, name, option, str(path))
