"""The simulator's rounds, and where their time goes."""

import time
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedsaddle.bench.cases import Case
from fedsaddle.data import FederatedData
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.federation import Answer, Ledger
from fedsaddle.federation.ledger import Entry
from fedsaddle.runs.rounds import run_round


class Stopwatch:
    """An engine that notes how long the server waits for replies, and how long it works on them."""

    def __init__(self, engine: Simulation) -> None:
        self._engine = engine
        self._replied = 0.0
        self.aggregation = 0.0

    def ask(self, *asked: Any) -> list[Answer]:
        answers = self._engine.ask(*asked)
        self._replied = time.perf_counter()
        return answers

    def commit(self, clients: Tensor) -> None:
        self._engine.commit(clients)
        self.aggregation += time.perf_counter() - self._replied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Simulator:
    """One case's rounds in the simulator; `profile` says where the time of all of them went."""

    def __init__(self, case: Case, data: FederatedData, options: EngineOptions) -> None:
        problem = case.problem(data)
        self._plan = plan = case.plan(data, problem)
        engine = Simulation(
            problem, plan.algorithm, data, plan.layout, plan.members, options, plan.seed
        )
        self._engine, self._workers = Stopwatch(engine), options.workers
        self._ledger = Ledger(plan.layout)
        x, y = problem.start(torch.Generator())
        self.state = plan.algorithm.start(plan.layout.flatten(x, y), plan.layout, plan.members)
        self.state["carried"] = plan.layout.flatten_carried(problem.carried())
        self._shares: list[dict[str, float]] = []

    def __call__(self, number: int) -> list[Entry]:
        """Does round number so-and-so; who took part in it."""
        before, begun = self._counted(), time.perf_counter()
        self.state, entries = run_round(self._plan, self._engine, self._ledger, self.state, number)
        seconds, after = time.perf_counter() - begun, self._counted()
        self._shares.append({name: (after[name] - before[name]) / seconds for name in after})
        return entries

    def forget(self) -> None:
        """The profile begins here."""
        self._shares.clear()

    def profile(self) -> dict[str, float]:
        """Shares of the workers' time, each the median of all rounds.

        What is left is selection, messages and the ledger.
        """
        parts = self._shares[0]
        shares = {part: median(round[part] for round in self._shares) for part in parts}
        return shares | {"other": 1 - sum(shares.values())}

    def _counted(self) -> dict[str, float]:
        """Seconds of a worker on average, by what they were spent on."""
        seconds = {name: spent / self._workers for name, spent in self._engine.timings.items()}
        seconds["aggregation"] += self._engine.aggregation  # for which all of them wait
        return seconds

    def close(self) -> None:
        self._engine.close()
