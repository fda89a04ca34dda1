"""What is optimised. A problem states variables and a loss; see `Problem`."""

from fedsaddle.problems.auc import AUC
from fedsaddle.problems.base import Batch, NetworkProblem, Problem
from fedsaddle.problems.projections import Ball, Box, Nonnegative, Simplex
from fedsaddle.problems.risk import Risk

PROBLEMS: dict[str, type[NetworkProblem]] = {problem.name: problem for problem in (AUC, Risk)}

__all__ = [
    "AUC",
    "PROBLEMS",
    "Ball",
    "Batch",
    "Box",
    "NetworkProblem",
    "Nonnegative",
    "Problem",
    "Risk",
    "Simplex",
]
