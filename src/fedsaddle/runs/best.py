"""Which evaluated round is the best one, by a named metric."""

from dataclasses import dataclass
from typing import Any

from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError, nearest
from fedsaddle.metrics import higher_is_better, metric_names
from fedsaddle.problems import Problem

OBJECTIVE = "train/objective"


@dataclass
class Best:
    """The best evaluated round so far, by a named metric."""

    metric: str
    round: int | None = None
    value: float | None = None

    def improves(self, row: dict[str, Any]) -> bool:
        value = row.get(self.metric)
        if value is None:
            return False
        if self.value is not None:
            higher = higher_is_better(self.metric) if self.metric != OBJECTIVE else False
            if not (value > self.value if higher else value < self.value):
                return False
        self.round, self.value = row["round"], value
        return True


def best_metric(wanted: str | None, data: FederatedData, problem: Problem) -> str:
    """The metric that picks the best model, checked before anything runs."""
    task = data.task if problem.predicts else "none"
    splits = [split for split in ("validation", "test") if len(getattr(data, split).indices)]
    known = [OBJECTIVE, *(name for split in splits for name in metric_names(task, split))]
    if wanted is None:
        preferred = ("validation/auc", "validation/accuracy")
        return next((name for name in preferred if name in known), OBJECTIVE)
    if wanted not in known:
        raise UserError(
            f"evaluation.best: '{wanted}' is not measured in this run; {nearest(wanted, known)}"
        )
    if wanted != OBJECTIVE:
        higher_is_better(wanted)
    return wanted
