"""What is optimised. A problem states variables and a loss; see `Problem`."""

from fedsaddle.problems.auc import AUC
from fedsaddle.problems.base import Batch, NetworkProblem, Problem
from fedsaddle.problems.compositional import CompositionalAUC
from fedsaddle.problems.projections import Ball, Box, Nonnegative, Simplex
from fedsaddle.problems.ratio import RatioLoss
from fedsaddle.problems.risk import Risk

PROBLEMS: dict[str, type[NetworkProblem]] = {
    problem.name: problem for problem in (AUC, CompositionalAUC, Risk, RatioLoss)
}

__all__ = [
    "AUC",
    "PROBLEMS",
    "Ball",
    "Batch",
    "Box",
    "CompositionalAUC",
    "NetworkProblem",
    "Nonnegative",
    "Problem",
    "RatioLoss",
    "Risk",
    "Simplex",
]
