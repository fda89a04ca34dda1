"""One contiguous store of rows, and who owns which of them.

What happens to awkward clients, everywhere in fedsaddle:

- a client with no training rows takes no part in training and is still listed in evaluation;
- a client with one class trains normally (every loss is finite there); its AUC is undefined;
- a client with one row trains on that row.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedsaddle.errors import UserError, nearest
from fedsaddle.keyed import generator

if TYPE_CHECKING:
    from fedsaddle.data.preprocess import Preprocessing


@dataclass(frozen=True, eq=False)
class Rows:
    """Row numbers of every client, end to end in one array.

    Client i owns ``indices[offsets[i]:offsets[i + 1]]``.

    >>> rows = Rows.from_lists([[4, 0], [], [7]])
    >>> rows[0].tolist(), len(rows), rows.counts.tolist()
    ([4, 0], 3, [2, 0, 1])
    """

    indices: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        for name in ("indices", "offsets"):
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
                raise UserError(f"Rows.{name} must be a list of whole numbers.")
            object.__setattr__(self, name, given.astype(np.int64, copy=False))
        if (
            not len(self.offsets)
            or self.offsets[0] != 0
            or self.offsets[-1] != len(self.indices)
            or (np.diff(self.offsets) < 0).any()
        ):
            raise UserError("Rows.offsets must rise from 0 to the number of indices.")

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int] | np.ndarray]) -> Rows:
        """Rows from one list of row numbers per client."""
        parts = [np.asarray(rows, dtype=np.int64) for rows in lists]
        counts = [len(part) for part in parts]
        indices = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return cls(indices, np.cumsum([0, *counts]))

    @classmethod
    def from_owners(cls, owners: np.ndarray, n_clients: int) -> Rows:
        """Rows from the owner of every row; each client's rows are in rising order.

        >>> [rows.tolist() for rows in Rows.from_owners(np.array([1, 0, 1]), 2)]
        [[1], [0, 2]]
        """
        owners = np.asarray(owners)
        counts = np.bincount(owners, minlength=n_clients)
        if len(counts) != n_clients:
            raise UserError(f"A row is owned by client {owners.max()}, of {n_clients} clients.")
        return cls(np.argsort(owners, kind="stable"), np.concatenate([[0], np.cumsum(counts)]))

    @classmethod
    def empty(cls, n_clients: int) -> Rows:
        """No row for any of the clients."""
        return cls(np.empty(0, dtype=np.int64), np.zeros(n_clients + 1, dtype=np.int64))

    @property
    def counts(self) -> np.ndarray:
        """How many rows each client has."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The client of every entry of ``indices``."""
        return np.repeat(np.arange(len(self)), self.counts)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> np.ndarray:
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        client %= len(self)
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[client] for client in range(len(self)))


class Store(ABC):
    """Rows that are fetched when they are asked for, such as images decoded from files."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """As of a tensor: the number of rows, then the shape of one."""

    @abstractmethod
    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        """Some rows, as bytes or numbers."""

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Every client's rows, in one store: inputs, labels, and row numbers per client.

    A client's number is its place in ``names``. ``classes`` names the labels in order, for two
    classes (negative, positive); without classes there are no labels and the task is "none"
    (``labels`` is then all zeros, so that a batch always has both). Inputs are float32, or float64
    if given so; bytes (images) stay bytes and int32 (tokens) stay int32 until ``take`` gathers
    them, and a memory-mapped tensor or a ``Store`` stays where it is. ``groups`` names, where there
    are any, the group of every client. Labels of shape (n, k) are findings, for each row all k that
    ``classes`` names: 1, 0, or -1 for unknown; the task is then "multilabel", and ``positive``
    lists the values that the source writes for 1, where they are not the usual ones.

    >>> data = FederatedData.from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])], test=0)
    >>> data.n_clients, data.task, data.names, round(data.positive_ratio, 3)
    (2, 'binary', ('client-0', 'client-1'), 0.667)
    """

    inputs: torch.Tensor | Store
    labels: torch.Tensor
    train: Rows
    validation: Rows
    test: Rows
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    source: str = field(default="arrays", kw_only=True)
    groups: tuple[str, ...] = field(default=(), kw_only=True)
    positive: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "names", tuple(self.names))
        set_(self, "classes", tuple(self.classes))
        if not isinstance(self.inputs, Store):
            set_(self, "inputs", _as_inputs(self.inputs, self.source))
        set_(self, "labels", _as_labels(self.labels, self.source, len(self.classes)))
        n = len(self.inputs)
        if len(self.labels) != n:
            raise UserError(
                f"{self.source}: {n} rows of inputs but {len(self.labels)} labels; "
                "give one label per row."
            )
        several = self.labels.ndim == 2
        lowest, highest = (-1, 1) if several else (0, max(len(self.classes), 1) - 1)
        if n and not lowest <= int(self.labels.min()) <= int(self.labels.max()) <= highest:
            raise UserError(
                f"{self.source}: labels must lie in {lowest}..{highest} "
                f"({len(self.classes)} classes), but they span "
                f"{int(self.labels.min())}..{int(self.labels.max())}."
            )
        if not self.names or set(map(type, self.names)) != {str}:
            raise UserError(f"{self.source}: give at least one client, each with a text name.")
        if len(set(self.names)) != len(self.names):
            seen = sorted(self.names)
            twice = next(a for a, b in pairwise(seen) if a == b)
            raise UserError(
                f"{self.source}: two clients are called '{twice}'; names must be unique."
            )
        if self.groups and len(self.groups) != len(self.names):
            raise UserError(f"{self.source}: give a group for each client or for none.")
        for part in ("train", "validation", "test"):
            rows: Rows = getattr(self, part)
            if len(rows) != len(self.names):
                raise UserError(
                    f"{self.source}: {part} rows are for {len(rows)} clients, "
                    f"but there are {len(self.names)} names."
                )
            if len(rows.indices) and not 0 <= rows.indices.min() <= rows.indices.max() < n:
                raise UserError(f"{self.source}: {part} names a row outside 0..{n - 1}.")

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[Any],
        names: Sequence[str] | None = None,
        test: float = 0.25,
        validation: float = 0.1,
        seed: int = 0,
        findings: Sequence[str] = (),
    ) -> FederatedData:
        """Data from one ``(X, y)`` pair (numpy or torch) per client, split within each client.

        Give ``(X, None)`` or X alone, for every client, when there are no labels. With ``findings``
        y has a column for each of them: 1, 0, and -1 or NaN where it is unknown.
        """
        pairs = [pair if isinstance(pair, tuple) else (pair, None) for pair in clients]
        if not pairs:
            raise UserError("from_clients needs at least one client.")
        names = [f"client-{i}" for i in range(len(pairs))] if names is None else list(names)
        if len(names) != len(pairs):
            raise UserError(f"{len(pairs)} clients but {len(names)} names.")
        labelled = [y is not None for _, y in pairs]
        if any(labelled) != all(labelled):
            raise UserError(
                f"Client '{names[labelled.index(False)]}' has no labels but others have; "
                "give labels for all clients or for none."
            )
        inputs, labels = [], []
        for name, (X, y) in zip(names, pairs, strict=True):
            where = f"client '{name}'"
            inputs.append(_as_inputs(X, where))
            shape, expected = inputs[-1].shape[1:], inputs[0].shape[1:]
            if shape != expected:
                raise UserError(
                    f"{where}: a row has shape {tuple(shape)}, "
                    f"but at client '{names[0]}' it has {tuple(expected)}."
                )
            count = len(inputs[-1])
            given = np.zeros(count, np.int64) if y is None else y
            labels.append(_as_labels(given, where, len(findings)))
            if len(labels[-1]) != count:
                raise UserError(f"{where}: {count} rows of inputs but {len(labels[-1])} labels.")
            if count and not findings and int(labels[-1].min()) < 0:
                raise UserError(f"{where}: labels must be 0, 1, …, not {int(labels[-1].min())}.")
        y = torch.cat(labels)
        n_classes = (max(2, int(y.max()) + 1) if len(y) else 2) if all(labelled) else 0
        offsets = np.cumsum([0] + [len(part) for part in inputs])
        owner = Rows(np.arange(len(y)), offsets)
        parts = split_clients(strata(y.numpy()), owner, test=test, validation=validation, seed=seed)
        return cls(
            torch.cat(inputs),
            y,
            *parts,
            names=tuple(names),
            classes=tuple(findings) or tuple(str(label) for label in range(n_classes)),
        )

    @property
    def n_clients(self) -> int:
        return len(self.names)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row's inputs."""
        return tuple(self.inputs.shape[1:])

    @property
    def input_range(self) -> tuple[float, float] | None:
        """Lowest and highest value that an input can have, where that is known: of bytes."""
        in_bytes = len(self.inputs) and self.inputs[torch.tensor([0])].dtype == torch.uint8
        return (-1.0, 1.0) if in_bytes else None

    def take(self, rows: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The inputs of some rows; bytes become numbers in [−1, 1], tokens stay tokens."""
        inputs = self.inputs
        if isinstance(inputs, torch.Tensor):  # a row at a time: far faster than by single numbers
            return as_numbers(inputs.index_select(0, rows), dtype)
        return as_numbers(inputs[rows], dtype)

    @property
    def task(self) -> Literal["binary", "multiclass", "multilabel", "none"]:
        if not self.classes:
            return "none"
        if self.labels.ndim == 2:
            return "multilabel"
        return "binary" if len(self.classes) == 2 else "multiclass"

    @property
    def positive_ratio(self) -> float:
        """Share of label 1 among all clients' training rows together.

        It needs only two counts from each client. NaN when the task is not binary or nobody has
        a training row.
        """
        rows = self.train.indices
        if self.task != "binary" or not len(rows):
            return math.nan
        return int((self.labels[torch.from_numpy(rows)] == 1).sum()) / len(rows)

    @property
    def finding_ratios(self) -> tuple[list[float], list[float]]:
        """For each finding, the share of 1 among the known labels and of known among all.

        Over all clients' training rows, from two counts a client for each; NaN where none is known.
        """
        labels = self.labels[torch.from_numpy(self.train.indices)].reshape(-1, self.n_classes)
        known, positive = (labels >= 0).sum(dim=0), (labels == 1).sum(dim=0)
        return (positive / known).tolist(), (known / len(labels)).tolist()

    def pooled(self) -> FederatedData:
        """All training and validation rows at client 0 (the "all data pooled" baseline).

        Every client keeps its own test rows.
        """

        def at_first(rows: Rows) -> Rows:
            offsets = np.full(len(rows) + 1, len(rows.indices))
            offsets[0] = 0
            return Rows(rows.indices, offsets)

        return replace(self, train=at_first(self.train), validation=at_first(self.validation))

    def only(self, client: int | str) -> FederatedData:
        """Training and validation rows of one client only (the "one site alone" baseline).

        Every client keeps its own test rows.
        """
        if isinstance(client, str):
            if client not in self.names:
                raise UserError(f"No client '{client}'; {nearest(client, self.names)}")
            client = self.names.index(client)
        if not 0 <= client < self.n_clients:
            raise UserError(f"No client {client}; clients are 0..{self.n_clients - 1}.")

        def alone(rows: Rows) -> Rows:
            offsets = np.zeros(len(rows) + 1, dtype=np.int64)
            offsets[client + 1 :] = len(rows[client])
            return Rows(rows[client], offsets)

        return replace(self, train=alone(self.train), validation=alone(self.validation))


def as_numbers(inputs: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Stored rows as a network takes them: bytes in [−1, 1], tokens as they are.

    Without a ``dtype`` bytes become float32, and numbers stay what they are.
    """
    if inputs.dtype == torch.uint8:
        return inputs.to(dtype or torch.float32) / 127.5 - 1
    return inputs.long() if inputs.dtype == torch.int32 else inputs.to(dtype or inputs.dtype)


def strata(labels: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The class by which a row is dealt and split: its label, or its rarest positive finding.

    Of several findings a row counts for the one that fewest rows have (1, 2, …), 0 without any, so
    that rare findings are spread most evenly; whole combinations would mostly be of one row.
    ``counts`` has the number of rows with each finding, where there are more rows elsewhere.

    >>> strata(np.array([[1, 0], [1, 1], [0, -1], [1, -1]])).tolist()
    [1, 2, 0, 1]
    """
    if labels.ndim == 1:
        return labels
    positive = labels == 1
    counts = positive.sum(axis=0) if counts is None else counts
    rarest = np.where(positive, counts, counts.max() + 1).argmin(axis=1)
    return np.where(positive.any(axis=1), rarest + 1, 0)


def split_clients(
    labels: np.ndarray, owner: Rows, test: float, validation: float, seed: int
) -> tuple[Rows, Rows, Rows]:
    """Cut each client's rows into training, validation and test rows, stratified by label.

    ``test`` and ``validation`` are shares of a client's rows. Every class a client has keeps at
    least one training row, so a class with one row stays in training. A client's split depends on
    the seed and its own number and rows, not on the other clients.
    """
    if not (test >= 0 and validation >= 0 and test + validation < 1):
        raise UserError(
            f"test={test} and validation={validation} must not be negative "
            "and must leave a share for training (their sum below 1)."
        )
    labels = np.asarray(labels)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for client, rows in enumerate(owner):
        random = generator(seed, "split", client)
        # Shuffle first: a stable sort by label then leaves each class in random order.
        rows = random.permutation(rows)
        rows = rows[np.argsort(labels[rows], kind="stable")]
        _, sizes = np.unique(labels[rows], return_counts=True)
        n_test = _share(sizes, sizes - 1, test, random)
        n_validation = _share(sizes, sizes - 1 - n_test, validation, random)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_test = place < np.repeat(n_test, sizes)
        is_validation = ~is_test & (place < np.repeat(n_test + n_validation, sizes))
        masks = (~is_test & ~is_validation, is_validation, is_test)
        for part, mask in zip(parts, masks, strict=True):
            part.append(np.sort(rows[mask]))
    train, held_out, tested = (Rows.from_lists(part) for part in parts)
    return train, held_out, tested


def _share(
    sizes: np.ndarray, room: np.ndarray, share: float, random: np.random.Generator
) -> np.ndarray:
    """How many of each class to take: the share of all rows, by largest remainder, within room."""
    exact = sizes * share
    taken: np.ndarray = np.minimum(np.floor(exact + 1e-9).astype(np.int64), room)
    missing = int(np.floor(share * sizes.sum() + 0.5)) - int(taken.sum())
    order = random.permutation(len(sizes))  # ties between equal remainders fall at random
    order = order[np.argsort((taken - exact)[order], kind="stable")]
    order = order[(taken < room)[order]]
    taken[order[: max(missing, 0)]] += 1
    return taken


def _as_tensor(given: Any, refusal: str) -> torch.Tensor:
    try:
        if hasattr(given, "__array__") and not isinstance(given, torch.Tensor):
            given = np.asarray(given)  # also pandas
        with warnings.catch_warnings():
            # A read-only array (memory-mapped, or from pandas) is welcome: nothing writes to it.
            warnings.filterwarnings("ignore", message=".*not writable")
            return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(refusal) from error


def _as_inputs(given: Any, where: str) -> torch.Tensor:
    inputs = _as_tensor(given, f"{where}: inputs must be numbers in rows of one shape.")
    if inputs.ndim < 2:
        raise UserError(
            f"{where}: inputs must have rows and features (shape (n, ...)), "
            f"not shape {tuple(inputs.shape)}."
        )
    if inputs.dtype in (torch.uint8, torch.int32):
        return inputs
    if inputs.dtype != torch.float64:
        inputs = inputs.to(torch.float32)
    # One sum instead of a mask as large as the data; the mask only names the culprit.
    if not torch.isfinite(inputs.sum()) and not torch.isfinite(inputs).all():
        bad = torch.nonzero(~torch.isfinite(inputs.flatten(1)).all(1))[0]
        raise UserError(f"{where}: inputs must be finite, but row {int(bad)} is not.")
    return inputs


def _as_labels(given: Any, where: str, columns: int = 0) -> torch.Tensor:
    refusal = f"{where}: labels must be whole numbers 0, 1, …."
    labels = _as_tensor(given, refusal)
    if labels.ndim == 2 and columns > 1 and labels.shape[1] == columns:
        if labels.is_floating_point():
            labels = labels.nan_to_num(nan=-1)
    elif labels.ndim != 1:
        raise UserError(f"{where}: labels must be one per row, not of shape {tuple(labels.shape)}.")
    whole = labels.to(torch.int64)
    if not torch.equal(whole.to(labels.dtype), labels):
        raise UserError(refusal)
    return whole
