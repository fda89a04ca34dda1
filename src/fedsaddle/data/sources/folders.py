"""Image files listed in CSV files: a column ``path``, the label or several, and the client.

Paths are relative to the CSV file. Other columns are not used.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.images import FORMATS, image_files
from fedsaddle.data.sources.raw import Part, Raw, label_columns, text_column
from fedsaddle.data.sources.tables import read_csv
from fedsaddle.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

PATH = "path"


def lists_images(path: Path) -> bool:
    """Whether a CSV file has a column ``path`` that names an image in the first row."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header, first = next(rows, []), next(rows, [])
    except (OSError, ValueError, csv.Error):
        return False  # the reader of tables says what is wrong
    cells = dict(zip([name.strip() for name in header], first, strict=False))
    return Path(cells.get(PATH, "").strip()).suffix.lower() in FORMATS


def listed_files(frame: pd.DataFrame, path: Path) -> list[Path]:
    """The image of every row of a list; all of them must be there."""
    if PATH not in frame.columns:
        raise UserError(f"{path}: no column '{PATH}' of image files.")
    files = [path.parent / name for name in text_column(frame, PATH, PATH, str(path))]
    for row, file in enumerate(files, start=1):
        if not file.is_file():
            raise UserError(f"{path}: the image '{file}' of row {row} is missing.")
    return files


def image_lists(options: DataOptions, paths: list[Path], binary: bool) -> Raw:
    """Read the lists; several without a client column are one site each."""
    files: list[Path] = []
    labels, clients = [], []
    parts: list[Part] = []
    for path in paths:
        frame = read_csv(path)
        where = str(path)
        files += listed_files(frame, path)
        label = options.label or ("label" if "label" in frame.columns else None)
        if label is not None:
            labels.append(label_columns(frame, label, where))
        elif binary:
            raise UserError(
                f"{where}: say which column is the label with data.label; "
                f"columns: {', '.join(frame.columns)}"
            )
        if len(labels) not in (0, len(parts) + 1):
            lacking, having = (path, paths[0]) if label is None else (paths[0], path)
            raise UserError(f"{lacking}: no column 'label', which {having} has.")
        if options.client is not None:
            clients.append(text_column(frame, options.client, "client", where))
        elif len(paths) > 1:
            clients.append(np.full(len(frame), path.stem, dtype=object))
        parts.append(Part(where, len(frame)))
    return Raw(
        source=", ".join(map(str, paths)),
        parts=tuple(parts),
        array=image_files(files, options),
        labels=np.concatenate(labels) if labels else None,
        clients=np.concatenate(clients) if clients else None,
        findings=tuple(options.label) if isinstance(options.label, list) else (),
    )
