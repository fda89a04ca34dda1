"""One run from the first round to the saved model: rounds, measurements, checkpoints, result."""

import math
import os
import platform
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms import Algorithm
from fedsaddle.algorithms.base import Members, Vectors
from fedsaddle.data.facts import Facts
from fedsaddle.engines import Engine
from fedsaddle.errors import UserError, nearest
from fedsaddle.federation import FederationOptions, Ledger
from fedsaddle.federation.participation import check_options
from fedsaddle.federation.trace import Trace
from fedsaddle.keyed import torch_generator
from fedsaddle.layout import Layout
from fedsaddle.metrics import SiteEvaluation, summarise
from fedsaddle.metrics.generative import image_grid
from fedsaddle.problems import Problem
from fedsaddle.runs.best import OBJECTIVE, Best, best_metric
from fedsaddle.runs.config import check_solves, write_sections
from fedsaddle.runs.folder import RunFolder, disk_errors, write_json
from fedsaddle.runs.guard import Guard, exploded
from fedsaddle.runs.record import RunRecord, read_lines
from fedsaddle.runs.result import Result, Row, Settings, evaluation_of
from fedsaddle.runs.rounds import Diverged, Plan, run_round
from fedsaddle.runs.saved import describe, save_description, save_weights, trained_network
from fedsaddle.runs.watching import Interrupted, Observer, Silent, interruptible

SHOWN = 64
"""How many generated rows are shown."""


MakeEngine = Callable[[Plan], Engine]
"""Who computes the plan: clients on this machine, or a network of them."""


class Training:
    """A run in progress, as its coordinator sees it."""

    def __init__(
        self,
        problem: Problem,
        facts: Facts,
        algorithm: Algorithm,
        settings: Settings,
        engine: MakeEngine,
        folder: RunFolder | None = None,
        resume: bool = False,
        observer: Observer | None = None,
    ) -> None:
        check_solves(algorithm, problem)
        _check_data(problem, facts)
        n_able = int(np.count_nonzero(facts.rows["train"]))
        check_options(settings.federation, facts.names, n_able)
        self.problem = problem.prepare(facts)
        self.facts, self.algorithm, self.settings = facts, algorithm, settings
        self._make_engine = engine
        self.folder, self.resume, self.observer = folder, resume, observer or Silent()
        dtype = {"float32": torch.float32, "float64": torch.float64}[settings.engine.dtype]
        self.layout: Layout = self.problem.layout(dtype)
        self.best = Best(*best_metric(settings.evaluation.best, facts, self.problem))
        self.plan = Plan(
            self.problem,
            algorithm,
            self.layout,
            settings.federation,
            facts.names,
            facts.rows["train"],
            _members(facts, settings.federation),
            settings.run.seed,
            settings.engine.name == "flower",
            None if settings.federation.trace is None else Trace(settings.federation.trace),
        )
        self.ledger = Ledger(self.layout)
        if settings.federation.availability == "latency":
            self.ledger.totals["simulated_seconds"] = 0.0
        self.state = self._start()
        self.done = 0
        self.seconds = 0.0
        self.history: list[Row] = []
        self.entries: list[Row] = []
        """The ledger, where there is no folder to have it."""
        self.told: list[Row] = []
        """What it says of replies that went far, in the rounds that were measured."""
        self.away: set[int] = set()
        """Clients that did not answer since the last measurement."""
        own = self.best.metric.partition("/")[2] in self.problem.extra  # of any scale
        higher = self.best.higher and not own
        watched = self.best.metric.replace("/worst_", "/")  # one site's few rows may well jump
        self.guard = Guard(watched, higher, settings.evaluation.guard)
        self._good = (0, self.state["output"], self.state["carried"])
        self.stopped: str | None = None

    def _start(self) -> Vectors:
        x, y = self.problem.start(torch_generator(self.settings.run.seed, "start"))
        state = self.algorithm.start(self.layout.flatten(x, y), self.layout, self.plan.members)
        return state | {"carried": self.layout.flatten_carried(self.problem.carried())}

    def execute(self) -> Result:
        """Run to the last round; every file is whole at every moment."""
        engine = self._make_engine(self.plan)
        where = str(self.folder.path) if self.folder else "the run"
        try:
            with disk_errors(where), interruptible() as interrupted:
                self._open_folder(engine)
                self.observer.begin(self.settings.run.rounds, self.done)
                self._rounds(engine, interrupted)
                return self._finish(engine)
        finally:
            self.observer.end()
            engine.close()

    def _rounds(self, engine: Engine, interrupted: threading.Event) -> None:
        rounds, started = self.settings.run.rounds, time.perf_counter() - self.seconds
        every = self.settings.evaluation.every or max(1, rounds // 50)
        if self.done == 0:
            self._measure(engine)
        while self.done < rounds:
            last = self.done + 1 == rounds
            measured = last or (self.done + 1) % every == 0
            try:
                self.state, entries = run_round(
                    self.plan, engine, self.ledger, self.state, self.done, measured
                )
                self.done += 1
                self.seconds = time.perf_counter() - started
                self._book(entries)
                row = self._measure(engine) if measured else None
                wrong = None if row is None else self.guard.judge(row, last)
            except Diverged as error:
                if not (self.guard.on and self._good[0]):
                    raise
                wrong = str(error)
            if wrong:
                self._stop(wrong)
                return
            if row is not None and not self.guard.bad_in_a_row:
                self._good = (self.done, self._point(), self.state["carried"])
            self.observer.round(self.done, row, self.ledger.totals)
            if last or self.done % self.settings.run.checkpoint_every == 0 or interrupted.is_set():
                self._checkpoint(engine)
            if interrupted.is_set() and not last:
                if self.folder:
                    self.folder.settle()
                raise Interrupted(f"stopped after round {self.done} of {rounds}")

    def _stop(self, wrong: str) -> None:
        """End the run at its last good state, and say what to try."""
        good = self._good[0]
        where = exploded(self.told, self.facts.names)
        self.stopped = (
            f"the run diverged after round {self.done}: {wrong}"
            + (f" ({where})" if where else "")
            + f"; kept the model of round {good}. Try a smaller algorithm.learning_rate, "
            "algorithm.clip, or, for AUC, problem.closed_form."
        )
        if self.folder:
            self.folder.drop_checkpoints_after(good)
        self.done = good

    def _point(self) -> Tensor:
        """The iterate; after the last round, what the method returns."""
        if self.stopped:
            return self._good[1]
        if self.done == self.settings.run.rounds:
            return self.state["output"]
        return self.state["z"]

    def _carried(self) -> Tensor:
        return self._good[2] if self.stopped else self.state["carried"]

    def _evaluate(self, engine: Engine, split: str) -> list[SiteEvaluation]:
        try:
            return engine.evaluate(self._point(), self._carried(), split)
        except ValueError as error:
            raise Diverged(f"the model can no longer be evaluated ({error})") from None

    def _measure(self, engine: Engine) -> Row:
        few = self.facts.n_clients <= self.settings.evaluation.sites
        z, carried = self._point(), self.state["carried"]
        row: Row = {"round": self.done, OBJECTIVE: engine.objective(z, carried)}
        if not math.isfinite(row[OBJECTIVE]):
            row[OBJECTIVE] = None
        for split in ("validation", "test"):
            if self.facts.measured(split):
                sites = self._evaluate(engine, split)
                row |= summarise(split, sites, list_sites=few and split == "test")
                row |= self._extra(engine, split)
        row |= self._absent()
        row |= self.algorithm.observe(self.state, self.plan.members)
        row |= {**self.ledger.totals, "seconds": round(self.seconds, 3)}
        self.history.append(row)
        if self.folder:
            self.folder.append("metrics.jsonl", [row])
        if self.done and self.best.improves(row) and self.folder:
            save_weights(self.folder.model / "best.safetensors", self.layout, z, carried)
        self.away = set()
        return row

    def _absent(self) -> Row:
        """On a real clock: the sites that did not answer since the last measurement."""
        if not self.plan.real_clock:
            return {}
        return {"absent": ", ".join(self.facts.names[client] for client in sorted(self.away))}

    def _extra(self, engine: Engine, split: str) -> Row:
        """The problem's own metrics: of test rows, and of others where they pick the best model."""
        names = {f"{split}/{name}" for name in self.problem.extra}
        if not names or (split != "test" and self.best.metric not in names):
            return {}
        try:
            found = engine.extra(self._point(), self._carried(), split)
        except ValueError as error:
            raise Diverged(f"the model can no longer be evaluated ({error})") from None
        return {f"{split}/{n}": v if math.isfinite(v) else None for n, v in found.items()}

    def _measured_extra(self) -> Row:
        """The problem's own test metrics of the round that is returned."""
        rows = [row for row in self.history if row["round"] == self.done]
        names = [f"test/{name}" for name in self.problem.extra]
        return {name: rows[-1].get(name) for name in names} if rows else {}

    def _picture(self, z: Tensor, carried: Tensor) -> str | None:
        """Rows that the model makes up, where it does and they are images."""
        x, _ = self.layout.unflatten(z.clone(), carried.clone())
        made = self.problem.samples(x, SHOWN)
        return None if made is None else image_grid(made)

    def _book(self, entries: list[Row]) -> None:
        """Write down a round's entries; what is needed of them stays here, but not the ledger."""
        if self.folder:
            self.folder.append("ledger.jsonl", entries)
        else:
            self.entries += entries
        self._notice(entries)

    def _notice(self, entries: list[Row]) -> None:
        self.told += [{n: e[n] for n in ("round", "norms")} for e in entries if "norms" in e]
        if self.plan.real_clock:
            self.away |= {c for e in entries for c in {*e["selected"]} - {*e["answered"]}}

    def _checkpoint(self, engine: Engine) -> None:
        if not self.folder:
            return
        tensors = {f"state.{name}": vector for name, vector in self.state.items()}
        tensors |= {f"memory.{name}": vector for name, vector in engine.memory_state().items()}
        holders = torch.tensor(sorted(self.ledger.holders.items()), dtype=torch.int64)
        tensors["holders"] = holders.reshape(-1, 2)
        good, tensors["good.z"], tensors["good.carried"] = self._good
        note = {
            "round": self.done,
            "good": good,
            "best": [self.best.round, self.best.value],
            "totals": self.ledger.totals,
            "seconds": self.seconds,
        }
        self.folder.save_checkpoint(self.done, tensors, note, self._good[0])

    def _open_folder(self, engine: Engine) -> None:
        if not self.folder:
            return
        sections = self.settings.sections
        self.folder.begin(write_sections(sections), sections, self.resume)
        write_json(self.folder.path / "environment.json", self._environment())
        write_json(self.folder.path / "data.json", self._data_facts())
        save_description(self.folder.model, describe(self.problem, self.facts, self.settings.model))
        saved = self.folder.last_checkpoint()
        if saved is not None:
            tensors, note = saved
            state = _under("state.", tensors)
            if {name: v.shape for name, v in state.items()} != {
                name: v.shape for name, v in self.state.items()
            }:
                raise UserError(
                    f"{self.folder.path}: its checkpoint is of another problem or method."
                )
            self.state = state
            engine.load_memory(_under("memory.", tensors))
            self.ledger.holders = dict(tensors["holders"].tolist())
            self.ledger.totals = note["totals"]
            self.done, self.seconds = note["round"], note["seconds"]
            self.best.round, self.best.value = note["best"]
            self._good = (note["good"], tensors["good.z"], tensors["good.carried"])
        self.history = self.folder.cut("metrics.jsonl", self.done if saved else -1)
        before = self.history[-1]["round"] if self.history else 0
        for entry in self.folder.cut("ledger.jsonl", self.done if saved else -1):
            self._notice([entry])
            if entry["round"] <= before:
                self.away = set()
        for row in self.history:
            self.guard.judge(row, last=False)

    def _finish(self, engine: Engine) -> Result:
        if self.folder:
            self.folder.settle()
        z, carried = self._point(), self._carried()
        evaluation: Row = {"round": self.done}
        if self.stopped:
            evaluation["stopped"] = self.stopped
        if self.facts.measured("test"):
            evaluation |= evaluation_of(self._evaluate(engine, "test"))
            evaluation["summary"] |= self._measured_extra()
        picture = self._picture(z, carried)
        if picture is not None:
            evaluation["samples"] = picture
        record = RunRecord(
            self.folder.path.resolve().name if self.folder else self.algorithm.name,
            self.settings.sections,
            self._environment(),
            self._data_facts(),
            self.history,
            read_lines(self.folder.path / "ledger.jsonl") if self.folder else self.entries,
            evaluation,
        )
        if self.folder:
            save_weights(self.folder.model / "model.safetensors", self.layout, z, carried)
            write_json(self.folder.path / "evaluation.json", evaluation)
        x, y = self.layout.unflatten(z.clone(), carried.clone())
        return Result(
            trained_network(self.problem, self.layout, z, carried),
            x,
            y,
            record,
            self.best.round,
            self.folder.path if self.folder else None,
            self.stopped,
        )

    def _environment(self) -> Row:
        packages = ("fedsaddle", "torch", "numpy", "scikit-learn")
        return {
            **{name: version(name) for name in packages},
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": self.settings.run.seed,
            "floats": {"x": self.layout.dx, "y": self.layout.dy, "carried": self.layout.n_carried},
        }

    def _data_facts(self) -> Row:
        facts = self.facts
        told: Row = {"source": facts.source, "classes": list(facts.classes)}
        if facts.n_clients <= 1000:
            rows, positives = facts.rows, facts.positives.sum(axis=1)
            told["clients"] = [
                {
                    "name": name,
                    "train_rows": int(rows["train"][client]),
                    "train_positives": int(positives[client]),
                    "validation_rows": int(rows["validation"][client]),
                    "test_rows": int(rows["test"][client]),
                }
                for client, name in enumerate(facts.names)
            ]
        return told


def _under(prefix: str, tensors: Vectors) -> Vectors:
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


def _check_data(problem: Problem, facts: Facts) -> None:
    if not facts.measured("train"):
        raise UserError(f"{facts.source}: no client has a training row.")
    if facts.task == "multilabel" and problem.task != "multilabel":
        raise UserError(
            f"{facts.source}: every row has {facts.n_classes} findings, but problem "
            f"'{problem.name}' is for one label; use problem 'multilabel-auc'."
        )
    if problem.task == "multilabel" and facts.task != "multilabel":
        raise UserError(
            f"{facts.source}: every row has one label, but problem '{problem.name}' is for "
            "several findings; use problem 'auc'."
        )
    if problem.task == "binary":
        if facts.task != "binary":
            raise UserError(
                f"{facts.source}: problem '{problem.name}' needs two classes, there are "
                f"{facts.n_classes}; choose data.positive, or problem 'risk'."
            )
        if facts.positive_ratio in (0.0, 1.0):
            only = facts.classes[int(facts.positive_ratio)]
            raise UserError(
                f"{facts.source}: all training rows are of class '{only}'; "
                f"problem '{problem.name}' needs both classes among all clients."
            )


def _members(facts: Facts, federation: FederationOptions) -> Members:
    """Clients with training rows, in the groups that the settings or the data name."""
    able = np.flatnonzero(facts.rows["train"])
    group_of = dict(zip(facts.names, facts.groups, strict=True)) if facts.groups else {}
    group_of |= _named_groups(facts, federation)
    if not group_of:
        names = tuple(facts.names[client] for client in able)
        return Members(torch.from_numpy(able), names, torch.arange(len(able)))
    for client in able:
        if facts.names[client] not in group_of:
            raise UserError(f"federation.groups: client '{facts.names[client]}' is in no group.")
    groups = [group_of[facts.names[client]] for client in able]
    # groups of the settings stay even when nobody in them trains: that is a mistake to be told
    known = tuple(dict.fromkeys([*federation.groups, *groups]))
    number = {group: j for j, group in enumerate(known)}
    numbers = torch.tensor([number[group] for group in groups])
    return Members(torch.from_numpy(able), known, numbers)


def _named_groups(facts: Facts, federation: FederationOptions) -> dict[str, str]:
    group_of: dict[str, str] = {}
    for group, members in federation.groups.items():
        for name in members:
            if name not in facts.names:
                hint = nearest(name, facts.names)
                raise UserError(f"federation.groups.{group}: no client '{name}'; {hint}")
            if name in group_of:
                raise UserError(f"federation.groups: client '{name}' is in two groups.")
            group_of[name] = group
    return group_of
