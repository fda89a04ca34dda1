"""CSV and Parquet: one file with a client column, or one file per site."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.raw import Part, Raw, label_columns, text_column
from fedsaddle.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def tables(options: DataOptions, paths: list[Path], binary: bool) -> Raw:
    """Read the files; several files without a client column are one site each."""
    import pandas as pd

    features, labels, clients, parts = [], [], [], []
    columns: list[str] = []
    for path in paths:
        frame = read_table(path)
        columns = columns or list(frame.columns)
        _same_columns(frame, path, columns, paths[0])
        label = options.label or ("label" if "label" in frame.columns else None)
        if label is not None:
            labels.append(label_columns(frame, label, str(path)))
        elif binary:
            raise UserError(
                f"{path}: say which column is the label with data.label; "
                f"columns: {', '.join(frame.columns)}"
            )
        if options.client is not None:
            clients.append(text_column(frame, options.client, "client", str(path)))
        elif len(paths) > 1:
            clients.append(np.full(len(frame), path.stem, dtype=object))
        used = [*([label] if isinstance(label, str) else label or []), options.client]
        features.append(frame.drop(columns=[name for name in used if name is not None]))
        parts.append(Part(str(path), len(frame)))
    return Raw(
        source=", ".join(map(str, paths)),
        parts=tuple(parts),
        table=pd.concat(features),  # in the first file's order of columns
        labels=np.concatenate(labels) if labels else None,
        clients=np.concatenate(clients) if clients else None,
        findings=tuple(options.label) if isinstance(options.label, list) else (),
    )


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as a table; the index counts its rows from 1."""
    if not path.is_file():
        raise UserError(f"{path}: no such file.")
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    if path.suffix.lower() == ".csv":
        return read_csv(path)
    raise UserError(f"{path}: unknown kind of table; give a .csv or .parquet file.")


def read_csv(path: Path, header: tuple[str, ...] | None = None) -> pd.DataFrame:
    """A CSV file with every cell as its text; ``header`` names the columns of a file without."""
    import pandas as pd

    try:
        # The header as data: pandas would rename a repeated column without a word.
        rows = pd.read_csv(
            path,
            header=None,
            dtype=str,
            keep_default_na=False,
            encoding="utf-8-sig",
        )
    except (ValueError, OSError) as error:  # pandas' and Unicode errors are ValueErrors
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: cannot be read as CSV ({reason}).") from error
    if header is None:
        names = ["" if cell != cell else str(cell).strip() for cell in rows.iloc[0]]
        rows = rows.iloc[1:].set_axis(names, axis=1)
    elif len(header) != rows.shape[1]:
        raise UserError(f"{path}: has {rows.shape[1]} columns, not {len(header)}.")
    else:
        rows = rows.set_axis(list(header), axis=1)
    return _checked(rows, path)


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow

    try:
        frame = pd.read_parquet(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as Parquet; is it complete?") from error
    for name, column in frame.items():
        if column.dtype == object and not column.map(lambda cell: isinstance(cell, Hashable)).all():
            raise UserError(f"{path}: column '{name}' holds lists; leave it out of the file.")
    if frame.index.names != [None]:
        frame = frame.reset_index()
    return _checked(frame.set_axis([str(name) for name in frame.columns], axis=1), path)


def _checked(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    if not len(frame):
        raise UserError(f"{path}: has no rows.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UserError(f"{path}: two columns are called '{twice}'; rename one.")
    return frame.set_axis(range(1, len(frame) + 1))


def _same_columns(frame: pd.DataFrame, path: Path, columns: list[str], first: Path) -> None:
    missing = [name for name in columns if name not in frame.columns]
    extra = [name for name in frame.columns if name not in columns]
    if missing or extra:
        lacking, having = (path, first) if missing else (first, path)
        raise UserError(
            f"{lacking}: no column '{[*missing, *extra][0]}', which {having} has; "
            "all sites' files need the same columns."
        )
