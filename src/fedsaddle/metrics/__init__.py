"""How good a model is, site by site and pooled, from counts that sites may share.

A site turns its scores into `ScoreCounts`, exact or in public bins; every metric reads those:

>>> from fedsaddle.metrics import auc_score, evaluate_site, summarise
>>> auc_score([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
0.75
>>> site = evaluate_site("Bonn", [-2.0, -0.5, 0.3, 1.0], [0, 1, 0, 1], loss=0.6, binned=True)
>>> summarise("test", [site])["test/auc"]
0.75
"""

from fedsaddle.metrics.calibration import Reliability, expected_calibration_error, reliability
from fedsaddle.metrics.evaluation import (
    SiteEvaluation,
    evaluate_site,
    higher_is_better,
    metric_names,
    summarise,
)
from fedsaddle.metrics.intervals import wilson_interval
from fedsaddle.metrics.ranking import (
    ScoreCounts,
    auc,
    auc_score,
    average_precision,
    delong_interval,
    delong_variance,
    roc_curve,
    thin_curve,
)

__all__ = [
    "Reliability",
    "ScoreCounts",
    "SiteEvaluation",
    "auc",
    "auc_score",
    "average_precision",
    "delong_interval",
    "delong_variance",
    "evaluate_site",
    "expected_calibration_error",
    "higher_is_better",
    "metric_names",
    "reliability",
    "roc_curve",
    "summarise",
    "thin_curve",
    "wilson_interval",
]
