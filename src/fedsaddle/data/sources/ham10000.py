"""HAM10000: dermatoscopic images of pigmented skin lesions from four collections.

Tschandl, Rosendahl & Kittler (2018); non-commercial use. The client is the collection that an image
comes from, and melanoma ("mel") is positive. Images of one lesion stay on one side of a site's
split; a few lesions have images in two collections, and each of the two splits its own. Another
partition than by collection may likewise deal one lesion's images to several clients.
"""

from __future__ import annotations

import numpy as np

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.images import image_files
from fedsaddle.data.sources.raw import Part, Raw, text_column
from fedsaddle.data.sources.storage import locate_any, missing
from fedsaddle.data.sources.tables import read_csv
from fedsaddle.errors import UserError

FOLDERS = ("ham10000",)
METADATA = ("HAM10000_metadata", "HAM10000_metadata.csv")
CODES = {"akiec": 0, "bcc": 1, "bkl": 2, "df": 3, "nv": 4, "vasc": 5, "mel": 6}


def ham10000(options: DataOptions, binary: bool) -> Raw:
    """The JPEG files that are there, found by their names in any folder of the data set."""
    columns = _metadata(options)
    folder = locate_any(options, "ham10000", FOLDERS, *METADATA).parent
    found = {path.stem: path for path in sorted(folder.rglob("ISIC_*.jpg"), reverse=True)}
    there = np.array([image in found for image in columns["image_id"]])
    if not there.any():
        raise missing(folder / "ISIC_*.jpg", "ham10000")
    columns = {name: column[there] for name, column in columns.items()}
    files = [found[image] for image in columns["image_id"]]
    return _raw("ham10000", image_files(files, options), columns, str(folder), binary)


def ham10000_8x8(options: DataOptions, binary: bool) -> Raw:
    """All 10015 images in 8x8 grey pixels, from one CSV file in the metadata's order."""
    import pandas as pd

    columns = _metadata(options)
    path = locate_any(options, "ham10000", FOLDERS, "hmnist_8_8_L.csv")
    try:
        table = pd.read_csv(path)
        values = table.to_numpy(dtype=np.int64)
    except (ValueError, OSError) as error:  # pandas' and Unicode errors are ValueErrors
        raise UserError(f"{path}: cannot be read as CSV of whole numbers ({error}).") from error
    pixels, codes = values[:, :-1], values[:, -1]
    if list(table.columns) != [f"pixel{i:04d}" for i in range(64)] + ["label"]:
        raise UserError(f"{path}: must have the columns pixel0000 … pixel0063 and label.")
    if not len(pixels) or pixels.min() < 0 or pixels.max() > 255:
        raise UserError(f"{path}: pixels must lie in 0..255.")
    if codes.tolist() != [CODES.get(diagnosis) for diagnosis in columns["dx"]]:
        raise UserError(f"{path}: its labels do not follow the diagnoses in the metadata.")
    images = pixels.astype(np.uint8).reshape(-1, 1, 8, 8)
    return _raw("ham10000-8x8", images, columns, str(path), binary)


def _metadata(options: DataOptions) -> dict[str, np.ndarray]:
    path = locate_any(options, "ham10000", FOLDERS, *METADATA)
    frame = read_csv(path)
    if "dataset" not in frame.columns:
        raise UserError(
            f"{path}: has no column 'dataset' (the collection of each image); "
            "the publisher's own file HAM10000_metadata has it."
        )
    names = ("image_id", "lesion_id", "dx", "dataset")
    return {name: text_column(frame, name, name, str(path)) for name in names}


def _raw(
    source: str,
    images: np.ndarray | Store,
    columns: dict[str, np.ndarray],
    where: str,
    binary: bool,
) -> Raw:
    return Raw(
        source=source,
        parts=(Part(where, len(images)),),
        array=images,
        labels=columns["dx"],
        clients=columns["dataset"],
        positive="mel" if binary else None,
        together=columns["lesion_id"],
    )
