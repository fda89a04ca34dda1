"""UCI heart disease: four hospitals, four clients.

Detrano et al. (1989). 13 findings per patient; the label ``num`` is 0 for no disease and 1 to 4
otherwise, so the classes are "0" and "not 0". A cholesterol or blood pressure of 0 stands for "not
measured" (it does for all of Switzerland's cholesterol) and is treated as missing, like "?".
"""

from __future__ import annotations

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import tidy
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.sources.tables import read_csv
from fedsaddle.errors import UserError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FINDINGS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)


def heart_disease(options: DataOptions, binary: bool) -> Raw:
    """Read processed.<hospital>.data from ``root/heart-disease``, or from ``root`` itself."""
    import pandas as pd

    frames, labels, parts = [], [], []
    for hospital in HOSPITALS:
        name = f"processed.{hospital}.data"
        path = options.folder / "heart-disease" / name
        if not path.is_file():
            path = options.folder / name
        if not path.is_file():
            raise UserError(
                f"{options.folder / 'heart-disease' / name} is missing; set data.root to the "
                "folder with the files of https://archive.ics.uci.edu/dataset/45/heart+disease."
            )
        frame = read_csv(path, header=(*FINDINGS, "num"))
        stages = [tidy(value) for value in frame.pop("num")]
        for row, stage in enumerate(stages, start=1):
            if stage not in ("0", "1", "2", "3", "4"):
                raise UserError(f"{path}: the last field of row {row} must be 0 to 4.")
        frames.append(frame)
        labels += ["0" if stage == "0" else "not 0" for stage in stages]
        parts.append(Part(str(path), len(frame)))
    return Raw(
        source="heart-disease",
        parts=tuple(parts),
        table=pd.concat(frames),
        labels=np.array(labels, dtype=object),
        clients=np.repeat(np.array(HOSPITALS, object), [part.n_rows for part in parts]),
        positive="not 0",
        categorical=("cp", "restecg", "slope", "thal"),
        zero_is_missing=("chol", "trestbps"),
    )
