"""All clients on this machine: stacks of clients, in this process or in worker processes.

Stacks are cut by client order and batch size, never by the number of workers, and every stack is
computed by one thread: the result is the same, bit for bit, for any number of workers.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms import Algorithm, Members, Phase
from fedsaddle.algorithms.base import Means, Vectors, length
from fedsaddle.data import FederatedData, Rows
from fedsaddle.engines.arena import Arena
from fedsaddle.engines.clients import FULL_BATCH, Setup, even_passes
from fedsaddle.engines.effort import (
    WORTH_COMPILING,
    WORTH_FORKING,
    WORTH_WORKERS,
    effort_of_a_round,
)
from fedsaddle.engines.memory import ClientMemory
from fedsaddle.engines.options import EngineOptions
from fedsaddle.engines.tasks import (
    SPENT,
    PhaseWork,
    Shared,
    StackWork,
    metrics_of_problem,
    objective_of_rows,
    outcome_of_rows,
    predict_rows,
    work_on_phase,
)
from fedsaddle.engines.workers import Task, Workers, can_fork, keep_memory
from fedsaddle.errors import UserError
from fedsaddle.federation import Answer
from fedsaddle.federation.ledger import wire_up
from fedsaddle.keyed import generator
from fedsaddle.layout import Layout
from fedsaddle.metrics import SiteEvaluation, evaluate_site
from fedsaddle.metrics.generative import Scorer, cache_folder, train_scorer
from fedsaddle.problems import Problem
from fedsaddle.problems.compiled import can_compile

OBJECTIVE_CLIENTS = 64
"""The training objective is measured on at most this many clients, the same all run long, and at
each on every so-manieth row, so that one pass is enough."""
SCORER_ROWS = 20_000
"""A judge of generated rows is trained on about this many of the training rows."""
LOSS_SITES = 256
"""Losses are measured when so few sites have rows; with more sites, those without are left out."""

CACHED = 13 * 2**18
"""Bytes of parameters in a stack that a processor's caches still cope with, also where others use
them: twice as much is a tenth faster on a quiet machine, and half as fast on a busy one."""
LARGEST_STACK = 8
"""More clients at once are hardly faster, and fewer stacks keep fewer cores busy."""
ON_A_DEVICE, LARGEST_ON_A_DEVICE = 2**28, 128
"""The same for a CUDA device, which many small layers at once keep busy."""


def _devices(wanted: str) -> list[str]:
    """Every CUDA device, where there is any and it is wanted, or the CPU."""
    # the count leaves CUDA alone: what is in use here could not be used by a forked process
    number = 0 if wanted == "cpu" else torch.cuda.device_count()
    if wanted == "cuda" and not number:
        raise UserError("engine.device: there is no CUDA device here; use 'cpu' or 'auto'.")
    return [f"cuda:{k}" for k in range(number)] or ["cpu"]


class _WhenLookedAt(Mapping[str, Tensor]):
    """Vectors that are computed when somebody looks at one of them."""

    def __init__(self, names: Iterable[str], compute: Callable[[], Vectors]) -> None:
        self._names, self._compute = tuple(names), compute
        self._known: Vectors | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self._known is None:
            self._known = self._compute()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Cut(NamedTuple):
    """Clients cut into stacks."""

    clients: list[int]
    stacks: list[list[int]]
    """The places of each stack's clients among them."""
    costs: list[float]
    """The training rows of each stack."""


class _Question(NamedTuple):
    """A phase for certain clients, with single replies or with their means alone."""

    phase: Phase
    clients: np.ndarray
    received: Vectors
    weights: Tensor
    measured: bool
    single: bool


class _Job(NamedTuple):
    """What there is to do for a question, which is the same as often as it is asked."""

    phase: Phase
    clients: np.ndarray
    weights: Tensor
    work: PhaseWork
    cut: _Cut
    tasks: list[Task]
    lengths: dict[str, int]
    """Of the vectors that the clients receive."""
    received: Vectors
    """Where these are written, and where the clients look for them."""
    sums: dict[str, list[Tensor]]
    """Where the stacks' parts of the means lie."""

    def serves(self, asked: _Question) -> bool:
        """Whether it is the one for these clients, the very same ones as before."""
        return (
            asked.clients is self.clients
            and asked.weights is self.weights
            and asked.phase.up == self.phase.up
            and asked.phase.trains == self.phase.trains
            and asked.measured == self.work.measured
            and asked.single == self.work.single
            and _lengths(asked.received) == self.lengths
        )


def _sum(vectors: list[Tensor]) -> Tensor:
    """One after the other."""
    if len(vectors) == 1:
        return vectors[0].clone()
    total = torch.add(vectors[0], vectors[1])
    for vector in vectors[2:]:
        total += vector
    return total


def _shares(weights: list[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _lengths(vectors: Vectors) -> dict[str, int]:
    return {name: vector.shape[0] for name, vector in vectors.items()}


class Simulation:
    """The engine for one machine."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        data: FederatedData,
        layout: Layout,
        members: Members,
        options: EngineOptions,
        seed: int,
        binned: bool = False,
        clients_per_round: int = 0,
        rounds: int = 1,
    ) -> None:
        self._devices = _devices(options.device)
        self._setup = Setup(problem, algorithm, data, layout, members, seed, options.clients)
        self._options, self._binned = options, binned
        lengths = {name: length(size, layout) for name, size in algorithm.memory().items()}
        self.memory = ClientMemory(lengths, layout.dtype, int(options.memory_mb * 1e6))
        kinds = ("arithmetic", "gather", "transport", "aggregation", "waiting")
        self.timings: dict[str, float] = dict.fromkeys(kinds, 0.0)
        """Seconds of all processes together, by what they were spent on."""
        self._arena = Arena(layout.dtype)
        self._last_cut = _Cut([], [], [])
        self._jobs: dict[str, _Job] = {}
        """The last one of every phase."""
        self._kept: set[str] = set()
        """Phases whose single replies are kept: the server looks at them, or refused one."""
        self._scorer: Scorer | None = None
        self._workers: Workers | None = None
        keep_memory()
        self._n_workers, compile = self._decide(clients_per_round, rounds)
        self._setup = replace(self._setup, compile=compile)

    def _decide(self, clients_per_round: int, rounds: int) -> tuple[int, bool]:
        """How many processes, and whether to compile: what is set, or what is worth its start."""
        workers, compile = self._options.workers, self._options.compile
        if workers > 1 and not can_fork():
            raise UserError("engine.workers: this system cannot fork processes; use 1.")
        if not self._on_cpu:
            number = len(self._devices)
            if workers > number:
                raise UserError(f"engine.workers: a CUDA device takes one process; use {number}.")
            return workers or (number if can_fork() else 1), compile is True
        if workers and compile != "auto":
            return workers, compile
        able = np.flatnonzero(self._setup.data.train.counts)
        clients = able[: clients_per_round or None]
        stacks = len(self._cut(clients).stacks)
        effort = effort_of_a_round(self._setup, len(clients), stacks)
        if not workers:
            long = effort.seconds > WORTH_WORKERS and effort.seconds * rounds > WORTH_FORKING
            workers = len(os.sched_getaffinity(0)) if long and stacks > 1 and can_fork() else 1
        if compile == "auto":
            making = effort.compiling * len(np.unique(self._setup.batch_rows(able)))
            compile = effort.overhead * rounds > WORTH_COMPILING * making and can_compile()
        return workers, compile

    @property
    def _on_cpu(self) -> bool:
        return self._devices == ["cpu"]

    def ask(
        self,
        phase: Phase,
        number: int,
        clients: np.ndarray,
        received: Vectors,
        weights: Tensor | None = None,
        measured: bool = False,
    ) -> list[Answer]:
        single = weights is None or phase.name in self._kept
        counted = torch.ones(len(clients)) if weights is None else weights
        return self._ask(number, _Question(phase, clients, received, counted, measured, single))

    def _ask(self, number: int, question: _Question) -> list[Answer]:
        phase, clients, _, weights, measured, single = question
        self.memory.enter(self._setup.algorithm.era(number))
        job = self._job(question)
        work, (asked, stacks, costs) = job.work, job.cut
        outcomes = self._run(job.tasks, costs, number, *self.memory.stage(asked))
        moved = np.zeros(len(clients)) if measured else None
        broken: dict[str, list[int]] = {}
        absent: list[int] = []
        odd = []
        for rows, outcome in zip(stacks, outcomes, strict=True):
            if not single and ("broken" in outcome or "misshapen" in outcome):
                self._kept.add(phase.name)
                return self._ask(number, question._replace(single=True))
            if "misshapen" in outcome:
                absent += rows
                odd.append(Answer(clients[rows], outcome["misshapen"]))
                continue
            for what, seconds in zip(SPENT, outcome["seconds"], strict=True):
                self.timings[what] += seconds
            if moved is not None:
                moved[rows] = outcome["moved"]
            if "broken" in outcome:
                for name, some in outcome["broken"].items():
                    broken.setdefault(name, []).extend(rows[j] for j in some)
        means = {name: _sum(parts) for name, parts in job.sums.items()}
        vectors: Mapping[str, Tensor]
        if single:
            vectors = {name: self._arena[place] for name, place in work.replies.items()}
        else:
            vectors = _WhenLookedAt(work.sums, partial(self._single, number, question))
        whole = Answer(clients, vectors, broken, moved, Means(weights, means))
        if not odd:
            return [whole]
        return [*([whole.without(absent)] if len(absent) < len(clients) else []), *odd]

    def _job(self, asked: _Question) -> _Job:
        """What there is to do in a phase; what the clients receive lies where they look for it."""
        job = self._jobs.get(asked.phase.name)
        if job is None or not job.serves(asked):
            job = self._jobs[asked.phase.name] = self._new_job(asked)
        for name, vector in asked.received.items():
            job.received[name].copy_(vector)
        return job

    def _new_job(self, asked: _Question) -> _Job:
        phase, clients, received, weights, measured, single = asked
        arena, cut = self._arena, self._cut(clients)
        arena.clear()
        lengths = _lengths(received)
        there = {name: arena.place(1, width) for name, width in lengths.items()}
        widths = wire_up(phase, self._setup.layout)
        work = PhaseWork(
            phase.name,
            cut.clients,
            _shares(weights.tolist()),
            there,
            {name: arena.place(len(clients), width) for name, width in widths.items() if single},
            {name: arena.place(len(cut.stacks), width) for name, width in widths.items()},
            measured,
        )
        stacks = [StackWork(work, j, rows) for j, rows in enumerate(cut.stacks)]
        return _Job(
            phase,
            clients,
            weights,
            work,
            cut,
            [(work_on_phase, (stack,)) for stack in stacks],
            lengths,
            {name: arena.row(place) for name, place in there.items()},
            {
                name: [arena.row(place, stack) for stack in range(place.rows)]
                for name, place in work.sums.items()
            },
        )

    def _single(self, number: int, question: _Question) -> Vectors:
        """Replies that were only added up; in this phase they will be kept from now on."""
        self._kept.add(question.phase.name)
        (answer,) = self._ask(number, question._replace(measured=False, single=True))
        return {name: vector.clone() for name, vector in answer.vectors.items()}

    def _run(self, tasks: list[Task], costs: list[float] | None = None, *new: Any) -> list[Any]:
        """Every task's result; what is `new` each time is their last arguments."""
        if self._workers is None:
            self._workers = Workers(self._n_workers, self._share)
        results = self._workers.run(tasks, costs, new)
        self.timings["waiting"] = self._workers.waited
        return results

    def _share(self, worker: int) -> tuple[Shared]:
        """What a worker's tasks share, on its device."""
        device = "cpu" if self._on_cpu else self._devices[worker]
        if device != "cpu":
            torch.get_device_module(device).set_device(device)
        return (Shared(self._setup.on(device), self._arena, self.memory),)

    def _cut(self, clients: np.ndarray) -> _Cut:
        """Into stacks; kept for the next time, for often all clients take part every time."""
        asked = clients.tolist()
        if asked != self._last_cut.clients:
            rows = self._setup.rows(clients).tolist()
            stacks = list(self._stacks(self._setup.batch_rows(clients).tolist()))
            costs = [float(sum(rows[place] for place in own)) for own in stacks]
            self._last_cut = _Cut(asked, stacks, costs)
        return self._last_cut

    def _stacks(self, sizes: list[int]) -> Iterator[list[int]]:
        """Places of clients with batches of these sizes, cut into stacks of one size, in order.

        An even number where there are two clients or more: cores mostly come in pairs, and results
        are not to depend on how many there are. On CUDA devices there is a stack for each at least.
        """
        groups: dict[int, list[int]] = {size: [] for size in sorted({*sizes})}
        for place, size in enumerate(sizes):
            groups[size].append(place)
        stacks = {size: -(-len(group) // self._stack_size) for size, group in groups.items()}
        if not self._options.stack_size:
            number = sum(stacks.values())
            enough = number + number % 2 if self._on_cpu else self._n_workers
            for _ in range(number, min(enough, len(sizes))):
                rows = {
                    size: size * len(group) / stacks[size] if stacks[size] < len(group) else 0
                    for size, group in groups.items()
                }
                stacks[max(rows, key=rows.__getitem__)] += 1  # the largest ones are cut once more
        for size, group in groups.items():
            ends = [len(group) * j // stacks[size] for j in range(stacks[size] + 1)]
            yield from (group[start:end] for start, end in pairwise(ends))

    @property
    def _stack_size(self) -> int:
        point = self._setup.layout.d * self._setup.layout.dtype.itemsize
        largest, room = LARGEST_STACK, CACHED
        if not self._on_cpu:
            largest, room = LARGEST_ON_A_DEVICE, ON_A_DEVICE
        return self._options.stack_size or min(largest, max(1, room // max(point, 1)))

    def commit(self, clients: Tensor) -> None:
        if self.memory.names:
            self.memory.commit(clients.tolist())

    def evaluate(self, z: Tensor, carried: Tensor, split: str) -> list[SiteEvaluation]:
        data, names = self._setup.data, self._setup.data.names
        rows: Rows = getattr(data, split)
        few = 0 < np.count_nonzero(rows.counts) <= LOSS_SITES
        every = len(names) <= LOSS_SITES
        listed = list(range(len(names))) if every else np.flatnonzero(rows.counts).tolist()
        losses = None
        if few:
            losses, outputs = self._outcomes(z, carried, [rows[site] for site in listed])
        else:
            outputs = self._predict(z, carried, rows.indices)
        labels = data.labels.numpy()[rows.indices]
        findings = data.classes if data.task == "multilabel" else ()
        report = partial(evaluate_site, binned=self._binned, findings=findings)
        sites = []
        for j, site in enumerate(listed):
            own = slice(rows.offsets[site], rows.offsets[site + 1])
            scores = None if outputs is None else outputs[own]
            loss = math.nan if losses is None else losses[j]
            sites.append(report(names[site], scores, labels[own], loss))
        return sites

    def _predict(self, z: Tensor, carried: Tensor, rows: np.ndarray) -> np.ndarray | None:
        """The model's outputs for these rows."""
        point = self._point(z, carried)
        blocks = [rows[own] for own in even_passes(len(rows))]
        tasks: list[Task] = [(predict_rows, (*point, block)) for block in blocks or [rows]]
        outputs = self._run(tasks)
        return None if outputs[0] is None else np.concatenate(outputs)

    def _outcomes(
        self, z: Tensor, carried: Tensor, sites: Sequence[np.ndarray]
    ) -> tuple[list[float], np.ndarray | None]:
        """The mean loss of every site's rows, and the model's outputs for all of them."""
        point = self._point(z, carried)
        each = [(j, own[part]) for j, own in enumerate(sites) for part in even_passes(len(own))]
        tasks: list[Task] = [(outcome_of_rows, (*point, rows)) for _, rows in each]
        found = self._run(tasks, [float(len(rows)) for _, rows in each])
        losses = [0.0 if len(own) else math.nan for own in sites]
        for (j, rows), (loss, _) in zip(each, found, strict=True):
            losses[j] += loss * len(rows) / len(sites[j])
        outputs = [given for _, given in found if given is not None]
        return losses, np.concatenate(outputs) if outputs else None

    def _point(self, z: Tensor, carried: Tensor) -> Any:
        """Where all processes find a point and what it carries."""
        self._arena.clear()
        places = self._arena.put({"z": z, "carried": carried})
        return places["z"], places["carried"]

    def extra(self, z: Tensor, carried: Tensor, split: str) -> dict[str, float]:
        if not self._setup.problem.extra:
            return {}
        rows: Rows = getattr(self._setup.data, split)
        judge = self._judge()
        point = self._point(z, carried)
        (metrics,) = self._run([(metrics_of_problem, (*point, rows.indices, judge))])
        return metrics  # type: ignore[no-any-return]

    def _judge(self) -> Scorer | None:
        """A classifier trained on all clients' rows: a simulation may, a network may not."""
        data = self._setup.data
        if not self._setup.problem.wants_scorer or data.task == "none":
            return None
        if self._scorer is None:
            rows = np.sort(data.train.indices)
            chosen = torch.from_numpy(rows[:: max(1, len(rows) // SCORER_ROWS)])
            inputs, labels = data.take(chosen), data.labels[chosen]
            self._scorer = train_scorer(inputs, labels, data.n_classes, cache=cache_folder())
        return self._scorer

    def objective(self, z: Tensor, carried: Tensor) -> float:
        able = np.flatnonzero(self._setup.data.train.counts)
        if len(able) > OBJECTIVE_CLIENTS:
            random = generator(self._setup.seed, "objective")
            able = np.sort(random.choice(able, OBJECTIVE_CLIENTS, replace=False))
        own = [self._setup.data.train[int(client)] for client in able]
        rows = [rows[:: -(-len(rows) // FULL_BATCH)] for rows in own]
        point = self._point(z, carried)
        tasks: list[Task] = [(objective_of_rows, (*point, own)) for own in rows]
        losses = self._run(tasks, [float(len(own)) for own in rows])
        finite = [loss for loss in losses if np.isfinite(loss)]  # one broken client is not the run
        return float(np.mean(finite)) if finite else float("nan")

    def memory_state(self) -> Vectors:
        return self.memory.state()

    def load_memory(self, vectors: Mapping[str, Tensor]) -> None:
        self.memory.load(vectors)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        self._arena.close()
        self.memory.close()
