"""What is optimised. A problem states variables and a loss; see `Problem`."""

from fedsaddle.problems.agnostic import Agnostic
from fedsaddle.problems.auc import AUC
from fedsaddle.problems.base import Batch, NetworkProblem, Problem
from fedsaddle.problems.compositional import CompositionalAUC
from fedsaddle.problems.focal import Focal
from fedsaddle.problems.gan import GAN
from fedsaddle.problems.multilabel import MultilabelAUC
from fedsaddle.problems.projections import Ball, Box, Nonnegative, Simplex
from fedsaddle.problems.ratio import RatioLoss
from fedsaddle.problems.risk import Risk
from fedsaddle.problems.robust import Robust

_SADDLES = (AUC, CompositionalAUC, MultilabelAUC, Agnostic, Robust, GAN)
_RISKS = (Risk, Focal, RatioLoss)
PROBLEMS: dict[str, type[NetworkProblem]] = {p.name: p for p in (*_SADDLES, *_RISKS)}

__all__ = [
    "AUC",
    "GAN",
    "PROBLEMS",
    "Agnostic",
    "Ball",
    "Batch",
    "Box",
    "CompositionalAUC",
    "Focal",
    "MultilabelAUC",
    "NetworkProblem",
    "Nonnegative",
    "Problem",
    "RatioLoss",
    "Risk",
    "Robust",
    "Simplex",
]
