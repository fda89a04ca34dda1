"""Scores and metrics for new files, from a saved model alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedsaddle.data import load_table
from fedsaddle.data.federated import Store
from fedsaddle.data.loading import match_findings
from fedsaddle.data.sources.arrays import labels_of
from fedsaddle.errors import UserError, nearest
from fedsaddle.metrics import summarise
from fedsaddle.runs.folder import atomic, disk_errors
from fedsaddle.runs.saved import SavedModel

if TYPE_CHECKING:
    import pandas as pd

    Rows = tuple[pd.DataFrame, torch.Tensor | Store, torch.Tensor | None, np.ndarray | None]

Label = str | list[str]


def predict_file(model_folder: Path, source: Path, out: Path, best: bool = False) -> int:
    """Write the file's rows in order with a `score` column added; returns their number.

    With more than two classes there is a `score_<class>` column for each, and a `prediction`; with
    several findings a `score_<finding>` for each. A model of images takes a list with a column
    `path`, relative to the list. An NPZ file's rows have no columns to repeat: only the scores are
    written.
    """
    model = SavedModel.load(model_folder, best)
    table, inputs, _, _ = _rows(model, source)
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
) -> dict[str, Any]:
    """The metrics of a labelled file, per client where a column names them.

    `label` names the label's column (by default "label"), or those of some of the model's findings
    (by default all).
    """
    model = SavedModel.load(model_folder, best)
    _, inputs, labels, clients = _rows(model, source, _label(model, label), client)
    assert labels is not None
    sites = model.evaluate(inputs, labels, None if clients is None else list(clients), source.stem)
    return summarise("test", sites, list_sites=client is not None)


def _label(model: SavedModel, given: Sequence[str]) -> Label:
    if not model.findings:
        if len(given) > 1:
            raise UserError("--label: the model has one label; name one column.")
        return given[0] if given else "label"
    for name in given:
        if name not in model.findings:
            raise UserError(
                f"--label: the model has no finding '{name}'; {nearest(name, model.findings)}"
            )
    return list(dict.fromkeys(given)) or list(model.findings)


def _rows(
    model: SavedModel, source: Path, label: Label | None = None, client: str | None = None
) -> "Rows":
    if source.suffix.lower() == ".npz":
        return _npz_rows(model, source, label, client)
    inputs_by = model.preprocessing or model.images
    if inputs_by is None:
        raise UserError(f"{source}: this model was trained on arrays; give an NPZ file with X.")
    return load_table(source, inputs_by, label, model.classes, client, model.positive)


def _npz_rows(model: SavedModel, source: Path, label: Label | None, client: str | None) -> "Rows":
    import pandas as pd

    try:
        with np.load(source, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"{source}: no such file.") from None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{source}: not a readable NPZ file ({error}).") from None
    if isinstance(label, list) and not set(label) & set(arrays):
        label = label if len(label) < len(model.findings) else "y"  # all of them in one array
    asked = label if isinstance(label, list) else [label]
    names = {"X", *(name for name in (*asked, client) if name is not None)}
    for name in sorted(names):
        if name not in arrays:
            raise UserError(f"{source}: there is no array '{name}' in it.")
    X = arrays["X"]
    if model.preprocessing is not None:
        frame = pd.DataFrame(X.reshape(len(X), -1)).rename(columns=lambda i: f"x{i}")
        X = model.preprocessing.transform(frame, str(source))
    inputs = torch.as_tensor(X if X.dtype == np.uint8 else np.asarray(X, dtype=np.float32))
    labels = None
    if label is not None and model.findings:
        cells = labels_of(arrays, label, source, len(X))
        columns = list(model.findings) if isinstance(label, str) else label
        if cells.shape[1:] != (len(columns),):
            raise UserError(f"{source}: '{label}' must have {len(columns)} findings in columns.")
        labels = match_findings(cells, columns, model.findings, model.positive, str(source))
    elif label is not None:
        assert isinstance(label, str)
        known = {name: k for k, name in enumerate(model.classes)}
        texts = [str(value) for value in arrays[label].tolist()]
        for text in texts:
            if text not in known:
                raise UserError(f"{source}: label '{text}' is none of {', '.join(known)}.")
        labels = torch.tensor([known[text] for text in texts])
    clients = None if client is None else arrays[client].astype(str)
    return pd.DataFrame(index=range(len(inputs))), inputs, labels, clients
