"""Which rows train, validate and test, where the publisher or the rows themselves have a say."""

from __future__ import annotations

import numpy as np

from fedsaddle.data.federated import Rows, split_clients

TRAIN, VALIDATION, TEST = 0, 1, 2
HELD_OUT = "held-out"
"""The site of the publisher's own test and validation rows: it is evaluated and never trains."""


def split_together(
    labels: np.ndarray,
    owner: Rows,
    together: np.ndarray,
    test: float,
    validation: float,
    seed: int,
) -> tuple[Rows, Rows, Rows]:
    """As ``split_clients``, but a client's rows of one group (a patient) stay on one side.

    The shares are then of groups, and a group counts as its first row's class.

    >>> owner = Rows.from_lists([range(6)])
    >>> group = np.array(["a", "a", "b", "b", "c", "c"])
    >>> train, _, test = split_together(np.zeros(6, int), owner, group, 1 / 3, 0, seed=0)
    >>> sorted(group[train[0]].tolist()), group[test[0]].tolist()
    (['a', 'a', 'b', 'b'], ['c', 'c'])
    """
    _, group = np.unique(together[owner.indices].astype(str), return_inverse=True)
    key = owner.owners * (int(group.max(initial=0)) + 1) + group
    _, first, unit = np.unique(key, return_index=True, return_inverse=True)
    units = Rows.from_owners(owner.owners[first], len(owner))
    parts = split_clients(labels[owner.indices[first]], units, test, validation, seed)
    train, held, tested = (_select(owner, np.isin(unit, part.indices)) for part in parts)
    return train, held, tested


def _select(rows: Rows, chosen: np.ndarray) -> Rows:
    counts = np.bincount(rows.owners[chosen], minlength=len(rows))
    return Rows(rows.indices[chosen], np.concatenate([[0], np.cumsum(counts)]))


def with_more(rows: Rows, indices: np.ndarray, owners: np.ndarray, n_clients: int) -> Rows:
    """The rows of all clients, old and new, with more rows at some of them.

    >>> more = with_more(Rows.from_lists([[0], [1]]), np.array([7, 8]), np.array([2, 0]), 3)
    >>> [client.tolist() for client in more]
    [[0, 8], [1], [7]]
    """
    owners = np.concatenate([rows.owners, owners])
    placed = Rows.from_owners(owners, n_clients)
    return Rows(np.concatenate([rows.indices, indices])[placed.indices], placed.offsets)
