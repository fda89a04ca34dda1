"""Ways to deal rows out to clients. Every row goes to exactly one client.

All are deterministic in the seed; each client's rows are in rising order.
"""

from __future__ import annotations

import re

import numpy as np

from fedsaddle.data.federated import Rows
from fedsaddle.errors import UserError
from fedsaddle.keyed import generator


def iid(n_rows: int, n_clients: int, seed: int = 0) -> Rows:
    """Shuffle the rows and deal them out evenly.

    >>> iid(10, 3).counts.tolist()
    [4, 3, 3]
    """
    _check_clients(n_rows, n_clients)
    owners = np.empty(n_rows, dtype=np.int64)
    order = generator(seed, "iid").permutation(n_rows)
    owners[order] = np.repeat(np.arange(n_clients), _even(n_rows, n_clients))
    return Rows.from_owners(owners, n_clients)


def by_column(values: np.ndarray) -> tuple[Rows, tuple[str, ...]]:
    """One client per distinct value, and their names in natural order.

    >>> rows, names = by_column(np.array(["site10", "site2", "site10"]))
    >>> names, rows[1].tolist()
    (('site2', 'site10'), [0, 2])
    """
    given = [str(value) for value in values]
    names = natural_order(list(set(given)))
    place = {name: client for client, name in enumerate(names)}
    owners = np.array([place[name] for name in given], dtype=np.int64)
    return Rows.from_owners(owners, len(names)), tuple(names)


def sorted_blocks(
    labels: np.ndarray, n_clients: int, similarity: float = 0.0, seed: int = 0
) -> Rows:
    """Sort the rows by label and cut equal blocks: clients see few classes.

    A share ``similarity`` of the rows is dealt iid first (Karimireddy et al., SCAFFOLD, 2020):
    0 is fully sorted, 1 is iid.
    """
    labels = np.asarray(labels)
    n = len(labels)
    _check_clients(n, n_clients)
    if not 0 <= similarity <= 1:
        raise UserError(f"similarity must be between 0 and 1, not {similarity}.")
    order = generator(seed, "sorted").permutation(n)
    n_iid = round(similarity * n)
    mixed, rest = order[:n_iid], order[n_iid:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    # The two parts together, not each of them, are dealt evenly.
    iid_counts = _even(n_iid, n_clients)
    owners = np.empty(n, dtype=np.int64)
    owners[mixed] = np.repeat(np.arange(n_clients), iid_counts)
    owners[rest] = np.repeat(np.arange(n_clients), _even(n, n_clients) - iid_counts)
    return Rows.from_owners(owners, n_clients)


def dirichlet(labels: np.ndarray, n_clients: int, alpha: float = 0.5, seed: int = 0) -> Rows:
    """Deal each class in proportions drawn from a symmetric Dirichlet distribution.

    A small ``alpha`` gives most of a class to few clients, a large one is nearly even. Clients may
    end up with one class, or with no row.
    """
    labels = np.asarray(labels)
    _check_clients(len(labels), n_clients)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise UserError(f"alpha must be a number above 0, not {alpha}.")
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels).tolist():
        random = generator(seed, "dirichlet", label)
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(n_clients, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows))
        owners[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return Rows.from_owners(owners, n_clients)


def subsample_positives(labels: np.ndarray, ratio: float, seed: int = 0) -> np.ndarray:
    """The rows to keep, in rising order, for a share ``ratio`` of positives (label 1).

    Drops positives, or negatives if there are too few positives, and no more than needed to
    reach the ratio within one row. At least one of each remains.

    >>> len(subsample_positives(np.array([1] * 50 + [0] * 90), 0.1))
    100
    """
    labels = np.asarray(labels)
    if not 0 < ratio < 1:
        raise UserError(f"positive_ratio must lie between 0 and 1, not {ratio}.")
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    if len(positives) + len(negatives) != len(labels):
        raise UserError("positive_ratio needs two classes; name one with data.positive.")
    if not len(positives) or not len(negatives):
        raise UserError("positive_ratio needs rows of both classes.")
    random = generator(seed, "subsample")
    if len(positives) > ratio * len(labels):
        wanted = max(1, round(len(negatives) * ratio / (1 - ratio)))
        positives = random.permutation(positives)[:wanted]
    else:
        wanted = max(1, round(len(positives) * (1 - ratio) / ratio))
        negatives = random.permutation(negatives)[:wanted]
    return np.sort(np.concatenate([positives, negatives]))


def natural_order(names: list[str]) -> list[str]:
    """Sorted as a person would: numbers inside names by value.

    >>> natural_order(["b", "a10", "a9"])
    ['a9', 'a10', 'b']
    """

    def key(name: str) -> tuple[list[str | int], str]:
        # Odd places are runs of digits, so text is only ever compared with text.
        parts = re.split(r"([0-9]+)", name)
        return [int(part) if i % 2 else part for i, part in enumerate(parts)], name

    return sorted(names, key=key)


def _even(n: int, n_clients: int) -> np.ndarray:
    counts = np.full(n_clients, n // n_clients)
    counts[: n % n_clients] += 1
    return counts


def _check_clients(n_rows: int, n_clients: int) -> None:
    if n_clients < 1:
        raise UserError(f"clients must be at least 1, not {n_clients}.")
    if n_clients > n_rows:
        raise UserError(f"{n_clients} clients but only {n_rows} rows; ask for fewer clients.")
