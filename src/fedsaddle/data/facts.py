"""What a coordinator knows of all clients' data: names, counts and shapes, never a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedsaddle.data.federated import FederatedData
from fedsaddle.data.preprocess import Preprocessing
from fedsaddle.data.sources.images import ImageFiles, ImageFormat

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Facts:
    """Totals and per-client counts, as of ``FederatedData`` in a simulation.

    ``rows`` has each client's number of rows for every split. ``known`` and ``positives`` count the
    training rows whose label is known and is 1, shape (clients, 1), or (clients, k) for k findings.
    """

    source: str
    names: tuple[str, ...]
    classes: tuple[str, ...]
    task: Literal["binary", "multiclass", "multilabel", "none"]
    input_shape: tuple[int, ...]
    rows: Mapping[str, np.ndarray]
    known: np.ndarray
    positives: np.ndarray
    groups: tuple[str, ...] = ()
    positive: str | None = None
    preprocessing: Preprocessing | None = None
    images: ImageFormat | None = None
    input_range: tuple[float, float] | None = None

    @property
    def n_clients(self) -> int:
        return len(self.names)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def measured(self, split: str) -> bool:
        """Whether any client has rows of this split."""
        return bool(self.rows[split].any())

    @property
    def positive_ratio(self) -> float:
        """Share of label 1 among all training rows; NaN for another task or without rows."""
        rows = int(self.rows["train"].sum())
        return int(self.positives.sum()) / rows if self.task == "binary" and rows else math.nan

    @property
    def finding_ratios(self) -> tuple[list[float], list[float]]:
        """For each finding, the share of 1 among the known labels and of known among all."""
        known = torch.from_numpy(self.known.sum(axis=0))
        positive = torch.from_numpy(self.positives.sum(axis=0))
        return (positive / known).tolist(), (known / int(self.rows["train"].sum())).tolist()


def facts_of(data: FederatedData) -> Facts:
    """The facts of data that lie on one machine.

    >>> data = FederatedData.from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], test=0)
    >>> facts = facts_of(data)
    >>> facts.rows["train"].tolist(), facts.positives.tolist(), round(facts.positive_ratio, 3)
    ([2, 1], [[1], [1]], 0.667)
    """
    labels, owners = np.atleast_2d(data.labels.numpy()[data.train.indices].T), data.train.owners

    def per_client(chosen: np.ndarray) -> np.ndarray:
        counts = [np.bincount(owners[rows], minlength=data.n_clients) for rows in chosen]
        return np.stack(counts, axis=1)

    return Facts(
        data.source,
        data.names,
        data.classes,
        data.task,
        data.input_shape,
        {split: getattr(data, split).counts for split in SPLITS},
        per_client(labels >= 0),
        per_client(labels == 1),
        data.groups,
        data.positive,
        data.preprocessing,
        data.inputs.format if isinstance(data.inputs, ImageFiles) else None,
        data.input_range,
    )
