"""A comparison as its folder has it: every run, and what follows over the seeds."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError
from fedsaddle.runs.compare.statistics import Difference, Summary, differences, summarise
from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.words import finite
from fedsaddle.runs.watching import Row

PLAN = "plan.json"


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Where the run of an entrant with a seed is."""
    return out / "runs" / label / str(seed)


class Comparison:
    """The finished runs of a comparison."""

    def __init__(self, out: Path, plan: dict[str, Any]) -> None:
        self.out = out
        self.labels: tuple[str, ...] = tuple(plan["entrants"])
        self.seeds: tuple[int, ...] = tuple(plan["seeds"])
        self.budget_mb: float | None = plan["budget_mb"]

    @classmethod
    def load(cls, out: Path) -> "Comparison":
        """The comparison in a folder."""
        try:
            plan = json.loads((out / PLAN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{out}: there is no comparison here (no {PLAN}).") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{out / PLAN}: cannot be read ({error}).") from None
        return cls(out, plan)

    @cached_property
    def records(self) -> dict[str, dict[int, RunRecord]]:
        """Every run, by label and seed, without its ledger."""
        return {
            label: {
                seed: RunRecord.load(run_folder(self.out, label, seed), ledger=False)
                for seed in self.seeds
            }
            for label in self.labels
        }

    def rows(self, label: str, seed: int) -> list[Row]:
        """The metrics of every evaluated round of a run."""
        return self.records[label][seed].history

    def kept(self, label: str, seed: int) -> Row | None:
        """The metrics of the round whose model a run returned; None when it returned none."""
        at = self.records[label][seed].evaluation.get("round")
        return next((row for row in reversed(self.rows(label, seed)) if row["round"] == at), None)

    def stopped(self, label: str) -> dict[int, str]:
        """By seed, why a run ended before its last round."""
        every = self.records[label].items()
        return {s: run.evaluation["stopped"] for s, run in every if run.evaluation.get("stopped")}

    def final(self, metric: str) -> dict[str, list[float | None]]:
        """By label, a metric of the returned models in the order of the seeds."""
        return {
            label: [finite((self.kept(label, seed) or {}).get(metric)) for seed in self.seeds]
            for label in self.labels
        }

    def summary(self, metric: str) -> dict[str, Summary]:
        """By label, the metric's mean over seeds, its interval, and of how many."""
        return {label: summarise(values) for label, values in self.final(metric).items()}

    def differences(self, metric: str) -> list[Difference]:
        """Every pair of entrants, tested seed by seed."""
        return differences(self.final(metric))

    def setting(self, label: str, section: str, name: str = "name") -> Any:
        """What an entrant's runs have in a section of their configuration."""
        return self.records[label][self.seeds[0]].config[section].get(name)

    def rounds(self, label: str) -> int:
        """The rounds that an entrant's runs were to take."""
        return int(self.setting(label, "run", "rounds"))

    def megabytes(self, label: str) -> float:
        """What a run of the entrant sent, up and down, on average over the seeds."""
        totals = [self.rows(label, seed)[-1] for seed in self.seeds]
        return float(sum(row["bytes_up"] + row["bytes_down"] for row in totals)) / len(totals) / 1e6

    def over_seeds(self, label: str) -> list[Row]:
        """One row per evaluated round: a metric's mean over the seeds, with its interval.

        Intervals are under `METRIC_low` and `METRIC_high`, as in a run's own rows. A run that was
        stopped goes on, so to speak, with the model that it kept. Single sites are left out.
        """
        rounds = sorted({row["round"] for seed in self.seeds for row in self.rows(label, seed)})
        runs = [self._by_round(label, seed, rounds) for seed in self.seeds]
        return [_mean(number, [run[number] for run in runs if number in run]) for number in rounds]

    def _by_round(self, label: str, seed: int, rounds: Sequence[int]) -> dict[int, Row]:
        rows, kept = self.rows(label, seed), self.kept(label, seed)
        found = {row["round"]: row for row in rows}
        if kept is not None:
            sent = {name: rows[-1][name] for name in ("bytes_up", "bytes_down")}
            found |= {number: kept | sent for number in rounds if number > rows[-1]["round"]}
        return found


def _mean(number: int, rows: Sequence[Row]) -> Row:
    mean: Row = {"round": number}
    for name in rows[0]:
        if name == "round" or name.startswith("site/") or name.endswith(("_low", "_high")):
            continue
        over = summarise([finite(row.get(name)) for row in rows])
        if over.n:
            mean |= {name: over.mean, f"{name}_low": over.low, f"{name}_high": over.high}
    return mean
