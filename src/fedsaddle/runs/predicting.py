"""Scores and metrics for new files, from a saved model alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedsaddle.data import load_table
from fedsaddle.data.federated import Store
from fedsaddle.data.labels import match
from fedsaddle.data.loading import match_findings
from fedsaddle.data.sources.arrays import labels_of, rows_of
from fedsaddle.data.sources.medmnist import SPLITS, has_splits, split_images, split_labels
from fedsaddle.data.sources.npz import Arrays
from fedsaddle.errors import UserError, nearest
from fedsaddle.metrics import summarise
from fedsaddle.runs.folder import atomic, disk_errors
from fedsaddle.runs.saved import SavedModel

if TYPE_CHECKING:
    import pandas as pd

    Rows = tuple[pd.DataFrame, torch.Tensor | Store, torch.Tensor | None, np.ndarray | None]

Label = str | list[str]


def predict_file(
    model_folder: Path, source: Path, out: Path, best: bool = False, split: str | None = None
) -> int:
    """Write the file's rows in order with a `score` column added; returns their number.

    With more than two classes there is a `score_<class>` column for each, and a `prediction`; with
    several findings a `score_<finding>` for each. A model of images takes a list with a column
    `path`, relative to the list. An NPZ file's rows have no columns to repeat: only the scores are
    written; `split` chooses among `train_images`, `val_images` and `test_images` (by default test).
    """
    model = SavedModel.load(model_folder, best)
    table, inputs, _, _ = _rows(model, source, split=split)
    scores = model.scores(inputs)
    columns: dict[str, Any] = {"score": scores}
    if scores.ndim == 2:
        columns = {f"score_{name}": scores[:, k] for k, name in enumerate(model.classes)}
    if model.task == "multiclass":
        columns["prediction"] = [model.classes[k] for k in scores.argmax(axis=1)]
    taken = [name for name in columns if name in table.columns]
    if taken:
        raise UserError(f"{source}: there is a column '{taken[0]}' already; rename it first.")
    table = table.assign(**columns)
    with disk_errors(str(out)), atomic(out) as temporary:
        if out.suffix == ".parquet":
            table.to_parquet(temporary, index=False)
        else:
            table.to_csv(temporary, index=False)
    return len(table)


def evaluate_file(
    model_folder: Path,
    source: Path,
    label: Sequence[str],
    client: str | None,
    best: bool = False,
    split: str | None = None,
) -> dict[str, Any]:
    """The metrics of a labelled file, per client where a column names them.

    `label` names the label's column (by default "label", in an NPZ file "y"), or those of some of
    the model's findings (by default all). `split` is as for `predict_file`.
    """
    model = SavedModel.load(model_folder, best)
    columns = _label(model, label, "y" if _is_npz(source) else "label")
    if label and _is_npz(source) and has_splits(source):
        raise UserError(f"--label does not apply to {source}, whose labels have a name.")
    _, inputs, labels, clients = _rows(model, source, columns, client, split)
    assert labels is not None
    sites = model.evaluate(inputs, labels, None if clients is None else list(clients), source.stem)
    return summarise("test", sites, list_sites=client is not None)


def _label(model: SavedModel, given: Sequence[str], usual: str) -> Label:
    if not model.findings:
        if len(given) > 1:
            raise UserError("--label: the model has one label; name one column.")
        return given[0] if given else usual
    for name in given:
        if name not in model.findings:
            raise UserError(
                f"--label: the model has no finding '{name}'; {nearest(name, model.findings)}"
            )
    return list(dict.fromkeys(given)) or list(model.findings)


def _is_npz(source: Path) -> bool:
    return source.suffix.lower() == ".npz"


def _rows(
    model: SavedModel,
    source: Path,
    label: Label | None = None,
    client: str | None = None,
    split: str | None = None,
) -> "Rows":
    if split is not None and split not in SPLITS:
        raise UserError(f"--split {split}: choose {', '.join(SPLITS)}.")
    if _is_npz(source):
        in_splits = has_splits(source)
        if split is not None and not in_splits:
            raise UserError(f"--split: {source} has no array '{split}_images'.")
        if in_splits:
            rows = _split_rows(model, source, split or "test", label is not None, client)
        else:
            rows = _npz_rows(model, source, label, client)
    else:
        if split is not None:
            raise UserError("--split is for NPZ files with train_images and test_images.")
        inputs_by = model.preprocessing or model.images
        if inputs_by is None:
            raise UserError(f"{source}: this model was trained on arrays; give an NPZ file with X.")
        rows = load_table(source, inputs_by, label, model.classes, client, model.positive)
    shape = tuple(rows[1].shape[1:])
    if model.input_shape not in (None, shape):
        raise UserError(
            f"{source}: a row has shape {shape}, and the model takes {model.input_shape}."
        )
    return rows


def _npz_rows(model: SavedModel, source: Path, label: Label | None, client: str | None) -> "Rows":
    import pandas as pd

    arrays = Arrays(source)
    if isinstance(label, list) and not set(label) & set(arrays):
        label = label if len(label) < len(model.findings) else "y"  # all of them in one array
    asked = label if isinstance(label, list) else [label]
    names = {"X", *(name for name in (*asked, client) if name is not None)}
    for name in sorted(names):
        if name not in arrays:
            raise UserError(f"{source}: there is no array '{name}' in it.")
    if model.preprocessing is None:
        found = rows_of([arrays], [arrays.header("X")])
    else:
        X = arrays["X"]
        frame = pd.DataFrame(X.reshape(len(X), -1)).rename(columns=lambda i: f"x{i}")
        found = model.preprocessing.transform(frame, str(source))
    inputs = _as_inputs(found)
    labels = None
    if label is not None:
        labels = _labels(model, labels_of(arrays, label, source, len(inputs)), label, source)
    clients = None if client is None else arrays[client].astype(str)
    return pd.DataFrame(index=range(len(inputs))), inputs, labels, clients


def _split_rows(
    model: SavedModel, source: Path, split: str, labelled: bool, client: str | None
) -> "Rows":
    import pandas as pd

    if client is not None:
        raise UserError(f"--client: {source} does not say whose rows are whose.")
    inputs = _as_inputs(split_images(source, split))
    labels = None
    if labelled:
        cells = split_labels(source, split, len(inputs), model.classes)
        labels = _labels(model, cells, f"{split}_labels", source)
    return pd.DataFrame(index=range(len(inputs))), inputs, labels, None


def _as_inputs(found: np.ndarray | Store) -> torch.Tensor | Store:
    return found if isinstance(found, Store) else torch.from_numpy(found)


def _labels(model: SavedModel, cells: np.ndarray, label: Label, source: Path) -> torch.Tensor:
    """Labels under the model's classes, from the text of one array or of several."""
    if not model.findings:
        if cells.ndim > 1:
            raise UserError(f"{source}: '{label}' has several findings, and the model has one.")
        return torch.from_numpy(match(cells, model.classes, str(source)))
    columns = list(model.findings) if isinstance(label, str) else label
    if cells.shape[1:] != (len(columns),):
        raise UserError(f"{source}: '{label}' must have {len(columns)} findings in columns.")
    return match_findings(cells, columns, model.findings, model.positive, str(source))
