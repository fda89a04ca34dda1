"""Every site its own file: those that are given, or a data set cut to one each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedsaddle.data import DataOptions
from fedsaddle.data.federated import Rows, Store
from fedsaddle.data.partition import by_column, dirichlet, iid, quantity, sorted_blocks
from fedsaddle.data.sources import SOURCES, find_files, read
from fedsaddle.data.sources.images import ImageFiles
from fedsaddle.data.sources.raw import Raw
from fedsaddle.data.splits import TRAIN
from fedsaddle.errors import UserError
from fedsaddle.runs.folder import atomic, disk_errors

USUAL_SITES = 3


def site_files(
    options: DataOptions, folder: Path, sites: int | None, seed: int, binary: bool
) -> tuple[dict[str, Path], DataOptions]:
    """Each site's name and file, and the options that fit these files.

    Data in one piece are cut by their own clients, or dealt as `data.partition` says, into
    `folder/SITE.csv` (or .npz). Several files without a client column are the sites' own.
    """
    named = isinstance(options.source, str) and options.source in SOURCES
    if not named and options.client is None:
        paths = find_files(options.source)
        if len(paths) > 1:
            if sites not in (None, len(paths)):
                raise UserError(f"--sites {sites}: the data are {len(paths)} files, one per site.")
            return {path.stem: path.resolve() for path in paths}, options
    raw = read(options, binary)
    owner, names = _deal(options, raw, sites, seed)
    label: str | list[str] = list(raw.findings) or "label"
    for name, rows in zip(names, owner, strict=True):
        if "/" in name or name in (".", ".."):
            raise UserError(f"data.client: '{name}' cannot be the name of a file.")
        if not len(rows):
            raise UserError(f"site '{name}' gets no row; choose another data.partition.")
    with disk_errors(str(folder)):
        files = {
            name: _write(raw, rows, folder / name, label)
            for name, rows in zip(names, owner, strict=True)
        }
    return files, options.model_copy(
        update={
            "source": [str(path) for path in files.values()],
            "root": None,
            "client": None,
            "partition": None,
            "label": label if raw.labels is not None and raw.table is not None else None,
            "positive": options.positive or raw.positive,
            "categorical": sorted({*options.categorical, *raw.categorical} - {*options.numeric}),
            "zero_is_missing": sorted({*options.zero_is_missing, *raw.zero_is_missing}),
        }
    )


def _deal(
    options: DataOptions, raw: Raw, sites: int | None, seed: int
) -> tuple[Rows, tuple[str, ...]]:
    """Whose row is whose, of all rows that the publisher did not hold out."""
    n = sum(part.n_rows for part in raw.parts)
    kept = np.arange(n) if raw.split is None else np.flatnonzero(raw.split == TRAIN)
    how = options.partition or ("dirichlet" if raw.clients is None else "column")
    if how == "column":
        if raw.clients is None:
            raise UserError(f"data.partition = 'column': {raw.source} has no clients of its own.")
        owner, names = by_column(raw.clients[kept])
        if sites not in (None, len(names)):
            raise UserError(f"--sites {sites}: {raw.source} has {len(names)} of its own.")
        return Rows(kept[owner.indices], owner.offsets), names
    sites = sites or USUAL_SITES
    classes = np.zeros(len(kept), dtype=np.int64)
    if raw.labels is not None and raw.labels.ndim == 1:
        classes = np.unique(raw.labels[kept].astype(str), return_inverse=True)[1]
    if how == "iid":
        owner = iid(len(kept), sites, seed)
    elif how == "quantity":
        owner = quantity(len(kept), sites, options.alpha, seed)
    elif how == "sorted":
        owner = sorted_blocks(classes, sites, options.similarity, seed)
    elif how == "dirichlet":
        owner = dirichlet(classes, sites, options.alpha, seed)
    else:
        raise UserError(f"data.partition = '{how}' is for simulations; give one file per site.")
    return Rows(kept[owner.indices], owner.offsets), tuple(f"site-{i}" for i in range(sites))


def _write(raw: Raw, rows: np.ndarray, stem: Path, label: str | list[str]) -> Path:
    """One site's rows: a table as CSV with a label column, arrays as NPZ with X and y."""
    if raw.table is not None:
        table = raw.table.iloc[rows].reset_index(drop=True)
        if raw.labels is not None:
            table[label] = raw.labels[rows]
        path = stem.with_name(f"{stem.name}.csv")
        with atomic(path) as temporary:
            table.to_csv(temporary, index=False)
        return path
    if isinstance(raw.array, ImageFiles):
        raise UserError("image files are not cut here: give one CSV list per site with --data.")
    assert raw.array is not None
    taken = raw.array[torch.from_numpy(rows)] if isinstance(raw.array, Store) else raw.array[rows]
    arrays = {"X": np.asarray(taken)}
    if raw.labels is not None:
        cells = raw.labels[rows]
        arrays["y"] = np.where(cells == None, "", cells).astype(str)  # noqa: E711 (by element)
    path = stem.with_name(f"{stem.name}.npz")
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return path
