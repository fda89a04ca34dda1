"""From options to clients: source, subsample, partition, split, preprocess; in this order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsaddle.data import partition
from fedsaddle.data.federated import FederatedData, Rows, split_clients
from fedsaddle.data.labels import encode, match
from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import (
    Preprocessing,
    describe_columns,
    fit,
    merge_columns,
    numbers,
    texts,
)
from fedsaddle.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from fedsaddle.data.sources.raw import Raw

# One machine fits for all clients here, so many small clients may share a sum.
MOST_SITES = 64


def load(options: DataOptions, *, seed: int = 0, binary: bool = True) -> FederatedData:
    """The data of a configuration's ``[data]`` section.

    ``binary`` says that the problem needs two classes; otherwise a label with more values stays
    multi-class unless ``options.positive`` is given, and labels may be absent.

    >>> data = load(DataOptions(source="breast-cancer", clients=3))
    >>> data.n_clients, data.classes, data.input_shape
    (3, ('benign', 'malignant'), (30,))
    """
    from fedsaddle.data.sources import read

    raw = read(options, binary)
    n = sum(part.n_rows for part in raw.parts)
    labels = np.zeros(n, dtype=np.int64)
    classes: tuple[str, ...] = ()
    if raw.labels is not None:
        positive = options.positive or raw.positive
        labels, classes = encode(raw.labels, positive, binary, raw.source)
    elif options.positive is not None:
        raise UserError(f"data.positive: {raw.source} has no labels; name them with data.label.")

    kept = np.arange(n)
    if options.positive_ratio is not None:
        kept = partition.subsample_positives(labels, options.positive_ratio, seed)
    owner, names = _clients(options, raw, labels[kept], kept, seed)
    train, validation, test = split_clients(
        labels[kept], owner, options.test, options.validation, seed
    )

    preprocessing = None
    if raw.table is not None:
        table, preprocessing = _preprocessing(options, raw, raw.table, kept, train, names)
        inputs = preprocessing.transform(table.iloc[kept], raw.source)
    else:
        for option in ("drop", "numeric", "categorical", "zero_is_missing"):
            if getattr(options, option):
                raise UserError(f"data.{option} names columns, but {raw.source} has none.")
        assert raw.array is not None
        inputs = raw.array[kept].astype(np.float32, copy=False)
    return FederatedData(
        torch.as_tensor(inputs),
        torch.from_numpy(labels[kept]),
        train,
        validation,
        test,
        names=names,
        classes=classes,
        preprocessing=preprocessing,
        source=raw.source,
    )


def load_table(
    path: str | Path,
    preprocessing: Preprocessing,
    label: str | None = None,
    classes: tuple[str, ...] | None = None,
    client: str | None = None,
) -> tuple[pd.DataFrame, torch.Tensor, torch.Tensor | None, np.ndarray | None]:
    """A CSV or Parquet file for prediction or evaluation: table, inputs, labels, client names.

    The table has the file's rows in order and its cells as written, for writing back. With
    ``label``, its column becomes labels under the model's ``classes``; with ``client``, its column
    becomes one client name per row.
    """
    from fedsaddle.data.sources.raw import text_column
    from fedsaddle.data.sources.tables import read_table

    where = str(path)
    table = read_table(Path(path))
    inputs = torch.from_numpy(preprocessing.transform(table, where))
    labels = clients = None
    if label is not None:
        if not classes:
            raise UserError(f"{where}: labels can be read only with the model's classes.")
        labels = torch.from_numpy(
            match(text_column(table, label, "label", where), tuple(classes), where)
        )
    if client is not None:
        clients = text_column(table, client, "client", where)
    return table.reset_index(drop=True), inputs, labels, clients


def _clients(
    options: DataOptions, raw: Raw, labels: np.ndarray, kept: np.ndarray, seed: int
) -> tuple[Rows, tuple[str, ...]]:
    how = options.partition or ("dirichlet" if raw.clients is None else "column")
    if how == "column":
        if raw.clients is None:
            raise UserError(
                f"data.partition = 'column': {raw.source} does not say whose rows are whose; "
                "name the column with data.client, or give one file per site."
            )
        # All clients stay listed, also those that lost every row to positive_ratio.
        owner, names = partition.by_column(raw.clients)
        owners = np.empty(len(raw.clients), dtype=np.int64)
        owners[owner.indices] = owner.owners
        return Rows.from_owners(owners[kept], len(names)), names
    if how == "iid":
        rows = partition.iid(len(labels), options.clients, seed)
    elif how == "sorted":
        rows = partition.sorted_blocks(labels, options.clients, options.similarity, seed)
    else:
        rows = partition.dirichlet(labels, options.clients, options.alpha, seed)
    return rows, tuple(f"client-{i}" for i in range(options.clients))


def _preprocessing(
    options: DataOptions,
    raw: Raw,
    table: pd.DataFrame,
    kept: np.ndarray,
    train: Rows,
    names: tuple[str, ...],
) -> tuple[pd.DataFrame, Preprocessing]:
    """The table with typed columns, and the preprocessing fitted on its training rows."""
    import pandas as pd

    for option in ("drop", "numeric", "categorical", "zero_is_missing"):
        for name in getattr(options, option):
            if name not in table.columns:
                raise UserError(
                    f"data.{option}: {raw.source} has no feature column '{name}'; "
                    f"{nearest(name, list(table.columns))}"
                )
    table = table.drop(columns=options.drop)
    if not len(table.columns):
        raise UserError(f"{raw.source}: no feature column is left.")
    left = set(table.columns)
    numeric = left.intersection(options.numeric)
    categorical = left.intersection({*raw.categorical} - numeric | {*options.categorical})

    # Columns get their type from all rows, file by file, so that errors name the file and a text
    # among the test rows is no surprise later. Means, scales and categories come from training.
    described, start = [], 0
    for part in raw.parts:
        rows = table.iloc[start : start + part.n_rows]
        described.append(describe_columns(rows, numeric, part.where))
        start += part.n_rows
    where = [part.where for part in raw.parts]
    schema = merge_columns(described, numeric, categorical, where)
    for name in options.zero_is_missing:
        if schema.get(name) == "categorical":
            raise UserError(f"data.zero_is_missing: column '{name}' is not numeric.")
    table = pd.DataFrame(
        {
            name: numbers(table[name])[0] if kind == "numeric" else texts(table[name])
            for name, kind in schema.items()
        },
        index=table.index,
    )
    groups = np.array_split(np.arange(len(train)), min(len(train), MOST_SITES))
    frames = [
        table.iloc[kept[train.indices[train.offsets[g[0]] : train.offsets[g[-1] + 1]]]]
        for g in groups
    ]
    fitted = fit(
        frames,
        [name for name, kind in schema.items() if kind == "numeric"],
        [name for name, kind in schema.items() if kind == "categorical"],
        options.max_categories,
        standardise=options.standardise,
        zero_is_missing=[
            name
            for name in {*raw.zero_is_missing, *options.zero_is_missing}
            if schema.get(name) == "numeric"
        ],
        where=[names[g[0]] if len(g) == 1 else f"{names[g[0]]} … {names[g[-1]]}" for g in groups],
    )
    return table, fitted
