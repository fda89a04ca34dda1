"""The data sets that come with scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np

from fedsaddle.data.options import DataOptions
from fedsaddle.data.sources.raw import Part, Raw


def breast_cancer(options: DataOptions, binary: bool) -> Raw:
    """Wisconsin diagnostic breast cancer: 569 tumours, 30 measurements, 37 % malignant."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    table = bunch.data.set_axis(range(1, len(bunch.data) + 1))
    return Raw(
        source="breast-cancer",
        parts=(Part("breast-cancer", len(table)),),
        table=table,
        labels=np.array(bunch.target_names)[bunch.target.to_numpy()].astype(object),
        positive="malignant",
    )


def digits(options: DataOptions, binary: bool) -> Raw:
    """Handwritten digits: 1797 images of 8x8, as 64 floats in [0, 1].

    A binary problem ranks the 8s above all others, unless ``positive`` names another digit.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Raw(
        source="digits",
        parts=(Part("digits", len(bunch.data)),),
        array=(bunch.data / 16).astype(np.float32),
        labels=bunch.target.astype(str).astype(object),
        positive="8" if binary else None,
    )
