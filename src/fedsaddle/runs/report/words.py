"""Numbers and names as a reader meets them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]

MISSING = "–"
UPPER = frozenset({"auc", "gan"})
SPELLED = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "q": "q",
    "plus": "+",
    **{word: word.capitalize() for word in ("catalyst", "extra", "local", "parallel", "prox")},
    "step": "Step",
}
UNITS = {"hours": 3600, "minutes": 60, "seconds": 1}


def finite(value: Any) -> float | None:
    """The number, or None for what is missing, no number, or not finite."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def column(rows: Iterable[Row], name: str) -> list[float | None]:
    return [finite(row.get(name)) for row in rows]


def number(value: Any, form: str = ".3f") -> str:
    known = finite(value)
    return MISSING if known is None else format(known, form).replace("-", "−")


def bounds(row: Row, metric: str = "auc") -> str:
    """A 95 % interval, or nothing."""
    low, high = finite(row.get(f"{metric}_low")), finite(row.get(f"{metric}_high"))
    return "" if low is None or high is None else f"{low:.3f}–{high:.3f}"


def interval(row: Row, metric: str = "auc") -> str:
    """A value with its 95 % interval where there is one: 0.912 (0.881–0.940)."""
    between = bounds(row, metric)
    return number(row.get(metric)) + (f" ({between})" if between else "")


def plural(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" + "s" * (amount != 1)


def megabytes(amount: float | None) -> str:
    """Bytes, written in megabytes of 10^6 bytes.

    >>> megabytes(3_210_000), megabytes(12_345_678_900), megabytes(4_200)
    ('3.21 MB', '12,346 MB', '0.0042 MB')
    """
    size = None if amount is None else amount / 1e6
    form = ".2g" if size and size < 0.1 else ",.2f" if size and size < 100 else ",.0f"
    return MISSING if size is None else f"{size:{form}} MB"


def duration(seconds: float | None) -> str:
    """
    >>> duration(4.26), duration(200), duration(7500)
    ('4.3 s', '3 min 20 s', '2 h 5 min')
    """
    if seconds is None or seconds < 60:
        return MISSING if seconds is None else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def unit_of(seconds: float) -> str:
    """The unit for an axis that ends here.

    >>> unit_of(90), unit_of(600), unit_of(86_400)
    ('seconds', 'minutes', 'hours')
    """
    return next((unit for unit, size in UNITS.items() if seconds >= 2 * size), "seconds")


def method_name(name: str) -> str:
    """A method as its paper writes it; an import path stays as it is.

    >>> [method_name(name) for name in ("codasca", "coda-plus", "q-fedavg", "my.own:Method")]
    ['CODASCA', 'CODA+', 'q-FedAvg', 'my.own:Method']
    """
    if set(name) & set(".:/"):
        return name
    words = (SPELLED.get(word, word.upper()) for word in name.split("-"))
    return "-".join(words).replace("-+", "+")


def problem_name(name: str) -> str:
    """
    >>> problem_name("auc"), problem_name("compositional-auc"), problem_name("my.own:Problem")
    ('AUC', 'compositional AUC', 'my.own:Problem')
    """
    if set(name) & set(".:/"):
        return name
    return " ".join(word.upper() if word in UPPER else word for word in name.split("-"))


def metric_name(metric: str) -> str:
    """
    >>> metric_name("auc"), metric_name("mean_auc"), metric_name("auc_Edema"), metric_name("loss")
    ('AUC', 'Mean AUC', 'AUC of Edema', 'Loss')
    """
    if metric.startswith("auc_"):
        return f"AUC of {metric.removeprefix('auc_')}"
    names = {"auc": "AUC", "mean_auc": "Mean AUC"}
    return names.get(metric, metric.replace("_", " ").capitalize())


def distinct(names: Iterable[str]) -> list[str]:
    """Names that can be told apart.

    >>> distinct(["run", "run", "other"])
    ['run', 'run (2)', 'other']
    """
    seen: dict[str, None] = {}
    for name in names:
        tries = (name if i == 1 else f"{name} ({i})" for i in range(1, len(seen) + 2))
        seen[next(label for label in tries if label not in seen)] = None
    return list(seen)


def agreed(rows: Sequence[Row], name: str) -> str:
    """A count on which all who know it agree."""
    found = {row[name] for row in rows if row.get(name) is not None}
    return "differs" if len(found) > 1 else number(next(iter(found), None), ",.0f")
