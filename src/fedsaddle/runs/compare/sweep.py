"""The best settings of every method, by validation rows alone.

Trials of a method go in generations of `GENERATION`. What a trial tries follows from the seed, its
place and the results of the generations before; whether it is cut short (optuna's median rule)
follows from those, too. So the winner depends neither on the number of processes nor on
interruptions: a killed sweep goes on with the trials that are not in `OUT/sweep.db` yet.

No test row can play a part: the trials' data have none, and all seeds of the comparison share the
partition and split of the sweep's (`data.seed`), so that no seed is tested on rows that the sweep
trained or chose by.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsaddle.data import FederatedData, Rows
from fedsaddle.errors import UserError
from fedsaddle.keyed import generator
from fedsaddle.runs.api import train
from fedsaddle.runs.compare.budget import rounds_within
from fedsaddle.runs.compare.entrants import Entrant, data_of, settle
from fedsaddle.runs.compare.execution import Watcher, lasting, watched
from fedsaddle.runs.compare.metrics import check_metric, outlook
from fedsaddle.runs.compare.processes import News, Pool, Task, in_use
from fedsaddle.runs.compare.spaces import (
    Space,
    contains,
    described_defaults,
    distributions,
    grid,
    spaces,
)
from fedsaddle.runs.config import Config, Sections, make_algorithm, make_problem, resolve
from fedsaddle.runs.folder import disk_errors
from fedsaddle.runs.rounds import Diverged
from fedsaddle.runs.saved import starting_network
from fedsaddle.runs.watching import Row

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

GENERATION = 4
STARTUP_TRIALS = 8
"""TPE draws at random before it has seen so many trials."""
DATABASE = "sweep.db"

Sampler = Literal["tpe", "random", "grid"]


@dataclass(frozen=True)
class Sweep:
    """How settings are searched: so many trials for each method, drawn how, and where."""

    trials: int
    sampler: Sampler = "tpe"
    table: Mapping[str, Any] = field(default_factory=dict)
    """The configuration's `[sweep]`."""


def validation_metric(metric: str) -> str:
    """What stands for a test metric while settings are chosen.

    >>> validation_metric("test/auc"), validation_metric("train/objective")
    ('validation/auc', 'train/objective')
    """
    if metric.startswith("test/"):
        return metric.replace("test/", "validation/", 1)
    if metric.startswith(("validation/", "train/")):
        return metric
    raise UserError(f"--sweep: '{metric}' is of test rows only; choose another --metric.")


def one_split(base: Sections, seed: int) -> Sections:
    """The base configuration with one partition and split for all seeds."""
    return {**base, "data": {"seed": seed, **base.get("data", {})}}


def tune(
    base: Sections,
    entrants: Sequence[Entrant],
    seed: int,
    out: Path,
    sweep: Sweep,
    metric: str,
    *,
    jobs: int = 0,
    budget_mb: float | None = None,
    observer: Watcher | None = None,
) -> list[Entrant]:
    """The entrants with the settings that did best on the validation rows.

    `base` should have been through `one_split`, and the comparison should use the same.
    """
    optuna = _optuna()
    wanted = validation_metric(metric)
    configs = settle(base, entrants, seed)
    higher = check_metric(wanted, outlook(configs), "--sweep")
    if budget_mb is not None:
        rounds = rounds_within(budget_mb, configs, [seed])
        configs = {label: lasting(config, rounds[label]) for label, config in configs.items()}
    searched = spaces(sweep.table, configs)
    with disk_errors(str(out)), in_use(out) as lock, Pool(jobs, lock) as pool:
        storage = optuna.storages.RDBStorage(f"sqlite:///{(out / DATABASE).resolve()}")
        searches = [
            Search(label, configs[label], searched[label], sweep, wanted, higher, storage)
            for label in configs
        ]
        for first in range(0, max(search.trials for search in searches), GENERATION):
            _generation(searches, first, pool, observer)
    winners = {search.label: search.winner() for search in searches}
    return [replace(e, overrides={**e.overrides, "algorithm": winners[e.label]}) for e in entrants]


def _generation(
    searches: "Sequence[Search]", first: int, pool: Pool, observer: Watcher | None
) -> None:
    """The trials of all methods from one place on, in as many processes as there are."""
    asked = [
        (search, place, search.propose(place, first))
        for search in searches
        for place in search.missing(first)
    ]
    tasks = [search.task(place, point, first) for search, place, point in asked]
    most = max(search.trials for search in searches)
    what = f"sweep, trials {first + 1} to {min(first + GENERATION, most)} of {most}"
    rounds = [search.config.run.rounds for search, _, _ in asked]

    def keep(number: int, outcome: Any) -> None:
        search, place, point = asked[number]
        search.add(place, point, outcome)

    watched(what, tasks, rounds, pool, observer, keep)


@dataclass(frozen=True)
class Outcome:
    """What a trial came to: its value, or None when it was cut short or diverged."""

    value: float | None
    by_round: dict[int, float]


class Search:
    """The search for one entrant's settings: a study in the database."""

    def __init__(
        self,
        label: str,
        config: Config,
        space: Space,
        sweep: Sweep,
        metric: str,
        higher: bool,
        storage: Any,
    ) -> None:
        self.label, self.config, self.space, self.sweep = label, config, space, sweep
        self.metric, self.higher = metric, higher
        self._points = grid(label, space, sweep.trials) if sweep.sampler == "grid" else None
        self.trials = sweep.trials if self._points is None else len(self._points)
        self._distributions = distributions(space)
        self._study = self._open(storage)

    def _open(self, storage: Any) -> "Study":
        study: Study = _optuna().create_study(
            study_name=self.label,
            storage=storage,
            direction="maximize" if self.higher else "minimize",
            load_if_exists=True,
        )
        settings = json.dumps(
            {
                "config": self.config.sections(),
                "space": {name: str(setting) for name, setting in self.space.items()},
                "grid": self._points,
                "sampler": self.sweep.sampler,
                "metric": self.metric,
            }
        )
        if study.user_attrs.setdefault("settings", settings) != settings:
            raise UserError(
                f"{self.label}: {DATABASE} has a sweep of other settings; choose another --out."
            )
        study.set_user_attr("settings", settings)
        return study

    def _done(self) -> "dict[int, FrozenTrial]":
        return {trial.user_attrs["place"]: trial for trial in self._study.trials}

    def missing(self, first: int) -> list[int]:
        """The places of the generation from `first` on that are still to be tried."""
        done = self._done()
        last = min(first + GENERATION, self.trials)
        return [place for place in range(first, last) if place not in done]

    def _before(self, first: int) -> "list[FrozenTrial]":
        """The results of earlier generations, in the order of their places."""
        return [trial for place, trial in sorted(self._done().items()) if place < first]

    def propose(self, place: int, first: int) -> dict[str, Any]:
        """What the trial at a place tries; the first one tries the settings as they are."""
        if self._points is not None:
            return self._points[place]
        own = {name: described_defaults(self.config).get(name) for name in self.space}
        if place == 0 and contains(self.space, own):
            return own
        samplers = _optuna().samplers
        seed = int(generator(self.config.run.seed, "sweep", self.label, place).integers(2**31))
        sampler = (
            samplers.RandomSampler(seed)
            if self.sweep.sampler == "random"
            else samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
        )
        study = _optuna().create_study(sampler=sampler, direction=self._study.direction)
        study.add_trials(self._before(first))
        found: dict[str, Any] = study.ask(self._distributions).params
        return found

    def _algorithm(self, point: Mapping[str, Any]) -> dict[str, Any]:
        return self.config.algorithm | dict(point)

    def task(self, place: int, point: Mapping[str, Any], first: int) -> Task:
        sections = self.config.sections() | {"algorithm": self._algorithm(point)}
        arguments = (sections, self.metric, self.higher, self._before(first))
        return Task(f"{self.label}, trial {place + 1}", try_one, arguments)

    def add(self, place: int, point: dict[str, Any], outcome: Outcome) -> None:
        """Write a trial's outcome down."""
        trial = _optuna().trial
        ended = trial.TrialState.PRUNED if outcome.value is None else trial.TrialState.COMPLETE
        self._study.add_trial(
            trial.create_trial(
                state=ended,
                value=outcome.value,
                params=point,
                distributions=self._distributions,
                user_attrs={"place": place},
                intermediate_values=outcome.by_round,
            )
        )

    def winner(self) -> dict[str, Any]:
        """The best finished trial's `[algorithm]`; the earlier of equals."""
        finished = [t for _, t in sorted(self._done().items()) if t.value is not None]
        if not finished:
            raise UserError(
                f"{self.label}: every trial of the sweep diverged; "
                f"give smaller steps in [sweep.{self.label}]."
            )
        best = (max if self.higher else min)(finished, key=lambda trial: trial.value or 0.0)
        return self._algorithm(best.params)


def try_one(
    sections: Sections, metric: str, higher: bool, before: "list[FrozenTrial]", news: News
) -> Outcome:
    """One trial, in a worker: a run on data without test rows, watched by the pruner."""
    config = resolve(sections)
    data = without_test(data_of(config))
    problem = make_problem(config.problem, starting_network(config.model, data, config.run.seed))
    judge = Judge(metric, higher, before, config.run.rounds, news)
    try:
        result = train(
            problem,
            data,
            make_algorithm(config.algorithm),
            rounds=config.run.rounds,
            seed=config.run.seed,
            federation=sections["federation"],
            engine=sections["engine"] | {"workers": 1},
            evaluation=sections["evaluation"] | {"best": metric},
            observer=judge,
        )
    except Pruned:
        return Outcome(None, judge.by_round)
    except Diverged:
        return Outcome(None, {})
    value = result.history[-1].get(metric)
    if result.stopped or value is None:
        return Outcome(None, {})
    return Outcome(float(value), judge.by_round)


def without_test(data: FederatedData) -> FederatedData:
    """The same data, of which no row is for testing."""
    return replace(data, test=Rows.empty(data.n_clients))


class Pruned(Exception):
    """A trial that earlier ones were already ahead of."""


class Judge:
    """An observer that stops a trial which is worse than the median of the finished ones."""

    def __init__(
        self,
        metric: str,
        higher: bool,
        before: "list[FrozenTrial]",
        rounds: int,
        news: News,
    ) -> None:
        optuna = _optuna()
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=rounds // 5)
        direction = "maximize" if higher else "minimize"
        study = optuna.create_study(direction=direction, pruner=pruner)
        study.add_trials(before)
        self._trial, self._metric, self._news = study.ask(), metric, news
        self.by_round: dict[int, float] = {}

    def begin(self, rounds: int, done: int) -> None:
        self._news(done)

    def round(self, number: int, row: Row | None, totals: dict[str, int]) -> None:
        value = None if row is None else row.get(self._metric)
        if value is None:
            return
        self._news(number)
        self.by_round[number] = float(value)
        self._trial.report(float(value), number)
        if self._trial.should_prune():
            raise Pruned

    def end(self) -> None:
        pass


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError(
            "--sweep needs optuna; install it with: pip install 'fedsaddle[sweep]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
