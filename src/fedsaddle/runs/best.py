"""Which evaluated round is the best one, by a named metric."""

from dataclasses import dataclass
from typing import Any

from fedsaddle.data.facts import Facts
from fedsaddle.errors import UserError, nearest
from fedsaddle.metrics import higher_is_better, metric_names
from fedsaddle.problems import Problem

OBJECTIVE = "train/objective"


@dataclass
class Best:
    """The best evaluated round so far, by a named metric."""

    metric: str
    higher: bool
    round: int | None = None
    value: float | None = None

    def improves(self, row: dict[str, Any]) -> bool:
        value = row.get(self.metric)
        if value is None:
            return False
        best = self.value
        if best is not None and not (value > best if self.higher else value < best):
            return False
        self.round, self.value = row["round"], value
        return True


def best_metric(wanted: str | None, facts: Facts, problem: Problem) -> tuple[str, bool]:
    """The metric that picks the best model, checked before anything runs; is larger better?"""
    task = facts.task if problem.predicts else "none"
    splits = [split for split in ("validation", "test") if facts.measured(split)]
    own = {f"{split}/{name}": up for split in splits for name, up in problem.extra.items()}
    measured = [name for split in splits for name in metric_names(task, split, facts.classes)]
    known = [OBJECTIVE, *measured, *own]
    if wanted is None:
        preferred = (problem.best_metric, "validation/auc", "validation/accuracy")
        wanted = next((name for name in preferred if name in known), None) or OBJECTIVE
    if wanted not in known:
        raise UserError(
            f"evaluation.best: '{wanted}' is not measured in this run; {nearest(wanted, known)}"
        )
    if wanted in own:
        return wanted, own[wanted]
    return wanted, wanted != OBJECTIVE and higher_is_better(wanted)
