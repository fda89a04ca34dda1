"""What a process of a simulation is asked to do; vectors come and go through the arena."""

import math
import time
from collections.abc import Callable, Iterator
from functools import cached_property, reduce
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms.base import Vectors
from fedsaddle.engines.arena import Arena, Place
from fedsaddle.engines.clients import Setup, even_passes, places, run_stack
from fedsaddle.engines.memory import ClientMemory
from fedsaddle.metrics.generative import Scorer
from fedsaddle.problems import Batch
from fedsaddle.problems.pieces import parts_of, shape_of

Places = dict[str, Place]


class Shared(NamedTuple):
    """What the tasks of a process share, with each other and in part with other processes."""

    setup: Setup
    arena: Arena
    memory: ClientMemory


class PhaseWork(NamedTuple):
    """A phase for some clients: what they receive and where their matrices lie.

    It is sent to every worker: tuples and lists take half the time that objects and arrays take.
    """

    phase: str
    clients: list[int]
    shares: list[float]
    """Of each client in the means."""
    received: Places
    replies: Places
    """One row per client; nothing where their means are enough."""
    sums: Places
    """One row per stack: its part of the means."""
    measured: bool
    """Whether to say how far they are from what the server holds."""

    @property
    def single(self) -> bool:
        """Whether single replies are kept."""
        return bool(self.replies)


class StackWork:
    """A stack's part of a phase: the clients that have these rows of the matrices.

    The same clients may be asked in many rounds: what a process finds out about them stays there.
    """

    def __init__(self, work: PhaseWork, stack: int, rows: list[int]) -> None:
        self.work, self.stack, self.rows = work, stack, rows

    def __reduce__(self) -> tuple[type, tuple[PhaseWork, int, list[int]]]:
        return StackWork, (self.work, self.stack, self.rows)

    @cached_property
    def clients(self) -> np.ndarray:
        return np.array([self.work.clients[row] for row in self.rows])

    @cached_property
    def shares(self) -> list[float]:
        return [self.work.shares[row] for row in self.rows]

    @cached_property
    def declared(self) -> dict[str, tuple[int, int]]:
        """The shapes that the replies are to have."""
        return {name: (len(self.rows), place.columns) for name, place in self.work.sums.items()}


class Outcome(TypedDict, total=False):
    """What is said of a stack's replies; they themselves lie in the arena.

    A dictionary, and without what does not apply: it is sent in each round, and a class of its own
    takes four times as long.
    """

    broken: dict[str, list[int]]
    """For each vector, which of the replies are not numbers throughout, if any are."""
    moved: np.ndarray
    """How far each reply is from what the server holds, or how long it is, where that is asked."""
    seconds: tuple[float, ...]
    """By what they were spent on, as in `SPENT`."""
    misshapen: Vectors
    """The replies, where they are not what the phase declares."""


SPENT = ("gather", "arithmetic", "aggregation", "transport")
"""What the time of a stack is spent on."""


def work_on_phase(
    shared: Shared, own: StackWork, number: int, remembered: list[int], memory: list[int]
) -> Outcome:
    """The replies and new memory of a stack.

    What differs when the same clients are asked again comes last: the round's number, the slots of
    what each client remembers, if clients do, and of what it will, once its reply is used.
    """
    begun = time.perf_counter()
    setup, arena, kept = shared
    work, rows = own.work, own.rows
    # detached: a client function may take derivatives by what it receives, in each round anew
    received = {name: arena.row(place).detach() for name, place in work.received.items()}
    known = kept.read([remembered[row] for row in rows]) if remembered else {}
    setup.seconds["gather"] = 0.0
    asked = time.perf_counter()
    reply, new = run_stack(setup, work.phase, number, own.clients, received, known)
    replied = time.perf_counter()
    if memory or new:
        kept.write([memory[row] for row in rows] if memory else [], known | new)
    if {name: shape_of(vector) for name, vector in reply.items()} != own.declared:
        return Outcome(misshapen=reply)
    if work.single:
        for name, place in work.replies.items():
            _write(arena[place], places(rows), reply[name])
    written = time.perf_counter()
    unsound = [
        name
        for name, place in work.sums.items()
        if not setup.add_up(parts_of(reply[name]), own.shares, arena.row(place, own.stack))
    ]
    added = time.perf_counter()
    outcome = Outcome()
    if broken := {name: some for name in unsound if (some := _broken(reply[name]))}:
        outcome["broken"] = broken
    if work.measured:
        name = "z" if "z" in reply else next(iter(reply))
        outcome["moved"] = _distances(reply[name], received.get(name))
    gather = setup.seconds["gather"]
    arithmetic, aggregation = replied - asked - gather, added - written
    rest = time.perf_counter() - begun - gather - arithmetic - aggregation
    outcome["seconds"] = (gather, arithmetic, aggregation, rest)
    return outcome


def _write(matrix: Tensor, rows: slice | Tensor, vectors: Tensor) -> None:
    if isinstance(rows, slice):
        matrix[rows].copy_(vectors)
    else:
        matrix[rows] = vectors


def _distances(matrix: Tensor, start: Tensor | None) -> np.ndarray:
    """How far each row is from where it began, or from zero."""
    start = torch.zeros(()) if start is None else start.detach()
    way = torch.empty_like(matrix[0])  # one for all rows: it stays in the cache
    ways = [torch.linalg.vector_norm(torch.sub(row, start, out=way)) for row in matrix]
    distances = torch.stack(ways).double()
    if not bool(distances.isfinite().all()):  # squares of finite floats may overflow
        distances = torch.linalg.vector_norm(matrix.double() - start, dim=1)
    return distances.numpy()


def _broken(matrix: Tensor) -> list[int]:
    """The rows that are not numbers throughout."""
    return [j for j, row in enumerate(matrix) if not bool(row.isfinite().all())]


def predict_rows(shared: Shared, z: Place, carried: Place, rows: np.ndarray) -> np.ndarray | None:
    """The model's outputs for these rows, as doubles; None where it predicts nothing."""
    setup, arena, _ = shared
    device = setup.layout.device
    x, _ = setup.layout.unflatten(arena.row(z).to(device), arena.row(carried).to(device))
    index = torch.from_numpy(rows).to(device)
    with torch.no_grad():
        outputs = setup.problem.predict(x, setup.data.take(index, setup.layout.dtype))
    return None if outputs is None else outputs.double().cpu().numpy()


def objective_of_rows(shared: Shared, z: Place, carried: Place, rows: np.ndarray) -> float:
    """The mean loss of these rows, not too many for one pass, as a network is trained on them.

    A row alone has none where it would be normalised by those beside it (BatchNorm).
    """
    setup, arena, _ = shared
    try:
        return float(setup.observer.loss(*_alone(setup, arena, z, carried, rows)))
    except ValueError:
        if len(rows) > 1:
            raise
        return math.nan


def outcome_of_rows(
    shared: Shared, z: Place, carried: Place, rows: np.ndarray
) -> tuple[float, np.ndarray | None]:
    """The mean loss of these rows, not too many for one pass, of a network in use; its outputs."""
    setup, arena, _ = shared
    loss, *outputs = setup.observer.outcome(*_alone(setup, arena, z, carried, rows))
    return float(loss), outputs[0][0].double().cpu().numpy() if outputs else None


def _alone(
    setup: Setup, arena: Arena, z: Place, carried: Place, rows: np.ndarray
) -> tuple[Tensor, Tensor, Batch]:
    """A stack of one client who has these rows."""
    device = setup.layout.device
    batch = Batch(*(part.unsqueeze(0) for part in _batch_of(setup, rows).parts))
    return arena[z].to(device), arena[carried].to(device), batch


def metrics_of_problem(
    shared: Shared, z: Place, carried: Place, rows: np.ndarray, judge: Scorer | None
) -> dict[str, float]:
    """What a problem has to say of a point beyond its loss and its predictions."""
    setup, arena, _ = shared
    device = setup.layout.device
    x, y = setup.layout.unflatten(arena.row(z).to(device), arena.row(carried).to(device).clone())

    def total(function: Callable[[Batch], Tensor]) -> Tensor:
        return reduce(torch.add, (function(batch) for batch in passes(setup, rows)))

    with torch.no_grad():
        return setup.problem.extra_metrics(x, y, total, judge and judge.to(device))


def passes(setup: Setup, rows: np.ndarray) -> Iterator[Batch]:
    """These rows in batches of bounded size."""
    for own in even_passes(len(rows)):
        yield _batch_of(setup, rows[own])


def _batch_of(setup: Setup, rows: np.ndarray) -> Batch:
    index = torch.from_numpy(rows).to(setup.layout.device)
    inputs = setup.data.take(index, setup.layout.dtype)
    noise = setup.noise(len(index), "evaluation", int(rows[0]))
    return Batch(inputs, setup.data.labels[index], noise)
