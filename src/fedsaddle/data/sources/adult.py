"""UCI Adult: does a person earn more than 50 000 dollars a year (census of 1994)?

Becker and Kohavi (1996). 14 columns, numbers and categories; "?" is missing. The publisher's test
file opens with a comment and ends its labels in a full stop.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.published import fetch_advice, locate, read_text
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.splits import TEST, TRAIN
from fedsaddle.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
LABELS = ("<=50K", ">50K")


def adult(options: DataOptions, binary: bool) -> Raw:
    """Read adult.data and adult.test from ``root/adult``, or from ``root`` itself."""
    import pandas as pd

    tables, labels, parts = [], [], []
    for name in ("adult.data", "adult.test"):
        path = locate(options, "adult", name, fetch_advice("adult"))
        table, label = _read(path)
        tables.append(table)
        labels.append(label)
        parts.append(Part(str(path), len(table)))
    counts = [part.n_rows for part in parts]
    return Raw(
        source="adult",
        parts=tuple(parts),
        table=pd.concat(tables),
        labels=np.concatenate(labels),
        positive=">50K",
        split=np.repeat(np.array([TRAIN, TEST], dtype=np.int8), counts),
    )


def _read(path: Path) -> tuple[pd.DataFrame, np.ndarray]:
    import pandas as pd

    rows, numbers = [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip() or line.startswith("|"):
            continue
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(COLUMNS) + 1:
            raise UserError(
                f"{path}: line {number} has {len(fields)} fields, not {len(COLUMNS) + 1}; "
                "is the file complete?"
            )
        fields[-1] = fields[-1].removesuffix(".")
        if fields[-1] not in LABELS:
            raise UserError(f"{path}: line {number} must end in <=50K or >50K, not '{fields[-1]}'.")
        rows.append(fields)
        numbers.append(number)
    if not rows:
        raise UserError(f"{path}: has no rows.")
    frame = pd.DataFrame(rows, columns=[*COLUMNS, "label"], index=numbers, dtype=object)
    return frame, frame.pop("label").to_numpy(dtype=object)
