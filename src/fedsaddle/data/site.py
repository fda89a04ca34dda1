"""One site's part of the data of a federation whose rows lie in different places.

Only counts, sums and shapes leave a site, in three exchanges:

    1. site → server  look      rows, rows of each label value, per column: how many are text
       server → site  agree     names, classes, which columns are numbers
    2. site → server  count     rows and positives of every split; sums of the training rows
       server → site  combine   counts and means, or the categories of all sites
    3. site → server  squares   sums of squared deviations of the training rows
       server → site  settle    the Preprocessing

What results is, row for row, the data of `load` with one file per site: a site's `FederatedData`
has all clients' names, and rows for its own client alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from fedsaddle.data.facts import SPLITS, Facts, facts_of
from fedsaddle.data.federated import FederatedData, Rows, Store, strata
from fedsaddle.data.labels import choose_classes, encode_findings, match
from fedsaddle.data.loading import add_held_out, only_training, split_rows, typed_table
from fedsaddle.data.options import DataOptions
from fedsaddle.data.partition import natural_order
from fedsaddle.data.preprocess import (
    Payload,
    Preprocessing,
    describe_columns,
    finish,
    merge_columns,
    merge_sums,
    site_squares,
    site_sums,
    without_zeros,
)
from fedsaddle.data.sources import read
from fedsaddle.data.sources.images import ImageFiles, ImageFormat
from fedsaddle.data.sources.raw import Raw
from fedsaddle.data.splits import TEST, TRAIN, VALIDATION
from fedsaddle.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

ALL = "all sites together"


class Agreement(BaseModel):
    """What all sites have to know before a row can be placed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    several: bool = False
    """Whether the classes are findings, each present or not."""
    finding_rows: tuple[int, ...] = ()
    """For each finding, how many rows have it."""
    kinds: dict[str, str] | None = None
    """Which columns are "numeric" and which "categorical"; None for data without columns."""


class SiteRows:
    """The rows of one site, from its file to `FederatedData`."""

    def __init__(self, options: DataOptions, name: str, binary: bool, seed: int) -> None:
        self._options, self._name, self._binary = options, name, binary
        self._seed = seed if options.seed is None else options.seed

    @cached_property
    def _raw(self) -> Raw:
        raw = read(self._options.model_copy(update={"client": None, "root": None}), self._binary)
        if raw.clients is not None:
            raise UserError(f"{raw.source}: a site has one file, with its own rows only.")
        return raw

    @cached_property
    def _table(self) -> pd.DataFrame | None:
        """The feature columns, without those that are left out everywhere."""
        table: pd.DataFrame | None = self._raw.table
        if table is None:
            return None
        dropped = [*self._options.drop, self._options.client]
        return table.drop(columns=[name for name in dropped if name in table.columns])

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part in self._raw.parts)

    def look(self) -> Payload:
        """Step 1: what is in the file."""
        raw, table = self._raw, self._table
        payload: Payload = {"rows": self.n_rows, "findings": list(raw.findings)}
        if raw.findings:
            payload["finding_rows"] = (self._finding_labels() == 1).sum(axis=0).tolist()
        elif raw.labels is not None:
            payload["labels"] = dict(Counter(raw.labels.astype(str).tolist()))
        if raw.array is not None:
            payload["shape"] = list(raw.array.shape[1:])
            if isinstance(raw.array, ImageFiles):
                payload["images"] = vars(raw.array.format)
        if table is not None:
            numeric = set(self._options.numeric) & set(table.columns)
            payload["columns"] = describe_columns(table, numeric, raw.parts[0].where)
        return payload

    def _finding_labels(self) -> np.ndarray:
        raw = self._raw
        assert raw.labels is not None
        return encode_findings(raw.labels, raw.findings, self._options.positive, raw.source)

    def agree(self, agreement: Agreement, min_rows: int = 1) -> SiteRows:
        """Place the rows: labels by the agreed classes, and the site's own split.

        Validation or test rows fewer than ``min_rows`` are left out: nothing is told of them.
        """
        raw, self._agreed = self._raw, agreement
        client, n_clients = agreement.names.index(self._name), len(agreement.names)
        labels, counts = np.zeros(self.n_rows, dtype=np.int64), None
        if agreement.several:
            labels, counts = self._finding_labels(), np.array(agreement.finding_rows)
        elif agreement.classes:
            assert raw.labels is not None
            labels = match(raw.labels, agreement.classes, raw.source)
        marks = np.zeros(self.n_rows, dtype=np.int8) if raw.split is None else raw.split
        kept = np.flatnonzero(marks == TRAIN)
        dealt = strata(labels[kept], counts)
        owner = Rows.from_owners(np.full(len(kept), client), n_clients)
        parts = split_rows(self._options, raw, dealt, owner, kept, marks, self._seed)
        if np.isin(marks, (VALIDATION, TEST)).any():
            whose = np.full(self.n_rows, self._name, dtype=object)
            kept, _, parts = add_held_out(marks, whose, kept, agreement.names, parts)
        parts = only_training(self._options, raw, agreement.names, parts)
        validation, test = (
            part if len(part.indices) >= min_rows else Rows.empty(n_clients) for part in parts[1:]
        )
        self._labels, self._kept, self._parts = labels, kept, (parts[0], validation, test)
        return self

    @cached_property
    def _typed(self) -> pd.DataFrame:
        assert self._table is not None
        assert self._agreed.kinds is not None
        return typed_table(self._table, self._agreed.kinds)

    @property
    def _training(self) -> pd.DataFrame:
        """The training rows as the statistics take them."""
        table = self._typed.iloc[self._kept[self._parts[0].indices]]
        return without_zeros(table, _zero_is_missing(self._options, self._agreed))

    @property
    def client(self) -> int:
        """The site's place among the clients."""
        return self._agreed.names.index(self._name)

    def count(self) -> Payload:
        """Step 2: rows and positives of every split, and sums of the training rows."""
        facts, kinds = facts_of(self.data(None)), self._agreed.kinds
        payload: Payload = {
            "rows": {split: int(facts.rows[split][self.client]) for split in SPLITS},
            "known": facts.known[self.client].tolist(),
            "positives": facts.positives[self.client].tolist(),
            "range": facts.input_range,
        }
        if kinds is not None:
            training, limit = self._training, self._options.max_categories
            numeric = [name for name, kind in kinds.items() if kind == "numeric"]
            payload["columns"] = describe_columns(training, numeric, self._name)
            payload["sums"] = site_sums(training, kinds, limit, self._name)
        return payload

    def squares(self, totals: Payload) -> dict[str, float]:
        """Step 3: squared deviations of the training rows from the means of all sites."""
        return site_squares(self._training, totals, self._name) if totals else {}

    def data(self, preprocessing: Preprocessing | None) -> FederatedData:
        """The rows as all methods take them; without inputs until the preprocessing is known."""
        raw, agreed, parts, kept = self._raw, self._agreed, self._parts, self._kept
        inputs: torch.Tensor | Store
        if raw.array is not None:
            inputs = raw.array if isinstance(raw.array, Store) else torch.from_numpy(raw.array)
            train, validation, test = (Rows(kept[part.indices], part.offsets) for part in parts)
            parts, kept = (train, validation, test), np.arange(self.n_rows)
        elif preprocessing is None:
            inputs = torch.zeros(len(kept), 0)
        else:
            rows = self._typed.iloc[kept]
            inputs = torch.from_numpy(preprocessing.transform(rows, raw.source))
        return FederatedData(
            inputs,
            torch.from_numpy(self._labels[kept]),
            *parts,
            names=agreed.names,
            classes=agreed.classes,
            preprocessing=preprocessing,
            source=raw.source,
            positive=self._options.positive if agreed.several else None,
        )


def check_remote(options: DataOptions) -> None:
    """Refuse what needs all rows in one place."""
    if options.partition not in (None, "column"):
        raise UserError(
            f"data.partition = '{options.partition}' deals rows out anew, but sites keep theirs; "
            "leave it out."
        )
    for option in ("positive_ratio", "feature"):
        if getattr(options, option) is not None:
            raise UserError(f"data.{option} is for simulations: it needs all rows in one place.")
    if options.min_rows > 1:
        raise UserError("data.min_rows is for simulations; leave the small sites out yourself.")


def agree(looks: Mapping[str, Payload], options: DataOptions, binary: bool) -> Agreement:
    """Step 1 at the server, from every site's `look`."""
    names = tuple(natural_order(list(looks)))
    first, *others = (looks[name] for name in names)
    for name, look in zip(names[1:], others, strict=True):
        for key, what in (("findings", "findings"), ("shape", "shape of a row")):
            if look.get(key) != first.get(key):
                raise UserError(
                    f"site '{name}': its {what} is {look.get(key)}, "
                    f"but {first.get(key)} at site '{names[0]}'."
                )
        if ("labels" in look) != ("labels" in first) or ("columns" in look) != ("columns" in first):
            raise UserError(f"site '{name}': its file is of another kind than '{names[0]}' has.")
    classes: tuple[str, ...] = tuple(first["findings"])
    finding_rows: tuple[int, ...] = ()
    if classes:
        finding_rows = tuple(np.sum([looks[n]["finding_rows"] for n in names], axis=0).tolist())
    elif "labels" in first:
        found: Counter[str] = Counter()
        for name in names:
            found.update(looks[name]["labels"])
        classes = choose_classes(found, options.positive, binary, ALL)
    kinds = None
    if "columns" in first:
        columns = [looks[name]["columns"] for name in names]
        where = [f"site '{name}'" for name in names]
        kinds = merge_columns(columns, options.numeric, options.categorical, where)
    return Agreement(
        names=names,
        classes=classes,
        several=bool(finding_rows),
        finding_rows=finding_rows,
        kinds=kinds,
    )


def combine(counts: Mapping[str, Payload], agreement: Agreement, options: DataOptions) -> Payload:
    """Step 2 at the server: means and categories; nothing for data without columns."""
    if agreement.kinds is None:
        return {}
    ordered = [counts[name] for name in agreement.names]
    where = [f"site '{name}'" for name in agreement.names]
    kinds = agreement.kinds
    merge_columns(
        [count["columns"] for count in ordered],
        [name for name, kind in kinds.items() if kind == "numeric"],
        [name for name, kind in kinds.items() if kind == "categorical"],
        where,
    )
    return merge_sums([count["sums"] for count in ordered], options.max_categories)


def settle(
    totals: Payload,
    squares: Mapping[str, Mapping[str, float]],
    agreement: Agreement,
    options: DataOptions,
) -> Preprocessing | None:
    """Step 3 at the server."""
    if agreement.kinds is None:
        return None
    ordered = [squares[name] for name in agreement.names]
    missing = _zero_is_missing(options, agreement)
    return finish(totals, ordered, options.standardise, missing)


def gathered_facts(
    agreement: Agreement,
    looks: Mapping[str, Payload],
    counts: Mapping[str, Payload],
    preprocessing: Preprocessing | None,
    options: DataOptions,
) -> Facts:
    """All that the coordinator has learned."""
    names, classes = agreement.names, agreement.classes
    look = looks[names[0]]
    shape = look["shape"] if preprocessing is None else [len(preprocessing.feature_names)]
    task: Literal["binary", "multiclass", "multilabel", "none"] = "none"
    if classes:
        single: Literal["binary", "multiclass"] = "binary" if len(classes) == 2 else "multiclass"
        task = "multilabel" if agreement.several else single
    return Facts(
        "sites " + ", ".join(names),
        names,
        classes,
        task,
        tuple(shape),
        {split: np.array([counts[name]["rows"][split] for name in names]) for split in SPLITS},
        np.array([counts[name]["known"] for name in names]),
        np.array([counts[name]["positives"] for name in names]),
        positive=options.positive if agreement.several else None,
        preprocessing=preprocessing,
        images=ImageFormat(**look["images"]) if "images" in look else None,
        input_range=None if (found := counts[names[0]]["range"]) is None else (found[0], found[1]),
    )


def _zero_is_missing(options: DataOptions, agreement: Agreement) -> list[str]:
    kinds = agreement.kinds or {}
    for name in options.zero_is_missing:
        if kinds.get(name) == "categorical":
            raise UserError(f"data.zero_is_missing: column '{name}' is not numeric.")
    return [name for name in options.zero_is_missing if kinds.get(name) == "numeric"]
