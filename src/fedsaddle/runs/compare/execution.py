"""`compare`: every entrant with every seed, in run folders, several at once."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedsaddle.errors import UserError
from fedsaddle.runs.api import train_config
from fedsaddle.runs.compare.budget import rounds_within
from fedsaddle.runs.compare.comparison import PLAN, Comparison, run_folder
from fedsaddle.runs.compare.entrants import Entrant, seeded, settle
from fedsaddle.runs.compare.processes import News, Pool, Task, in_use
from fedsaddle.runs.config import Config, Sections, read, resolve
from fedsaddle.runs.folder import CHANGEABLE, disk_errors, first_difference, write_json
from fedsaddle.runs.rounds import Diverged
from fedsaddle.runs.watching import Row

MAY_DIFFER = {"run": ("checkpoint_every",), "engine": CHANGEABLE["engine"]}
"""Settings of a run that is there already which do not matter to its result."""


class Watcher(Protocol):
    """Who watches many runs."""

    def begin(self, what: str, names: Sequence[str], rounds: Sequence[int]) -> None:
        """So many runs, by name, each of so many rounds, are about to start."""

    def round(self, place: int, number: int) -> None:
        """The run at this place has done so many rounds."""

    def finished(self, place: int) -> None: ...

    def end(self) -> None: ...


class Unwatched:
    """Nobody watches."""

    def begin(self, what: str, names: Sequence[str], rounds: Sequence[int]) -> None:
        pass

    def round(self, place: int, number: int) -> None:
        pass

    def finished(self, place: int) -> None:
        pass

    def end(self) -> None:
        pass


def compare(
    base: Sections,
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int = 0,
    budget_mb: float | None = None,
    observer: Watcher | None = None,
) -> Comparison:
    """Run every entrant with every seed, and read what came out.

    For one seed all entrants see the same data, initial point and draws of clients. They run for
    `run.rounds`, or, with `budget_mb`, for as many rounds as that many megabytes pay for
    (`fedsaddle.runs.compare.budget`). Each run is an ordinary run folder `OUT/runs/LABEL/SEED`;
    `jobs` of them go on at once (0: one per core), each in one process with one thread. Called
    again, finished runs stay and half-finished ones go on from their checkpoint; the result is the
    same as without the interruption. A folder with a run of other settings is refused.

    >>> base = {"data": {"clients": 3}, "run": {"rounds": 2}}
    >>> entrants = [Entrant("small", {"algorithm": {"name": "fedavg", "learning_rate": 0.01}})]
    >>> from tempfile import mkdtemp
    >>> done = compare(base, entrants, [0, 1], Path(mkdtemp()), jobs=1)
    >>> len(done.final("test/auc")["small"])
    2
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError("a comparison needs at least one seed, and each of them once.")
    configs = settle(base, entrants, seeds[0])
    if budget_mb is not None:
        rounds = rounds_within(budget_mb, configs, seeds)
        configs = {label: lasting(config, rounds[label]) for label, config in configs.items()}
    runs = [
        _Run(label, seed, _alone(seeded(config, seed)), run_folder(out, label, seed))
        for seed in seeds  # a seed of all entrants first: what there is can be compared
        for label, config in configs.items()
    ]
    plan = {
        "seeds": list(seeds),
        "budget_mb": budget_mb,
        "base": _plain(base),
        "entrants": {e.label: _plain(e.overrides) for e in entrants},
    }
    with disk_errors(str(out)), in_use(out) as lock, Pool(jobs, lock) as pool:
        for run in runs:
            run.check()
        write_json(out / PLAN, plan)
        left = [run for run in runs if not run.finished]
        tasks = [Task(run.name, train_one, (run.config.sections(), run.folder)) for run in left]
        watched("runs", tasks, [run.config.run.rounds for run in left], pool, observer)
    return Comparison.load(out)


def watched(
    what: str,
    tasks: Sequence[Task],
    rounds: Sequence[int],
    pool: Pool,
    observer: Watcher | None,
    keep: Callable[[int, Any], None] = lambda place, result: None,
) -> None:
    """Carry out tasks of so many rounds each; `keep` gets each one's result as it comes."""
    if not tasks:
        return
    observer = observer or Unwatched()
    observer.begin(what, [task.name for task in tasks], rounds)
    try:
        for place, result in pool.run(tasks, observer.round):
            keep(place, result)
            observer.finished(place)
    finally:
        observer.end()


def lasting(config: Config, rounds: int) -> Config:
    """The same settings for another number of rounds."""
    return config.model_copy(update={"run": config.run.model_copy(update={"rounds": rounds})})


def train_one(sections: Sections, folder: Path, news: News) -> None:
    """One run, in a worker: begun, or continued where it was stopped."""
    try:
        train_config(resolve(sections), folder, resume=True, observer=Teller(news))
    except Diverged as error:  # a result, too: this method does not stand these settings
        write_json(folder / "evaluation.json", {"stopped": str(error)})


class Teller:
    """An observer that passes on how many rounds are done, a few times a second."""

    def __init__(self, news: News) -> None:
        self._news, self._next = news, 0.0

    def begin(self, rounds: int, done: int) -> None:
        self._news(done)

    def round(self, number: int, row: Row | None, totals: dict[str, int]) -> None:
        if time.monotonic() >= self._next:
            self._news(number)
            self._next = time.monotonic() + 0.2

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class _Run:
    """One entrant with one seed."""

    label: str
    seed: int
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def finished(self) -> bool:
        return (self.folder / "evaluation.json").is_file()

    def check(self) -> None:
        """Refuse a run of other settings; clear what a run left that was killed as it began."""
        settings = self.folder / "config.toml"
        if settings.is_file():
            difference = first_difference(read(settings), self.config.sections(), MAY_DIFFER)
            if difference:
                raise UserError(
                    f"{self.folder}: this folder holds a run of other settings ({difference}); "
                    "choose another --out."
                )
        elif self.folder.is_dir():
            for file in self.folder.glob(".config.toml.*"):
                file.unlink()


def _alone(config: Config) -> Config:
    """One process, one thread: several runs share the machine."""
    return config.model_copy(update={"engine": config.engine.model_copy(update={"workers": 1})})


def _plain(sections: Mapping[str, Mapping[str, Any]]) -> Any:
    """Sections as JSON has them (paths as text)."""
    return json.loads(json.dumps({k: dict(v) for k, v in sections.items()}, default=str))
