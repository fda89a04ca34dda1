"""A site's evaluation as numbers in a header and vectors of counts, there and back."""

import math
from typing import Any

import numpy as np
import torch

from fedsaddle.algorithms.base import Vectors
from fedsaddle.flower.wire import Header
from fedsaddle.metrics import ScoreCounts, SiteEvaluation

NOT_FINITE = "not finite"
"""What a site tells of a split where the model's scores cannot be ranked any more."""
_PARTS = ("values", "positives", "negatives")


def pack(site: SiteEvaluation, prefix: str) -> tuple[Header, Vectors]:
    """What a site tells of one split."""
    header: Header = {
        "rows": site.rows,
        "loss": site.loss if math.isfinite(site.loss) else None,
        "correct": site.correct,
        "counts": site.counts is not None,
        "findings": None if site.findings is None else list(site.findings),
    }
    vectors = {} if site.counts is None else _packed(site.counts, prefix)
    for place, counts in enumerate((site.findings or {}).values()):
        vectors |= _packed(counts, f"{prefix}.{place}")
    return header, vectors


def unpack(name: str, header: Any, vectors: Vectors, prefix: str) -> SiteEvaluation:
    """The inverse of `pack`; a ValueError or KeyError for what no site would tell."""
    loss, findings = header["loss"], header["findings"]
    found = None
    if findings is not None:
        places = range(len(findings))
        counted = [_unpacked(vectors, f"{prefix}.{place}") for place in places]
        found = dict(zip(map(str, findings), counted, strict=True))
    return SiteEvaluation(
        name,
        int(header["rows"]),
        math.nan if loss is None else float(loss),
        _unpacked(vectors, prefix) if header["counts"] else None,
        None if header["correct"] is None else int(header["correct"]),
        found,
    )


def _packed(counts: ScoreCounts, prefix: str) -> Vectors:
    return {f"{prefix}.{part}": torch.from_numpy(getattr(counts, part)) for part in _PARTS}


def _unpacked(vectors: Vectors, prefix: str) -> ScoreCounts:
    values, positives, negatives = (vectors[f"{prefix}.{part}"].numpy() for part in _PARTS)
    return ScoreCounts(np.asarray(values, np.float64), positives, negatives)
