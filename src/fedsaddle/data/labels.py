"""From label values as files write them to labels 0, 1, …: which value is positive, and why."""

from __future__ import annotations

import numpy as np

from fedsaddle.data.partition import natural_order
from fedsaddle.data.preprocess import tidy
from fedsaddle.errors import UserError, nearest

OBVIOUS = (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"))  # negative, positive


def encode(
    values: np.ndarray, positive: str | None, binary: bool, where: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and class names, (negative, positive) when there are two.

    Positive is the value ``positive``; else the obvious one of 0/1, -1/1, no/yes and false/true;
    else the rarer value. With ``positive`` and more than two values, all others together are the
    negative class, called "not <positive>".

    >>> labels, classes = encode(np.array(["sick", "well", "well"]), None, True, "a.csv")
    >>> labels.tolist(), classes
    ([1, 0, 0], ('well', 'sick'))
    """
    distinct, counts = np.unique(values.astype(str), return_counts=True)
    known = _in_order(distinct.tolist())
    positive = None if positive is None else tidy(positive)
    if len(known) == 1:
        raise UserError(f"{where}: every label is '{known[0]}'; two classes are needed.")
    if positive is not None and positive not in known:
        raise UserError(
            f"data.positive: {where} has no label '{positive}'; {nearest(positive, known)}"
        )
    if positive is not None and len(known) > 2:
        classes: tuple[str, ...] = (f"not {positive}", positive)
    elif len(known) == 2:
        rarer = distinct[counts == counts.min()][-1]
        positive = positive or _obvious(known) or str(rarer)
        negative = known[1] if known[0] == positive else known[0]
        classes = (negative, positive)
    elif binary:
        shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        raise UserError(
            f"{where}: the label has {len(known)} values ({shown}) but the problem needs two; "
            f'set data.positive = "{known[-1]}" (or another value), or choose problem risk.'
        )
    else:
        classes = tuple(known)
    return match(values, classes, where), classes


def match(values: np.ndarray, classes: tuple[str, ...], where: str) -> np.ndarray:
    """Labels of values under given class names; a class "not x" takes all values but x.

    >>> match(np.array(["0", "3"]), ("0", "not 0"), "a.csv").tolist()
    [0, 1]
    """
    values = values.astype(str)
    labels = np.full(len(values), -1, dtype=np.int64)
    for label, name in enumerate(classes):
        labels[values == name] = label
    for label, name in enumerate(classes):
        if name.startswith("not ") and name.removeprefix("not ") in classes:
            labels[labels == -1] = label
    if (labels == -1).any():
        row = int(np.argmax(labels == -1))
        raise UserError(
            f"{where}: unknown label '{values[row]}' in row {row + 1}; "
            f"{nearest(values[row], classes)}"
        )
    return labels


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
