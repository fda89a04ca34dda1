"""The divergence guard: a run that collapses stops at its last good state and says so.

Minimax methods can climb for hundreds of rounds and then fall for good. The guard watches the
metric that picks the best model. A round is bad when the objective is not finite, or when the
metric lies far below its best and their 95 % intervals, where there are any, do not meet. Two bad
evaluations in a row, or a bad last one, stop the run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsaddle.federation.ledger import Entry

Row = dict[str, Any]

FAR = 0.1
"""How far an AUC or an accuracy has to fall to count as a collapse."""


@dataclass
class Guard:
    """Judges one evaluated round after the other."""

    metric: str
    higher: bool
    on: bool = True
    best: Row | None = None
    bad_in_a_row: int = 0

    def judge(self, row: Row, last: bool) -> str | None:
        """None while all is well; otherwise what went wrong.

        >>> guard = Guard("validation/auc", higher=True)
        >>> rows = [{"validation/auc": auc, "train/objective": 0.0} for auc in (0.9, 0.6, 0.6)]
        >>> [guard.judge(row, last=False) for row in rows]
        [None, None, 'validation/auc fell from 0.9000 to 0.6000']
        """
        if not self.on:
            return None
        reason = self._reason(row)
        if reason is None:
            self.bad_in_a_row = 0
            value = row.get(self.metric)
            if value is not None and (self.best is None or self._above(value, self.best)):
                self.best = row
            return None
        self.bad_in_a_row += 1
        return reason if self.bad_in_a_row >= 2 or last else None

    def _above(self, value: float, other: Row) -> bool:
        best: float = other[self.metric]
        return value > best if self.higher else value < best

    def _reason(self, row: Row) -> str | None:
        objective = row["train/objective"]
        if objective is None or not math.isfinite(objective):
            return "the training objective is not finite"
        value = row.get(self.metric)
        if not self.higher or value is None or self.best is None:
            return None
        high = row.get(f"{self.metric}_high")
        low = self.best.get(f"{self.metric}_low")
        apart = high is None or low is None or high < low
        if value < self.best[self.metric] - FAR and apart:
            return f"{self.metric} fell from {self.best[self.metric]:.4f} to {value:.4f}"
        return None


def exploded(entries: Sequence[Entry], names: Sequence[str], most: int = 3) -> str:
    """Which clients moved furthest in the last round, and how far it was in the median before.

    >>> entries = [{"round": r, "norms": {"0": 1.0, "1": n}} for r, n in ((1, 1.0), (2, 50.0))]
    >>> exploded(entries, ["Bonn", "Ulm"])
    'in round 2 the longest replies were from Ulm (norm 50), Bonn (norm 1); the median before was 1'
    """
    told = [entry for entry in entries if entry.get("norms")]
    if not told:
        return ""
    last = told[-1]
    longest = sorted(last["norms"].items(), key=lambda item: -item[1])[:most]
    before = sorted(
        norm for entry in told if entry["round"] < last["round"] for norm in entry["norms"].values()
    )
    who = ", ".join(f"{names[int(client)]} (norm {norm:.3g})" for client, norm in longest)
    usual = f"; the median before was {before[len(before) // 2]:.3g}" if before else ""
    return f"in round {last['round']} the longest replies were from {who}{usual}"
