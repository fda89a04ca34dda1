"""What each client has: the numbers and the picture of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedsaddle.data.federated import FederatedData

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def class_counts(data: FederatedData) -> np.ndarray:
    """Rows of every client (training, validation and test) by class.

    Where a row has several findings, it counts for each of them.

    >>> data = FederatedData.from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])])
    >>> class_counts(data).tolist()
    [[1, 1], [0, 1]]
    """
    n_classes = max(data.n_classes, 1)
    labels = data.labels.numpy()
    counts = np.zeros((data.n_clients, n_classes), dtype=np.int64)
    for rows in (data.train, data.validation, data.test):
        if labels.ndim == 2:
            np.add.at(counts, rows.owners, labels[rows.indices] == 1)
        else:
            flat = rows.owners * n_classes + labels[rows.indices]
            counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)
    return counts


def row_counts(data: FederatedData) -> np.ndarray:
    """Rows of every client."""
    counts: np.ndarray = data.train.counts + data.validation.counts + data.test.counts
    return counts


def describe(data: FederatedData, most: int = 1000) -> dict[str, Any]:
    """Plain facts for JSON; clients one by one only up to ``most`` of them.

    >>> data = FederatedData.from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], test=0)
    >>> facts = describe(data)
    >>> facts["rows"], facts["positives"], facts["clients"][1]["positives"]
    (3, 2, 1)
    """
    counts, rows = class_counts(data), row_counts(data)
    facts: dict[str, Any] = {
        "source": data.source,
        "task": data.task,
        "input_shape": list(data.input_shape),
        "classes": list(data.classes),
        "class_rows": counts.sum(axis=0).tolist(),
        "n_clients": data.n_clients,
        "rows": int(rows.sum()),
        "train_rows": len(data.train.indices),
        "validation_rows": len(data.validation.indices),
        "test_rows": len(data.test.indices),
        "quantiles": {"rows": _quantiles(rows)},
    }
    if data.task == "binary":
        facts["positives"] = int(counts[:, 1].sum())
        share = counts[rows > 0, 1] / rows[rows > 0]
        facts["quantiles"]["positive_share"] = _quantiles(share)
    if data.groups:
        facts["groups"] = list(dict.fromkeys(data.groups))
    if data.n_clients <= most:
        facts["clients"] = [_client(data, counts[i], int(rows[i]), i) for i in range(len(rows))]
    return facts


def _client(data: FederatedData, counts: np.ndarray, rows: int, client: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": data.names[client]}
    if data.groups:
        facts["group"] = data.groups[client]
    facts |= {
        "rows": rows,
        "train_rows": len(data.train[client]),
        "validation_rows": len(data.validation[client]),
        "test_rows": len(data.test[client]),
    }
    if data.task == "binary":
        facts["positives"] = int(counts[1])
    facts["class_rows"] = counts.tolist()
    return facts


def _quantiles(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{quantile:g}": float(np.quantile(values, quantile, method="nearest"))
        for quantile in QUANTILES
    }


def segments(counts: np.ndarray, most: int, width: int) -> list[int]:
    """Widths of a bar's segments, one per class, ``most`` rows being ``width`` wide.

    The segments add up to the bar's own rounded width; a client with rows has at least one cell.

    >>> segments(np.array([30, 10]), 80, 20), segments(np.array([0, 1]), 1000, 20)
    ([8, 2], [0, 1])
    """
    total = int(counts.sum())
    if not total:
        return [0] * len(counts)
    cells = max(1, round(width * total / most))
    edges = np.rint(np.cumsum(counts) / total * cells).astype(int)
    widths: list[int] = np.diff(edges, prepend=0).tolist()
    return widths


def sample(rows: np.ndarray, most: int) -> list[int]:
    """The clients to draw: all of them, or ``most`` from the largest to the smallest.

    >>> sample(np.array([5, 9, 7, 1]), 2), sample(np.array([5, 9]), 2)
    ([1, 3], [0, 1])
    """
    if len(rows) <= most:
        return list(range(len(rows)))
    order = np.argsort(-rows, kind="stable")
    chosen: list[int] = order[np.linspace(0, len(rows) - 1, most).round().astype(int)].tolist()
    return chosen


def write_page(data: FederatedData, path: Path) -> None:
    """An HTML page with one bar per client, split by class; it needs no network."""
    from plotly import graph_objects

    counts = class_counts(data)
    chosen = sample(counts.sum(axis=1), 1000)
    bars = [
        graph_objects.Bar(
            name=data.classes[label] if data.classes else "rows",
            y=[data.names[client] for client in chosen],
            x=counts[chosen, label].tolist(),
            orientation="h",
        )
        for label in range(counts.shape[1])
        if counts[:, label].any()
    ]
    figure = graph_objects.Figure(bars)
    figure.update_layout(
        barmode="stack",
        title=f"{data.source}: {data.n_clients} clients",
        xaxis_title="rows",
        yaxis={"autorange": "reversed", "type": "category"},
        height=max(400, 22 * len(chosen) + 160),
    )
    figure.write_html(str(path), include_plotlyjs=True)
