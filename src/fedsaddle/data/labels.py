"""From label values as files write them to labels 0, 1, …: which value is positive, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsaddle.data.partition import natural_order
from fedsaddle.data.preprocess import tidy
from fedsaddle.errors import UserError, nearest

OBVIOUS = (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"))  # negative, positive
UNKNOWN = "-1"
"""What a column of findings says, beside nothing at all, where a finding is not known."""


def encode(
    values: np.ndarray,
    positive: str | None,
    binary: bool,
    where: str,
    order: tuple[str, ...] = (),
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and class names, (negative, positive) when there are two.

    Positive is the value ``positive``; else the obvious one of 0/1, -1/1, no/yes and false/true;
    else the rarer value. With ``positive`` and more than two values, all others together are the
    negative class, called "not <positive>". ``positive`` may also be several values ("0,1,2"; the
    class is then called "{0,1,2}") or "first-half" of the classes. ``order`` has all values in the
    publisher's order, and ``positive`` may then be a place in it.

    >>> labels, classes = encode(np.array(["sick", "well", "well"]), None, True, "a.csv")
    >>> labels.tolist(), classes
    ([1, 0, 0], ('well', 'sick'))
    >>> labels, classes = encode(np.array(["0", "1", "2", "3"]), "first-half", True, "a.csv")
    >>> labels.tolist(), classes
    ([1, 1, 0, 0], ('not {0,1}', '{0,1}'))
    """
    distinct, counts = np.unique(values.astype(str), return_counts=True)
    found = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
    classes = choose_classes(found, positive, binary, where, order)
    return match(values, classes, where), classes


def choose_classes(
    found: Mapping[str, int],
    positive: str | None,
    binary: bool,
    where: str,
    order: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """The class names of ``encode``, from how many rows have each label value.

    >>> choose_classes({"well": 2, "sick": 1}, None, True, "all sites")
    ('well', 'sick')
    """
    known = list(order) or _in_order(sorted(found))
    if len(found) == 1:
        raise UserError(f"{where}: every label is '{next(iter(found))}'; two classes are needed.")
    if positive is not None:
        positive = _positive(positive, known, bool(order), where)
    if positive is not None and len(known) > 2:
        return (f"not {positive}", positive)
    if len(known) == 2:
        rarer = max(value for value in found if found[value] == min(found.values()))
        positive = positive or _obvious(known) or rarer
        return (known[1] if known[0] == positive else known[0], positive)
    if binary:
        raise UserError(
            f"{where}: the label has {len(known)} values ({_listed(known)}) but the problem needs "
            "two; "
            f'set data.positive = "{known[-1]}" (or another value), or choose problem risk.'
        )
    return tuple(known)


def match(values: np.ndarray, classes: tuple[str, ...], where: str) -> np.ndarray:
    """Labels of values under given class names; a class "not x" takes all values but x,
    and a class "{x,y}" beside "not {x,y}" takes x and y.

    >>> match(np.array(["0", "3"]), ("0", "not 0"), "a.csv").tolist()
    [0, 1]
    >>> match(np.array(["2", "0", "9"]), ("not {0,2}", "{0,2}"), "a.csv").tolist()
    [1, 1, 0]
    """
    values = values.astype(str)
    labels = np.full(len(values), -1, dtype=np.int64)
    for label, name in enumerate(classes):
        labels[values == name] = label
    for label, name in enumerate(classes):
        if _is_set(name) and f"not {name}" in classes:
            labels[np.isin(values, name[1:-1].split(",")) & (labels == -1)] = label
    for label, name in enumerate(classes):
        if name.startswith("not ") and name.removeprefix("not ") in classes:
            labels[labels == -1] = label
    if (labels == -1).any():
        row = int(np.argmax(labels == -1))
        raise UserError(
            f"{where}: unknown label {str(values[row])!r} in row {row + 1}; "
            f"{nearest(values[row], classes)}"
        )
    return labels


def encode_findings(
    values: np.ndarray, names: Sequence[str], positive: str | None, where: str
) -> np.ndarray:
    """Labels of shape (n, k) from the text of k columns: 1, 0, and -1 where a finding is unknown.

    Present is 1, yes or true, or the values that ``positive`` lists; absent is the column's one
    other value; None and "-1" are unknown, unless ``positive`` lists "-1".

    >>> cells = np.array([["1", "no"], ["0", None], ["-1", "yes"]], dtype=object)
    >>> encode_findings(cells, ["edema", "effusion"], None, "a.csv").tolist()
    [[1, 0], [0, -1], [-1, 1]]
    """
    wanted = None if positive is None else {tidy(value) for value in positive.split(",")}
    labels = np.full(values.shape, -1, dtype=np.int64)
    for k, name in enumerate(names):
        column = values[:, k]
        known = column != None  # noqa: E711 (element by element)
        if wanted is None or UNKNOWN not in wanted:
            known &= column != UNKNOWN
        distinct = _in_order(sorted(set(column[known].tolist())))
        present = _present(distinct) if wanted is None else wanted
        absent = [value for value in distinct if present is None or value not in present]
        if present is None or len(absent) > 1:
            raise UserError(
                f"{where}: the finding '{name}' has the values {_listed(distinct)}; it must be 1 "
                "or 0, yes or no, true or false, or have one value beside data.positive (empty or "
                "-1: unknown)."
            )
        labels[known, k] = np.isin(column[known].astype(str), sorted(map(str, present)))
    return labels


def _present(distinct: list[str]) -> set[str] | None:
    """The values that mean present in a column that says so in an obvious way."""
    lower = {value.lower() for value in distinct}
    for pair in OBVIOUS:
        if UNKNOWN not in pair and lower <= set(pair):
            return {value for value in distinct if value.lower() == pair[1]}
    return None


def _positive(wanted: str, known: list[str], numbered: bool, where: str) -> str:
    """The positive value, or the set of them, in the words of the labels."""

    def one(name: str) -> str | None:
        tidied = tidy(name)
        if tidied in known:
            return tidied
        if numbered and tidied is not None and tidied.isdecimal() and int(tidied) < len(known):
            return known[int(tidied)]
        return None

    single = one(wanted)
    if single is not None:
        return single
    if wanted.strip() == "first-half":
        chosen: list[str | None] = [*known[: len(known) // 2]]
    else:
        names = wanted.split(",")
        chosen = [one(name) for name in names]
        for name, found in zip(names, chosen, strict=True):
            if found is None:
                raise UserError(
                    f"data.positive: {where} has no label '{name.strip()}'; "
                    f"{nearest(name.strip(), known)}"
                )
    members = [name for name in known if name in chosen]
    if len(members) == len(known):
        raise UserError("data.positive names every label; leave one for the negative class.")
    if len(members) == 1:
        return members[0]
    if any("," in name for name in members):
        raise UserError(
            f"data.positive: a label of {where} has a comma, so only one value can be positive."
        )
    return "{" + ",".join(members) + "}"


def _listed(values: Sequence[str]) -> str:
    """The first values in a sentence; white space and commas are quoted.

    >>> _listed(["a", " ", "b"])
    "a, ' ', b"
    """
    plain = (value.isprintable() and value.strip(" ,") == value != "" for value in values[:10])
    shown = [value if bare else repr(value) for value, bare in zip(values[:10], plain, strict=True)]
    return ", ".join(shown) + (", …" if len(values) > 10 else "")


def _is_set(name: str) -> bool:
    return name.startswith("{") and name.endswith("}")


def _in_order(values: list[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return natural_order(values)


def _obvious(pair: list[str]) -> str | None:
    lower = {value.lower(): value for value in pair}
    for negative, positive in OBVIOUS:
        if lower.keys() == {negative, positive}:
            return lower[positive]
    return None
