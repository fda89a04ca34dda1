"""All clients on this machine: stacks of clients, in this process or in worker processes.

Stacks are cut by client order and batch size, never by the number of workers, and every stack is
computed by one thread: the result is the same, bit for bit, for any number of workers.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms import Algorithm, Members, Phase
from fedsaddle.algorithms.base import Vectors, length
from fedsaddle.data import FederatedData, Rows
from fedsaddle.engines.clients import FULL_BATCH, Setup, run_stack
from fedsaddle.engines.memory import ClientMemory
from fedsaddle.engines.options import EngineOptions
from fedsaddle.errors import UserError
from fedsaddle.federation import Answer
from fedsaddle.keyed import generator
from fedsaddle.layout import Layout
from fedsaddle.metrics import SiteEvaluation, evaluate_site
from fedsaddle.metrics.generative import Scorer, cache_folder, train_scorer
from fedsaddle.problems import Batch, Problem
from fedsaddle.problems.oracle import Oracle

OBJECTIVE_CLIENTS = 64
"""The training objective is measured on at most this many clients, the same all run long, and at
each on every so-manieth row, so that one pass is enough."""
SCORER_ROWS = 20_000
"""A judge of generated rows is trained on about this many of the training rows."""
LOSS_SITES = 256
"""Losses are measured when so few sites have rows; with more sites, those without are left out."""

_setup: Setup | None = None  # a worker process's own copy


def _start_worker(setup: Setup) -> None:
    global _setup
    torch.set_num_threads(1)
    _setup = setup


def _work(*task: Any) -> tuple[Vectors, Vectors]:
    assert _setup is not None
    return run_stack(_setup, *task)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of floats depend on how they are cut into threads: use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _device(wanted: str) -> str:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device: there is no CUDA device here; use 'cpu' or 'auto'.")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


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
    ) -> None:
        device = _device(options.device)
        layout = replace(layout, device=device)
        if device != "cpu" and isinstance(data.inputs, torch.Tensor):
            data = replace(data, inputs=data.inputs.to(device), labels=data.labels.to(device))
        self._setup = Setup(problem, algorithm, data, layout, members, seed, options.clients)
        self._options, self._binned = options, binned
        lengths = {name: length(size, layout) for name, size in algorithm.memory().items()}
        self.memory = ClientMemory(lengths, layout.dtype, options.memory_mb * 1e6)
        self._staged: list[tuple[np.ndarray, Vectors]] = []
        self._scorer: Scorer | None = None
        self._pool: Any = None
        if options.workers > 1:
            from joblib.externals.loky import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(
                options.workers, initializer=_start_worker, initargs=(self._setup,)
            )

    def ask(
        self, phase: Phase, number: int, clients: np.ndarray, received: Vectors
    ) -> list[Answer]:
        self.memory.enter(self._setup.algorithm.era(number))
        stacks = list(self._stacks(clients))
        tasks = [(phase.name, number, stack, received, self.memory.read(stack)) for stack in stacks]
        if self._pool is not None:
            results = [future.result() for future in [self._pool.submit(_work, *t) for t in tasks]]
        else:
            with one_thread():
                results = [run_stack(self._setup, *task) for task in tasks]
        self._staged = [(stack, memory) for stack, (_, memory) in zip(stacks, results, strict=True)]
        return [Answer(stack, reply) for stack, (reply, _) in zip(stacks, results, strict=True)]

    def _stacks(self, clients: np.ndarray) -> Iterator[np.ndarray]:
        """Cut into stacks of equal batch size, in client order."""
        sizes = np.array([self._setup.batch_rows(int(client)) for client in clients])
        for size in np.unique(sizes):
            group = clients[sizes == size]
            for start in range(0, len(group), self._options.stack_size):
                yield group[start : start + self._options.stack_size]

    def commit(self, clients: np.ndarray) -> None:
        for stack, memory in self._staged:
            used = np.isin(stack, clients)
            if used.any():
                rows = torch.from_numpy(used)
                chosen = {name: vector[rows] for name, vector in memory.items()}
                self.memory.write(stack[used], chosen)
        self._staged = []

    def evaluate(self, z: Tensor, carried: Tensor, split: str) -> list[SiteEvaluation]:
        data, names = self._setup.data, self._setup.data.names
        rows: Rows = getattr(data, split)
        few = np.count_nonzero(rows.counts) <= LOSS_SITES
        every = len(names) <= LOSS_SITES
        listed = list(range(len(names))) if every else np.flatnonzero(rows.counts).tolist()
        with one_thread(), torch.no_grad():
            outputs = self._predict(z, carried, rows.indices)
            losses = [self._loss(z, carried, rows[site]) if few else math.nan for site in listed]
        labels = data.labels.cpu().numpy()[rows.indices]
        findings = data.classes if data.task == "multilabel" else ()
        report = partial(evaluate_site, binned=self._binned, findings=findings)
        sites = []
        for site, loss in zip(listed, losses, strict=True):
            own = slice(rows.offsets[site], rows.offsets[site + 1])
            scores = None if outputs is None else outputs[own]
            sites.append(report(names[site], scores, labels[own], loss))
        return sites

    def _predict(self, z: Tensor, carried: Tensor, rows: np.ndarray) -> np.ndarray | None:
        """The model's outputs for these rows, as doubles."""
        device = self._setup.layout.device
        x, _ = self._setup.layout.unflatten(z.to(device), carried.to(device))
        parts = []
        for start in range(0, max(len(rows), 1), FULL_BATCH):
            index = torch.from_numpy(rows[start : start + FULL_BATCH]).to(device)
            inputs = self._setup.data.take(index, self._setup.layout.dtype)
            outputs = self._setup.problem.predict(x, inputs)
            if outputs is None:
                return None
            parts.append(outputs.double().cpu().numpy())
        return np.concatenate(parts)

    def _loss(self, z: Tensor, carried: Tensor, rows: np.ndarray) -> float:
        """The loss of one client's rows, in passes of bounded size."""
        setup = self._setup
        oracle = Oracle(setup.problem, setup.layout, "loop")
        device = setup.layout.device
        total = 0.0
        for batch in self._passes(rows):
            alone = Batch(*(part.unsqueeze(0) for part in batch.parts))
            loss = oracle.loss(z.to(device).unsqueeze(0), carried.to(device).unsqueeze(0), alone)
            total += float(loss) * len(batch.labels)
        return total / len(rows) if len(rows) else float("nan")

    def _passes(self, rows: np.ndarray) -> Iterator[Batch]:
        """These rows in batches of bounded size."""
        setup, device = self._setup, self._setup.layout.device
        for start in range(0, len(rows), FULL_BATCH):
            index = torch.from_numpy(rows[start : start + FULL_BATCH]).to(device)
            inputs = setup.data.take(index, setup.layout.dtype)
            noise = setup.noise(len(index), "evaluation", int(rows[start]))
            yield Batch(inputs, setup.data.labels[index], noise)

    def extra(self, z: Tensor, carried: Tensor, split: str) -> dict[str, float]:
        setup, device = self._setup, self._setup.layout.device
        if not setup.problem.extra:
            return {}
        rows: Rows = getattr(setup.data, split)

        def total(function: Callable[[Batch], Tensor]) -> Tensor:
            parts = (function(batch) for batch in self._passes(rows.indices))
            return reduce(torch.add, parts)

        x, y = setup.layout.unflatten(z.to(device), carried.to(device).clone())
        with one_thread(), torch.no_grad():
            return setup.problem.extra_metrics(x, y, total, self._judge())

    def _judge(self) -> Scorer | None:
        """A classifier trained on all clients' rows: a simulation may, a network may not."""
        data = self._setup.data
        if not self._setup.problem.wants_scorer or data.task == "none":
            return None
        if self._scorer is None:
            rows = np.sort(data.train.indices)
            chosen = torch.from_numpy(rows[:: max(1, len(rows) // SCORER_ROWS)])
            inputs, labels = data.take(chosen.to(data.labels.device)), data.labels[chosen]
            scorer = train_scorer(inputs, labels, data.n_classes, cache=cache_folder())
            self._scorer = scorer.to(self._setup.layout.device)
        return self._scorer

    def objective(self, z: Tensor, carried: Tensor) -> float:
        able = np.flatnonzero(self._setup.data.train.counts)
        if len(able) > OBJECTIVE_CLIENTS:
            random = generator(self._setup.seed, "objective")
            able = np.sort(random.choice(able, OBJECTIVE_CLIENTS, replace=False))
        with one_thread():
            own = [self._setup.data.train[int(client)] for client in able]
            losses = [self._loss(z, carried, rows[:: -(-len(rows) // FULL_BATCH)]) for rows in own]
        finite = [loss for loss in losses if np.isfinite(loss)]  # one broken client is not the run
        return float(np.mean(finite)) if finite else float("nan")

    def memory_state(self) -> Vectors:
        return self.memory.state()

    def load_memory(self, vectors: Mapping[str, Tensor]) -> None:
        self.memory.load(vectors)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
            self._pool = None
