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
    _check_alpha(alpha)
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels).tolist():
        random = generator(seed, "dirichlet", label)
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(n_clients, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows))
        owners[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return Rows.from_owners(owners, n_clients)


def quantity(n_rows: int, n_clients: int, alpha: float = 0.5, seed: int = 0) -> Rows:
    """Shuffle the rows and deal them in sizes drawn from a symmetric Dirichlet distribution.

    Clients have the same mixture of classes and very different amounts of it (Li et al.,
    "Federated Learning on Non-IID Data Silos", 2022); everyone has at least one row.

    >>> quantity(100, 4, alpha=0.5).counts.tolist()
    [4, 26, 58, 12]
    """
    _check_clients(n_rows, n_clients)
    _check_alpha(alpha)
    random = generator(seed, "quantity")
    order = random.permutation(n_rows)
    shares = random.dirichlet(np.full(n_clients, alpha))
    # One row each first, the others by share.
    cuts = np.rint(np.cumsum(shares)[:-1] * (n_rows - n_clients)) + np.arange(1, n_clients)
    owners = np.empty(n_rows, dtype=np.int64)
    owners[order] = np.searchsorted(cuts, np.arange(n_rows), side="right")
    return Rows.from_owners(owners, n_clients)


def disjoint_classes(classes: np.ndarray, sides: np.ndarray, n_clients: int, seed: int = 0) -> Rows:
    """Deal whole classes, so that no two clients share one (Yuan et al., CODASCA, 2021).

    ``sides`` are the labels of the problem. With two of them, the classes of either side are dealt
    apart: each client has classes of its own among the positives and among the negatives, and both
    sides. With more, a class is dealt whatever its side.

    >>> kinds = np.array(["cat", "dog", "car", "bus", "cat"])
    >>> parts = disjoint_classes(kinds, np.array([1, 1, 0, 0, 1]), 2)
    >>> [sorted(set(kinds[rows].tolist())) for rows in parts]
    [['bus', 'dog'], ['car', 'cat']]
    """
    classes, sides = np.asarray(classes), np.asarray(sides)
    _check_clients(len(classes), n_clients)
    distinct, first, number = np.unique(classes, return_index=True, return_inverse=True)
    side = sides[first]
    if (side[number] != sides).any():
        raise UserError("disjoint-classes: rows of one class must be on one side.")
    if len(np.unique(side)) != 2:
        side = np.zeros(len(distinct), dtype=np.int64)
    owner_of = np.empty(len(distinct), dtype=np.int64)
    for turn, value in enumerate(np.unique(side)):
        members = np.flatnonzero(side == value)
        if len(members) < n_clients:
            what = "classes" if turn == 0 and (side == value).all() else "classes on one side"
            raise UserError(
                f"data.partition = 'disjoint-classes': {len(members)} {what} are too few for "
                f"{n_clients} clients with a class each; ask for at most {len(members)} clients."
            )
        # Who is first for the spare classes of one side is last for the other's.
        clients = np.repeat(np.arange(n_clients), _even(len(members), n_clients)[:: 1 - 2 * turn])
        owner_of[generator(seed, "disjoint", turn).permutation(members)] = clients
    return Rows.from_owners(owner_of[number], n_clients)


def by_value(
    values: np.ndarray, trains: np.ndarray, n_clients: int, seed: int = 0
) -> tuple[np.ndarray, dict[str, str]]:
    """A client's name for every row, each client having one value only, and the clients' values.

    Clients are dealt evenly to the values, and each value's rows evenly to its clients. Rows that
    do not train (``trains``) are dealt apart, to the clients of their value; None where there is
    no such client.

    >>> names, group_of = by_value(np.array(["f", "m", "f", "f"]), np.ones(4, bool), 3)
    >>> sorted(names), group_of
    (['f-0', 'f-0', 'f-1', 'm'], {'f-0': 'f', 'f-1': 'f', 'm': 'm'})
    """
    values = np.asarray(values).astype(str)
    trains = np.asarray(trains, dtype=bool)
    known = natural_order(np.unique(values[trains]).tolist())
    if n_clients < len(known):
        shown = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
        raise UserError(
            f"data.feature has {len(known)} values ({shown}), so data.clients must be at least "
            f"{len(known)}, not {n_clients}."
        )
    names = np.full(len(values), None, dtype=object)
    group_of: dict[str, str] = {}
    for number, (value, count) in enumerate(zip(known, _even(n_clients, len(known)), strict=True)):
        clients = [f"{value}-{i}" for i in range(count)] if count > 1 else [value]
        group_of |= dict.fromkeys(clients, value)
        for purpose, chosen in (("train", trains), ("held out", ~trains)):
            rows = np.flatnonzero(chosen & (values == value))
            if purpose == "train" and len(rows) < count:
                raise UserError(
                    f"data.feature: {count} clients but only {len(rows)} training rows with the "
                    f"value '{value}'; ask for fewer clients."
                )
            dealt = generator(seed, "feature", purpose, number).permutation(rows)
            for client, part in zip(clients, np.array_split(dealt, count), strict=True):
                names[part] = client
    if len(group_of) < n_clients:
        raise UserError(f"data.feature: values such as '{known[0]}' and '{known[0]}-0' clash.")
    return names, group_of


def groups_of(clients: np.ndarray, values: np.ndarray, feature: str) -> dict[str, str]:
    """Each client's only value.

    >>> groups_of(np.array(["a", "b", "a"]), np.array(["north", "south", "north"]), "region")
    {'a': 'north', 'b': 'south'}
    """
    found: dict[str, str] = {}
    for client, value in sorted({(str(c), str(v)) for c, v in zip(clients, values, strict=True)}):
        if found.setdefault(client, value) != value:
            raise UserError(
                f"data.feature: client '{client}' has rows with '{feature}' = '{found[client]}' "
                f"and '{value}'; a client can be in one group only."
            )
    return found


def small_clients(clients: np.ndarray, least: int) -> np.ndarray:
    """Which rows are of a client with fewer than ``least`` rows; None is no client.

    >>> small_clients(np.array(["a", "b", "a", None]), 2).tolist()
    [False, True, False, False]
    """
    _, number, counts = np.unique(clients.astype(str), return_inverse=True, return_counts=True)
    known: np.ndarray = clients != None  # noqa: E711 (element by element)
    small: np.ndarray = (counts[number] < least) & known
    return small


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


def _check_alpha(alpha: float) -> None:
    if not (alpha > 0 and np.isfinite(alpha)):
        raise UserError(f"alpha must be a number above 0, not {alpha}.")
