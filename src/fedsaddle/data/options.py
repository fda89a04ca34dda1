"""The ``[data]`` section of a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class DataOptions(BaseModel):
    """Where the data come from, how they are shared among clients, and how they are split.

    >>> DataOptions(source="digits", positive="3").clients
    8
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    source: str | list[str] = Field(
        "breast-cancer",
        description="Bundled name, or path, list of paths, folder or glob of CSV, Parquet, NPZ or "
        "LIBSVM files (several files: one per site, named by the file).",
    )
    root: Path | None = Field(
        None,
        description="Folder with downloaded data sets (default: $FEDSADDLE_DATA, else 'data').",
    )
    label: str | list[str] | None = Field(
        None,
        description="Label column (default: 'label'; in an NPZ file the array 'y'), or several, "
        "one per finding: 1 or 0, yes or no, true or false; empty or -1 is unknown.",
    )
    positive: str | None = Field(
        None,
        description="Label value that counts as positive, or several ('0,1,2'), or 'first-half' of "
        "the classes; all others are negative (default: 1, yes or true, else the rarer value; "
        "digits: 8). With several findings: the values that mean present ('1,-1': unsure, too).",
    )
    client: str | None = Field(
        None,
        description="Column that names each row's client (in an NPZ file: array, 'client').",
    )
    drop: list[str] = Field([], description="Columns to leave out.")
    numeric: list[str] = Field([], description="Columns to read as numbers; text is an error.")
    categorical: list[str] = Field([], description="Columns to read as categories.")
    zero_is_missing: list[str] = Field([], description="Columns in which 0 means not measured.")
    max_categories: int = Field(
        50, ge=1, description="Most categories of one column before it is refused."
    )
    partition: (
        Literal["iid", "column", "sorted", "dirichlet", "quantity", "feature", "disjoint-classes"]
        | None
    ) = Field(
        None,
        description="How rows are dealt to clients (default: 'column', the source's own clients, "
        "if it has any, else 'dirichlet').",
    )
    clients: int = Field(8, ge=1, description="Number of clients (all partitions but column).")
    feature: str | None = Field(
        None,
        description="Column whose values part the clients into groups: partition 'feature' deals "
        "each client rows of one value; with partition 'column' a client must have one value.",
    )
    min_rows: int = Field(
        1, ge=1, description="Column partition: leave out clients with fewer rows than this."
    )
    train_on: list[str] = Field(
        [],
        description="Clients whose rows train (default: all); of the others only the test rows "
        "are used.",
    )
    alpha: float = Field(
        0.5,
        gt=0,
        allow_inf_nan=False,
        description="Dirichlet and quantity partitions: small is uneven, large is even.",
    )
    similarity: float = Field(
        0.0, ge=0, le=1, description="Sorted partition: share of the rows dealt iid first."
    )
    positive_ratio: float | None = Field(
        None, gt=0, lt=1, description="Drop rows at random until this share is positive."
    )
    test: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of each client's rows for testing (default: 0.25, or 0 if the source "
        "has test rows of its own: they are the site 'held-out').",
    )
    validation: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of each client's rows for validation (default: 0.1, or none but the "
        "source's own validation rows if it has any; 0: all rows train, those too).",
    )
    seed: int | None = Field(
        None, ge=0, description="Seed of the partition and the split (default: the run's)."
    )
    image_size: int | None = Field(
        None, ge=1, le=4096, description="Image files: height and width in pixels (default: 32)."
    )
    image_mode: Literal["grey", "rgb"] | None = Field(
        None, description="Image files: grey or colour (default: as the first image)."
    )
    width: int | None = Field(
        None, ge=1, description="LIBSVM files: number of features (default: the largest index)."
    )
    standardise: bool = Field(
        True, description="Scale numeric columns to mean 0 and deviation 1 over all sites."
    )

    @field_validator("label")
    @classmethod
    def _several_findings(cls, label: str | list[str] | None) -> str | list[str] | None:
        if not isinstance(label, list):
            return label
        if not label or len(set(label)) < len(label):
            raise ValueError("name at least one column, and each of them once")
        return label if len(label) > 1 else label[0]

    @model_validator(mode="after")
    def _some_rows_train(self) -> DataOptions:
        if (self.test or 0) + (self.validation or 0) >= 1:
            raise ValueError(
                f"test ({self.test}) and validation ({self.validation}) together must stay "
                "below 1, or no row is left for training"
            )
        return self

    @property
    def folder(self) -> Path:
        """Where downloaded data sets are: ``root``, else $FEDSADDLE_DATA, else ``data``."""
        return self.root or Path(os.environ.get("FEDSADDLE_DATA") or "data")
