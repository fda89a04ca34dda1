"""Runs on both sides: the library's rounds, and the world that a naive transcription sees."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms import Algorithm, Phase, Round
from fedsaddle.algorithms.base import Members
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.engines.clients import reshuffled
from fedsaddle.federation import FederationOptions, Ledger, answering, select
from fedsaddle.keyed import generator
from fedsaddle.runs.rounds import Plan, run_round
from problems import Case

State = dict[str, Tensor]


def members_of(case: Case, groups: dict[str, list[str]] | None = None) -> Members:
    able = torch.arange(case.n_clients)
    if not groups:
        return Members(able, case.data.names, torch.arange(case.n_clients))
    owner = {name: g for g, names in enumerate(groups.values()) for name in names}
    numbers = torch.tensor([owner[name] for name in case.data.names])
    return Members(able, tuple(groups), numbers)


@dataclass
class LibraryRun:
    """The library's run of a method, one round at a time, without folder or evaluation."""

    case: Case
    method: Algorithm
    seed: int = 3
    federation: FederationOptions = field(default_factory=FederationOptions)
    clients: str = "stack"
    stack_size: int = 8

    def __post_init__(self) -> None:
        problem = self.case.problem
        layout = problem.layout(torch.float64)
        members = members_of(self.case, self.federation.groups)
        options = EngineOptions(
            dtype="float64", device="cpu", clients=self.clients, stack_size=self.stack_size
        )
        self.layout, self.members = layout, members
        self.engine = Simulation(
            problem, self.method, self.case.data, layout, members, options, self.seed
        )
        self.plan = Plan(
            problem,
            self.method,
            layout,
            self.federation,
            self.case.data.names,
            self.case.data.train.counts,
            members,
            self.seed,
        )
        self.ledger = Ledger(layout)
        z = layout.flatten(*problem.start(torch.Generator().manual_seed(0)))
        carried = layout.flatten_carried(problem.carried())
        self.state: State = self.method.start(z, layout, members) | {"carried": carried}
        self.number = 0
        self.entries: list[dict[str, Any]] = []

    def step(self) -> State:
        self.state, entries = run_round(
            self.plan, self.engine, self.ledger, self.state, self.number
        )
        self.entries += entries
        self.number += 1
        return self.state

    def rounds(self, count: int) -> list[State]:
        return [self.step() for _ in range(count)]

    def memory(self, client: int) -> dict[str, Tensor]:
        slots, _ = self.engine.memory.stage([client])
        stored = self.engine.memory.read(slots) if slots else {}
        return {name: value[0] for name, value in stored.items()}


@dataclass
class World:
    """What a naive method may ask for: the same samples and the same clients, nothing else."""

    case: Case
    batch_size: int
    seed: int = 3
    federation: FederationOptions = field(default_factory=FederationOptions)

    @property
    def n(self) -> int:
        return self.case.n_clients

    @property
    def dx(self) -> int:
        return self.case.dx

    @property
    def z0(self) -> Tensor:
        return self.case.z0

    def x(self, z: Tensor) -> Tensor:
        return z[: self.dx]

    def y(self, z: Tensor) -> Tensor:
        return z[self.dx :]

    def project(self, z: Tensor) -> Tensor:
        return self.case.project(z)

    def G(self, z: Tensor, rows: np.ndarray) -> Tensor:  # noqa: N802
        return self.case.gradient(z, rows)

    def n_rows(self, client: int) -> int:
        return len(self.case.rows(client))

    def random(self, purpose: str, number: int) -> np.random.Generator:
        return generator(self.seed, purpose, number)

    def draw(
        self, client: int, number: int, phase: str, steps: int, stream: str = "batches"
    ) -> list[np.ndarray]:
        """The rows of each of a client's `steps` minibatches."""
        rows = self.case.rows(client)
        size = min(self.batch_size or len(rows), len(rows))
        key = (stream, client, number, phase)
        drawn = reshuffled(rows, steps * size, generator(self.seed, *key))
        return [drawn[k * size : (k + 1) * size] for k in range(steps)]

    def attempts(
        self, phase: str, number: int, everyone: bool = False, chances: Tensor | None = None
    ) -> list[tuple[dict[int, int], list[int]]]:
        """Who was asked (and how often drawn) and who answered, until enough of them did."""
        at = Round(number, self.seed, None, None, members_of(self.case))
        draw = None if chances is None else (lambda state, members: chances)
        stub = Phase(phase, {}, {}, None, None, everyone=everyone, draw=draw)
        tries = []
        for attempt in range(self.federation.retries + 1):
            selected, draws = select(self.federation, at, stub, {}, attempt)
            names = self.case.data.names
            answered = answering(self.federation, selected, names, at, phase, attempt).tolist()
            times = dict(zip(selected.tolist(), draws.tolist(), strict=True))
            tries.append((times, answered))
            if answered and len(answered) >= self.federation.quorum * len(selected):
                return tries
        raise AssertionError("the test's own federation never reaches its quorum")

    def asked(
        self, phase: str, number: int, everyone: bool = False, chances: Tensor | None = None
    ) -> list[tuple[int, int]]:
        """The clients that answer, each with how often it was drawn."""
        times, answered = self.attempts(phase, number, everyone, chances)[-1]
        return [(client, times[client]) for client in answered]

    # --- groups: the dual of agnostic methods weighs groups, by default each client is one

    def group(self, client: int) -> int:
        name = self.case.data.names[client]
        groups = list(self.federation.groups.values())
        return next((g for g, names in enumerate(groups) if name in names), client)

    def group_shares(self) -> Tensor:
        """One over the number of clients in each client's group."""
        groups = [self.group(i) for i in range(self.n)]
        return torch.tensor([1 / groups.count(g) for g in groups], dtype=torch.float64)

    def client_weights(self, weights: Tensor) -> Tensor:
        return torch.stack([weights[self.group(i)] for i in range(self.n)]) * self.group_shares()

    def uniform(self) -> Tensor:
        size = len(self.federation.groups) or self.n
        return torch.full((size,), 1 / size, dtype=torch.float64)

    def answers(self, phase: str, number: int, everyone: bool = False) -> list[int]:
        return [client for client, _ in self.asked(phase, number, everyone)]
