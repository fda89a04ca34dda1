"""From options to clients: source, subsample, partition, split, preprocess; in this order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsaddle.data import partition
from fedsaddle.data.federated import FederatedData, Rows, Store, split_clients, strata
from fedsaddle.data.labels import encode, encode_findings, match
from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import (
    Preprocessing,
    describe_columns,
    fit,
    merge_columns,
    numbers,
    texts,
)
from fedsaddle.data.splits import HELD_OUT, TEST, TRAIN, VALIDATION, split_together, with_more
from fedsaddle.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from fedsaddle.data.sources.images import ImageFormat
    from fedsaddle.data.sources.raw import Raw

# A mark beside those of the publisher's split: a row that is not used.
LEFT_OUT = 3

# One machine fits for all clients here, so many small clients may share a sum.
MOST_SITES = 64


def load(options: DataOptions, *, seed: int = 0, binary: bool = True) -> FederatedData:
    """The data of a configuration's ``[data]`` section.

    ``binary`` says that the problem needs two classes; otherwise a label with more values stays
    multi-class unless ``options.positive`` is given, and labels may be absent. Where rows have
    several findings, partitions and splits go by a row's rarest one (``federated.strata``).

    >>> data = load(DataOptions(source="breast-cancer", clients=3))
    >>> data.n_clients, data.classes, data.input_shape
    (3, ('benign', 'malignant'), (30,))
    """
    from fedsaddle.data.sources import read

    seed = seed if options.seed is None else options.seed
    raw = read(options, binary)
    n = sum(part.n_rows for part in raw.parts)
    labels = np.zeros(n, dtype=np.int64)
    classes: tuple[str, ...] = ()
    if raw.findings:
        assert raw.labels is not None
        labels, classes = _findings(options, raw, raw.labels), raw.findings
    elif raw.labels is not None:
        positive = options.positive or raw.positive
        labels, classes = encode(raw.labels, positive, binary, raw.source, raw.classes)
    elif options.positive is not None:
        raise UserError(f"data.positive: {raw.source} has no labels; name them with data.label.")

    marks = np.zeros(n, dtype=np.int8) if raw.split is None else raw.split
    raw, marks, group_of = _settle_clients(options, raw, marks, seed)
    kept = np.flatnonzero(marks == TRAIN)
    if options.positive_ratio is not None:
        kept = kept[partition.subsample_positives(labels[kept], options.positive_ratio, seed)]
    dealt = strata(labels[kept])
    owner, names = _clients(options, raw, dealt, kept, seed)
    parts = split_rows(options, raw, dealt, owner, kept, marks, seed)
    if np.isin(marks, (VALIDATION, TEST)).any():
        whose = raw.clients if options.partition in (None, "column", "feature") else None
        kept, names, parts = add_held_out(marks, whose, kept, names, parts)
    train, validation, test = only_training(options, raw, names, parts)

    preprocessing = None
    if raw.table is not None:
        table, preprocessing = _preprocessing(options, raw, raw.table, kept, train, names)
        inputs: torch.Tensor | Store = torch.from_numpy(
            preprocessing.transform(table.iloc[kept], raw.source)
        )
    else:
        for option in ("drop", "numeric", "categorical", "zero_is_missing"):
            if getattr(options, option):
                raise UserError(f"data.{option} names columns, but {raw.source} has none.")
        assert raw.array is not None
        inputs = raw.array if isinstance(raw.array, Store) else torch.from_numpy(raw.array)
        # Images may be many or on disk: they stay where they are, and rows are named instead.
        train, validation, test = (
            Rows(kept[rows.indices], rows.offsets) for rows in (train, validation, test)
        )
        kept = np.arange(n)
    return FederatedData(
        inputs,
        torch.from_numpy(labels[kept]),
        train,
        validation,
        test,
        names=names,
        classes=classes,
        preprocessing=preprocessing,
        source=raw.source,
        groups=tuple(group_of.get(name, name) for name in names) if group_of else (),
        positive=options.positive if raw.findings else None,
    )


def load_table(
    path: str | Path,
    inputs_by: Preprocessing | ImageFormat,
    label: str | Sequence[str] | None = None,
    classes: tuple[str, ...] | None = None,
    client: str | None = None,
    positive: str | None = None,
) -> tuple[pd.DataFrame, torch.Tensor | Store, torch.Tensor | None, np.ndarray | None]:
    """A CSV or Parquet file for prediction or evaluation: table, inputs, labels, client names.

    The table has the file's rows in order and its cells as written, for writing back. Inputs are
    its columns, or the images that its column ``path`` names. With ``label``, its column becomes
    labels under the model's ``classes``; with several, their columns become those of the model's
    findings (``positive`` as at training). With ``client``, its column becomes one client name per
    row.
    """
    from fedsaddle.data.sources.folders import listed_files
    from fedsaddle.data.sources.images import ImageFiles
    from fedsaddle.data.sources.raw import label_columns, text_column
    from fedsaddle.data.sources.tables import read_table

    where = str(path)
    table = read_table(Path(path))
    if isinstance(inputs_by, Preprocessing):
        inputs: torch.Tensor | Store = torch.from_numpy(inputs_by.transform(table, where))
    else:
        inputs = ImageFiles(listed_files(table, Path(path)), inputs_by.size, inputs_by.mode)
    labels = clients = None
    if label is not None:
        if not classes:
            raise UserError(f"{where}: labels can be read only with the model's classes.")
        cells = label_columns(table, label, where)
        if isinstance(label, str):
            labels = torch.from_numpy(match(cells, tuple(classes), where))
        else:
            labels = match_findings(cells, label, classes, positive, where)
    if client is not None:
        clients = text_column(table, client, "client", where)
    return table.reset_index(drop=True), inputs, labels, clients


def match_findings(
    cells: np.ndarray,
    names: Sequence[str],
    findings: Sequence[str],
    positive: str | None,
    where: str,
) -> torch.Tensor:
    """Labels (n, k) of a model's findings from the named columns; unknown without a column."""
    labels = np.full((len(cells), len(findings)), -1, dtype=np.int64)
    place = [list(findings).index(name) for name in names]
    labels[:, place] = encode_findings(cells, names, positive, where)
    return torch.from_numpy(labels)


def _findings(options: DataOptions, raw: Raw, cells: np.ndarray) -> np.ndarray:
    if options.positive_ratio is not None:
        raise UserError("data.positive_ratio is for one label, and the rows have several findings.")
    labels = encode_findings(cells, raw.findings, options.positive, raw.source)
    if options.positive is not None and not (labels == 1).any():
        raise UserError(
            f"data.positive: no finding of {raw.source} has the value '{options.positive}'."
        )
    return labels


def _settle_clients(
    options: DataOptions, raw: Raw, marks: np.ndarray, seed: int
) -> tuple[Raw, np.ndarray, dict[str, str]]:
    """The source with the clients that ``feature`` and ``min_rows`` ask for, and their groups.

    Both make or change the source's own clients, so that the publisher's test rows find theirs.
    """
    group_of: dict[str, str] = {}
    if options.partition == "feature":
        values = _feature(options, raw)
        clients, group_of = partition.by_value(values, marks == TRAIN, options.clients, seed)
        raw = replace(raw, clients=clients)
    elif options.feature is not None:
        if raw.clients is None or options.partition not in (None, "column"):
            raise UserError(
                "data.feature names groups for data.partition = 'feature', or for the source's "
                "own clients; choose one of these partitions."
            )
        group_of = partition.groups_of(raw.clients, _feature(options, raw), options.feature)
    if options.min_rows > 1:
        if raw.clients is None or options.partition not in (None, "column", "feature"):
            raise UserError("data.min_rows chooses among a source's own clients; it has none here.")
        small = partition.small_clients(raw.clients, options.min_rows)
        if small.all():
            raise UserError(f"data.min_rows: no client has {options.min_rows} rows.")
        clients = raw.clients.astype(object)
        clients[small] = None
        raw = replace(raw, clients=clients)
        marks = np.where(small, LEFT_OUT, marks)
    return raw, marks, group_of


def _feature(options: DataOptions, raw: Raw) -> np.ndarray:
    """The column ``options.feature`` as text; a missing value is the value "missing"."""
    if options.feature is None:
        raise UserError("data.partition = 'feature': name the column with data.feature.")
    if raw.table is None:
        raise UserError(f"data.feature names a column, but {raw.source} has none.")
    if options.feature not in raw.table.columns:
        raise UserError(
            f"data.feature: {raw.source} has no feature column '{options.feature}'; "
            f"{nearest(options.feature, list(raw.table.columns))}"
        )
    values = texts(raw.table[options.feature])
    return np.where(values == None, "missing", values)  # noqa: E711 (element by element)


def _clients(
    options: DataOptions, raw: Raw, labels: np.ndarray, kept: np.ndarray, seed: int
) -> tuple[Rows, tuple[str, ...]]:
    how = options.partition or ("dirichlet" if raw.clients is None else "column")
    if how in ("column", "feature"):
        if raw.clients is None:
            raise UserError(
                f"data.partition = 'column': {raw.source} does not say whose rows are whose; "
                "name the column with data.client, or give one file per site."
            )
        # All clients stay listed, also those that lost every row to positive_ratio.
        known = np.flatnonzero(raw.clients != None)  # noqa: E711 (element by element)
        owner, names = partition.by_column(raw.clients[known])
        owners = np.empty(len(raw.clients), dtype=np.int64)
        owners[known[owner.indices]] = owner.owners
        return Rows.from_owners(owners[kept], len(names)), names
    if how == "iid":
        rows = partition.iid(len(labels), options.clients, seed)
    elif how == "sorted":
        original = _original(raw, labels, kept)
        rows = partition.sorted_blocks(original, options.clients, options.similarity, seed)
    elif how == "quantity":
        rows = partition.quantity(len(labels), options.clients, options.alpha, seed)
    elif how == "disjoint-classes":
        if raw.labels is None:
            raise UserError(f"data.partition = 'disjoint-classes': {raw.source} has no labels.")
        rows = partition.disjoint_classes(
            _original(raw, labels, kept), labels, options.clients, seed
        )
    else:
        original = _original(raw, labels, kept)
        rows = partition.dirichlet(original, options.clients, options.alpha, seed)
    return rows, tuple(f"client-{i}" for i in range(options.clients))


def _original(raw: Raw, labels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Classes as the source has them: a binary problem has put each on one of two sides."""
    if raw.labels is None or np.ndim(raw.labels) != 1:
        return labels
    known, codes = np.unique(raw.labels[kept].astype(str), return_inverse=True)
    return codes if len(known) > 2 else labels


def split_rows(
    options: DataOptions,
    raw: Raw,
    labels: np.ndarray,
    owner: Rows,
    kept: np.ndarray,
    marks: np.ndarray,
    seed: int,
) -> tuple[Rows, Rows, Rows]:
    """Each client's own split; by default nothing more is held out than the publisher did."""
    test, validation = options.test, options.validation
    if test is None:
        test = 0.0 if (marks == TEST).any() else 0.25
    if validation is None:
        validation = 0.0 if (marks == VALIDATION).any() else 0.1
    if raw.together is not None:
        return split_together(labels, owner, raw.together[kept], test, validation, seed)
    return split_clients(labels, owner, test, validation, seed)


def add_held_out(
    marks: np.ndarray,
    clients: np.ndarray | None,
    kept: np.ndarray,
    names: tuple[str, ...],
    parts: tuple[Rows, Rows, Rows],
) -> tuple[np.ndarray, tuple[str, ...], tuple[Rows, Rows, Rows]]:
    """The publisher's own test and validation rows, at their clients or at one extra site."""
    rows = np.flatnonzero(np.isin(marks, (VALIDATION, TEST)))
    owners = np.full(len(rows), len(names))
    if clients is not None:
        place = {name: client for client, name in enumerate(names)}
        owners = np.array([place.get(client, len(names)) for client in clients[rows]])
    if (owners == len(names)).any():
        names = (*names, HELD_OUT)
    more = []
    for part, mark in zip(parts, (TRAIN, VALIDATION, TEST), strict=True):
        at = np.flatnonzero(marks[rows] == mark)
        more.append(with_more(part, len(kept) + at, owners[at], len(names)))
    return np.concatenate([kept, rows]), names, (more[0], more[1], more[2])


def only_training(
    options: DataOptions, raw: Raw, names: tuple[str, ...], parts: tuple[Rows, Rows, Rows]
) -> tuple[Rows, Rows, Rows]:
    """The split without the training and validation rows of clients that are not to train."""
    for name in options.train_on:
        if name not in names:
            hint = nearest(name, list(names))
            raise UserError(f"data.train_on: {raw.source} has no client '{name}'; {hint}")
    if not options.train_on:
        return parts
    train, validation = (
        Rows.from_lists(
            [r if n in options.train_on else r[:0] for n, r in zip(names, rows, strict=True)]
        )
        for rows in parts[:2]
    )
    return train, validation, parts[2]


def _preprocessing(
    options: DataOptions,
    raw: Raw,
    table: pd.DataFrame,
    kept: np.ndarray,
    train: Rows,
    names: tuple[str, ...],
) -> tuple[pd.DataFrame, Preprocessing]:
    """The table with typed columns, and the preprocessing fitted on its training rows."""
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
    table = typed_table(table, schema)
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


def typed_table(table: pd.DataFrame, schema: Mapping[str, str]) -> pd.DataFrame:
    """The columns of a schema as numbers or as tidy text."""
    import pandas as pd

    columns = {
        name: numbers(table[name])[0] if kind == "numeric" else texts(table[name])
        for name, kind in schema.items()
    }
    return pd.DataFrame(columns, index=table.index)
