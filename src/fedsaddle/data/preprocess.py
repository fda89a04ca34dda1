"""Federated preprocessing: one scaling and one encoding for all sites, fitted without pooling rows.

Only counts (with the names of categories), sums and sums of squares leave a site, in three small
exchanges whose size does not depend on the number of rows:

    1. site → server  describe_columns   per column: values present, and how many of them are text
       server → site  merge_columns      the schema: numeric or categorical
    2. site → server  site_sums          numeric: count and sum; categorical: count per category
       server → site  merge_sums         numeric: count and mean; categorical: the categories
    3. site → server  site_squares       numeric: sum of squared deviations from the global mean
       server         finish             the Preprocessing

Squares are taken about the global mean, not about zero: the variance then does not cancel.
All payloads are plain dicts of numbers and text, ready for JSON.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsaddle.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

Payload = dict[str, Any]

MISSING = ("", "?", "na", "nan", "null", "none")  # compared in lower case

_WHOLE = re.compile(r"\+?(-?\d+)(\.0*)?")


def tidy(value: object) -> str | None:
    """The text of one cell, or None when it says that the value is missing.

    Whole numbers are written in one way, because one site's file says 1 where another's says 1.0.

    >>> tidy(" 2.0"), tidy("+1"), tidy("007"), tidy("?"), tidy(float("nan")), tidy("None")
    ('2', '1', '007', None, None, None)
    """
    text = str(value).strip()
    if text.lower() in MISSING:
        return None
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def texts(column: pd.Series) -> np.ndarray:
    """A column's cells as an object array of tidy text, None where missing."""
    import pandas as pd

    codes, values = pd.factorize(column)  # tidy each distinct value once
    tidied: np.ndarray = np.array([*map(tidy, values), None], dtype=object)
    cells: np.ndarray = tidied[codes]  # code -1 (missing) is the None at the end
    return cells


def numbers(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """A column as floats (NaN where missing or text), and a mask of the cells that are text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(column), bool)
    is_plain = column.dtype == object or pd.api.types.is_string_dtype(column.dtype)
    cells = column if is_plain else pd.Series(texts(column), dtype=object)  # dates are not numbers
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    text = np.isnan(values)
    text[text] = texts(column[text]) != None  # noqa: E711 (element by element)
    return values, text


def _finite_numbers(frame: pd.DataFrame, name: str, where: str) -> np.ndarray:
    """The floats of a numeric column; text or an infinite value is the user's error."""
    values, text = numbers(frame[name])
    if text.any():
        row = int(np.argmax(text))
        raise UserError(
            f"{where}: numeric column '{name}' holds the text '{frame[name].iloc[row]}' "
            f"in row {frame.index[row]}; correct it, list the column in data.categorical, "
            "or leave it out with data.drop."
        )
    _refuse_infinite(values, frame, name, where)
    return values


def _refuse_infinite(values: np.ndarray, frame: pd.DataFrame, name: str, where: str) -> None:
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise UserError(
            f"{where}: column '{name}' is infinite in row {frame.index[row]}; "
            "correct the value or leave it empty."
        )


def without_zeros(frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """A copy in which 0 counts as missing in these columns (a cholesterol of 0 is not measured)."""
    columns = list(columns)
    for name in columns:
        if name not in frame.columns:
            raise UserError(
                f"zero_is_missing: no column '{name}'; {nearest(name, list(frame.columns))}"
            )
    changed = {name: frame[name].mask(numbers(frame[name])[0] == 0) for name in columns}
    return frame.assign(**changed)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Numeric(_Strict):
    """A column of numbers: its mean fills gaps; a scale of 0 marks a constant column."""

    kind: Literal["numeric"] = "numeric"
    name: str
    mean: float
    scale: float = Field(ge=0)
    zero_is_missing: bool = False


class Categorical(_Strict):
    """A column of categories, in sorted order."""

    kind: Literal["categorical"] = "categorical"
    name: str
    categories: tuple[str, ...]


Column = Annotated[Numeric | Categorical, Field(discriminator="kind")]


class Preprocessing(_Strict):
    """How a table becomes a matrix: the same at every site, and for every later file.

    Numeric columns: gaps take the mean, then ``(value - mean) / scale`` (a constant column
    becomes 0); without ``standardise`` only the gaps are filled. Categorical columns become one
    0/1 feature per category, all 0 for a missing or unseen one.

    >>> import pandas as pd
    >>> site = pd.DataFrame({"age": [40, 60, None], "sex": ["f", "m", "f"]})
    >>> fitted = fit([site])
    >>> fitted.feature_names
    ('age', 'sex=f', 'sex=m')
    >>> fitted.transform(site).tolist()
    [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """

    version: Literal[1] = 1
    standardise: bool = True
    columns: tuple[Column, ...]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per column of the matrix: ``age``, ``sex=f``, ``sex=m``."""
        names: list[str] = []
        for column in self.columns:
            if isinstance(column, Numeric):
                names.append(column.name)
            else:
                names += [f"{column.name}={category}" for category in column.categories]
        return tuple(names)

    def transform(self, frame: pd.DataFrame, where: str = "the table") -> np.ndarray:
        """The float32 matrix of a table; ``where`` names its file in error messages."""
        present = list(map(str, frame.columns))
        features = np.zeros((len(frame), len(self.feature_names)), dtype=np.float32)
        start = 0
        for column in self.columns:
            if column.name not in present:
                raise UserError(
                    f"{where}: no column '{column.name}', which the model needs; "
                    f"{nearest(column.name, present)}"
                )
            if isinstance(column, Numeric):
                values = _finite_numbers(frame, column.name, where)
                if column.zero_is_missing:
                    values = np.where(values == 0, np.nan, values)
                features[:, start] = self._scaled(values, column)
                start += 1
            else:
                cells = texts(frame[column.name])
                for category in column.categories:
                    features[:, start] = cells == category
                    start += 1
        return features

    def _scaled(self, values: np.ndarray, column: Numeric) -> np.ndarray:
        filled = np.where(np.isnan(values), column.mean, values)
        if not self.standardise:
            return filled
        if column.scale == 0:
            return np.zeros_like(filled)
        return (filled - column.mean) / column.scale

    def to_json(self) -> Payload:
        """A plain dict for JSON."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, payload: Payload) -> Preprocessing:
        """The inverse of ``to_json``; anything missing, unknown or of a wrong type is refused."""
        import json

        try:
            # By way of JSON text, where a list may stand for a tuple even in strict mode.
            return cls.model_validate_json(json.dumps({"version": None} | payload))
        except (ValidationError, TypeError, ValueError) as error:
            reason = (
                "{msg} at {loc}".format(**error.errors()[0])
                if isinstance(error, ValidationError)
                else str(error)
            )
            raise UserError(
                f"Not a preprocessing description of version 1 ({reason}); "
                "fit it again with this version of fedsaddle."
            ) from error


def describe_columns(
    frame: pd.DataFrame,
    numeric: Iterable[str] = (),
    where: str = "a site",
) -> Payload:
    """Step 1 at a site: per column, how many values are present and how many of those are text.

    >>> import pandas as pd
    >>> describe_columns(pd.DataFrame({"age": ["31", "?"], "sex": ["f", "m"]}))
    {'age': {'count': 1, 'text': 0}, 'sex': {'count': 2, 'text': 2}}
    """
    payload: Payload = {}
    declared = set(numeric)
    for name in frame.columns:
        if name in declared:
            values, text = _finite_numbers(frame, name, where), np.zeros(len(frame), bool)
        else:
            values, text = numbers(frame[name])
            _refuse_infinite(values, frame, name, where)
        payload[str(name)] = {
            "count": int((~np.isnan(values) | text).sum()),
            "text": int(text.sum()),
        }
    return payload


def merge_columns(
    payloads: Sequence[Payload],
    numeric: Iterable[str] = (),
    categorical: Iterable[str] = (),
    where: Sequence[str] | None = None,
) -> dict[str, str]:
    """Step 1 at the server: a column that is all numbers at all sites is numeric.

    ``numeric`` and ``categorical`` overrule that. ``where`` names the sites in error messages.
    """
    if not payloads:
        raise UserError("Preprocessing needs at least one site.")
    where = _site_names(len(payloads)) if where is None else where
    first = payloads[0]
    for payload, site in zip(payloads, where, strict=True):
        for name in [*first, *payload]:
            if name not in payload or name not in first:
                lacking, other = (site, where[0]) if name not in payload else (where[0], site)
                raise UserError(
                    f"{lacking}: no column '{name}', which {other} has; all sites need the same "
                    "columns (leave one out everywhere with data.drop)."
                )
    numeric, categorical = set(numeric), set(categorical)
    for name in sorted(numeric | categorical):
        if name not in first:
            option = "numeric" if name in numeric else "categorical"
            raise UserError(f"data.{option}: no column '{name}'; {nearest(name, list(first))}")
        if name in numeric and name in categorical:
            raise UserError(f"Column '{name}' is in both data.numeric and data.categorical.")
    schema = {}
    for name in first:
        if not sum(payload[name]["count"] for payload in payloads):
            raise UserError(
                f"Column '{name}' has no value at any site; leave it out with "
                f'data.drop = ["{name}"].'
            )
        text = sum(payload[name]["text"] for payload in payloads)
        is_numeric = name in numeric or (name not in categorical and not text)
        schema[name] = "numeric" if is_numeric else "categorical"
    return schema


def site_sums(
    frame: pd.DataFrame,
    schema: Mapping[str, str],
    max_categories: int = 50,
    where: str = "a site",
) -> Payload:
    """Step 2 at a site: count and sum of numeric columns, count per category of the others."""
    payload: Payload = {}
    for name, kind in schema.items():
        if kind == "numeric":
            values = _finite_numbers(frame, name, where)
            present = values[~np.isnan(values)]
            with np.errstate(over="ignore"):  # finish() refuses an infinite result
                payload[name] = {"count": len(present), "sum": float(present.sum())}
        else:
            counts = Counter(cell for cell in texts(frame[name]) if cell is not None)
            _refuse_many(name, len(counts), max_categories, where)
            payload[name] = {"categories": dict(counts)}
    return payload


def merge_sums(payloads: Sequence[Payload], max_categories: int = 50) -> Payload:
    """Step 2 at the server: global count and mean, or the sorted categories of all sites."""
    totals: Payload = {}
    for name, first in payloads[0].items():
        if "sum" in first:
            count = sum(payload[name]["count"] for payload in payloads)
            mean = _total(payload[name]["sum"] for payload in payloads) / max(count, 1)
            totals[name] = {"count": count, "mean": mean}
        else:
            categories = sorted({c for payload in payloads for c in payload[name]["categories"]})
            _refuse_many(name, len(categories), max_categories, "all sites together")
            totals[name] = {"categories": categories}
    return totals


def site_squares(frame: pd.DataFrame, totals: Payload, where: str = "a site") -> dict[str, float]:
    """Step 3 at a site: sum of squared deviations of each numeric column from the global mean."""
    payload = {}
    for name, total in totals.items():
        if "mean" in total:
            values = _finite_numbers(frame, name, where)
            with np.errstate(over="ignore"):  # as above
                payload[name] = float(np.nansum((values - total["mean"]) ** 2))
    return payload


def finish(
    totals: Payload,
    squares: Sequence[Mapping[str, float]],
    standardise: bool = True,
    zero_is_missing: Iterable[str] = (),
) -> Preprocessing:
    """Step 3 at the server: means, scales and categories, for everyone."""
    zero_is_missing = set(zero_is_missing)
    columns: list[Numeric | Categorical] = []
    for name, total in totals.items():
        if "categories" in total:
            columns.append(Categorical(name=name, categories=tuple(total["categories"])))
            continue
        count, mean = total["count"], total["mean"]
        scale = math.sqrt(_total(site[name] for site in squares) / max(count, 1))
        if not (math.isfinite(mean) and math.isfinite(scale)):
            raise UserError(f"Column '{name}' holds numbers too large to square; rescale it.")
        # The mean of n equal numbers is off by up to n rounding errors: that is not a spread.
        if scale <= 2 * count * np.finfo(np.float64).eps * abs(mean):
            scale = 0.0
        columns.append(
            Numeric(name=name, mean=mean, scale=scale, zero_is_missing=name in zero_is_missing)
        )
    return Preprocessing(columns=tuple(columns), standardise=standardise)


def fit(
    frames: Sequence[pd.DataFrame],
    numeric: Sequence[str] = (),
    categorical: Sequence[str] = (),
    max_categories: int = 50,
    *,
    standardise: bool = True,
    zero_is_missing: Sequence[str] = (),
    where: Sequence[str] | None = None,
) -> Preprocessing:
    """Run the three exchanges over the sites' training rows, one frame per site.

    In ``zero_is_missing`` columns 0 counts as missing; ``where`` names the sites in errors.
    """
    where = _site_names(len(frames)) if where is None else list(where)
    if zero_is_missing:
        frames = [without_zeros(frame, zero_is_missing) for frame in frames]

    def at_sites(step: Callable[..., Payload], *arguments: Any) -> list[Payload]:
        return [
            step(frame, *arguments, where=site) for frame, site in zip(frames, where, strict=True)
        ]

    described = at_sites(describe_columns, numeric)
    schema = merge_columns(described, numeric, categorical, where)
    totals = merge_sums(at_sites(site_sums, schema, max_categories), max_categories)
    return finish(totals, at_sites(site_squares, totals), standardise, zero_is_missing)


def _total(values: Iterable[float]) -> float:
    """The exact sum, hence the same in every order of the sites; infinite when it overflows."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.inf


def _site_names(n: int) -> list[str]:
    return [f"site {i}" for i in range(n)]


def _refuse_many(name: str, n: int, allowed: int, where: str) -> None:
    if n > allowed:
        raise UserError(
            f"{where}: text column '{name}' has {n} categories, more than "
            f"data.max_categories = {allowed}; it looks like an identifier: leave it out with "
            f'data.drop = ["{name}"], or raise data.max_categories.'
        )
