"""What every source hands over: rows as found, before labels, clients and scaling are settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedsaddle.data.federated import Store
from fedsaddle.data.preprocess import texts
from fedsaddle.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Part:
    """The rows of one file, under the name that error messages use."""

    where: str
    n_rows: int


@dataclass(frozen=True)
class Raw:
    """A source's rows.

    ``table`` has features in columns, to be preprocessed, and each row's number in its file as
    index; ``array`` has features ready for use. One of the two is given. ``labels`` and
    ``clients`` are text, one per row, or None when the source has none.

    ``split`` says where the publisher put each row: 0 training, 1 validation, 2 test. Rows held
    out in this way go to their client, or, where ``clients`` is None for them or the clients are
    made by a partition, to one extra site. ``together`` names a group per row (a patient) that a
    split must not cut. ``classes`` are the label values in the publisher's order. With ``findings``
    the labels have a column for each, and None where one is not known.
    """

    source: str
    parts: tuple[Part, ...]
    table: pd.DataFrame | None = None
    array: np.ndarray | Store | None = None
    labels: np.ndarray | None = None
    clients: np.ndarray | None = None
    positive: str | None = None
    classes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    split: np.ndarray | None = None
    together: np.ndarray | None = None
    categorical: tuple[str, ...] = ()
    zero_is_missing: tuple[str, ...] = ()


def label_columns(frame: pd.DataFrame, label: str | Sequence[str], where: str) -> np.ndarray:
    """The label of every row as text, or (n, k) with None where one of k findings is unknown."""
    if isinstance(label, str):
        return text_column(frame, label, "label", where)
    return np.stack([texts(_column(frame, name, "label", where)) for name in label], axis=1)


def text_column(frame: pd.DataFrame, name: str, option: str, where: str) -> np.ndarray:
    """A column that must have a value in every row (a label, a client), as text."""
    return all_present(texts(_column(frame, name, option, where)), name, option, where)


def _column(frame: pd.DataFrame, name: str, option: str, where: str) -> pd.Series:
    if name not in frame.columns:
        raise UserError(
            f"data.{option}: {where} has no column '{name}'; {nearest(name, list(frame.columns))}"
        )
    return frame[name]


def all_present(values: np.ndarray, name: str, option: str, where: str) -> np.ndarray:
    """The values, unless one is missing."""
    for row, value in enumerate(values, start=1):
        if value is None:
            raise UserError(
                f"{where}: the {option} '{name}' is missing in row {row}; "
                "fill it in or remove the row."
            )
    return values
