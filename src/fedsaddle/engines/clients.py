"""The client side of a phase: draws batches and answers for a stack of clients."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsaddle import keyed
from fedsaddle.algorithms import Algorithm, Members, Round
from fedsaddle.algorithms.base import Vectors
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError
from fedsaddle.keyed import Key, generator
from fedsaddle.layout import Layout
from fedsaddle.problems import Batch, Problem
from fedsaddle.problems.kernels import add_up
from fedsaddle.problems.oracle import Mode, Oracle
from fedsaddle.problems.pieces import Pieces, gradient, take_steps

FULL_BATCH = 1024
"""Rows per pass where all of a client's rows are used: large enough to fill the processor."""
FEW_SIZES = 4
"""Numbers of rows for which passes over all rows are compiled, each by itself."""
GATHERED = 2**20
"""Numbers of input that are gathered at once, for as many steps as that is enough for."""


@dataclass(frozen=True)
class Setup:
    """What every client-side process holds for a whole run."""

    problem: Problem
    algorithm: Algorithm
    data: FederatedData
    layout: Layout
    members: Members
    seed: int
    mode: Mode = "stack"
    compile: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: {"gather": 0.0})
    """Time that this process spent on the clients' rows, since somebody set it to zero."""

    def on(self, device: str) -> "Setup":
        """The same on a device, and rows that are in memory, in its memory."""
        if device == self.layout.device:
            return self
        inputs, labels = self.data.inputs, self.data.labels.to(device)
        there = inputs.to(device) if isinstance(inputs, Tensor) else inputs
        data = replace(self.data, inputs=there, labels=labels)
        return replace(self, data=data, layout=replace(self.layout, device=device))

    @cached_property
    def oracle(self) -> Oracle:
        """The one of this process: what it compiled, and how it fell back, stays with it."""
        return Oracle(self.problem, self.layout, self.mode, self.compile)

    @cached_property
    def oracle_of_all_rows(self) -> Oracle:
        """For passes over a client's rows: compiled only where few programs are enough for all."""
        if not self.compile or len(np.unique(self.data.train.counts)) <= FEW_SIZES:
            return self.oracle
        return Oracle(self.problem, self.layout, self.mode)

    @cached_property
    def observer(self) -> Oracle:
        """For losses and outputs that nothing is learnt from, of one client after another."""
        return Oracle(self.problem, self.layout, self.mode)

    def add_up(self, pieces: Sequence[Tensor], shares: Sequence[float], out: Tensor) -> bool:
        """Writes the sum of a matrix's rows times their shares; whether it is numbers."""
        return add_up(pieces, shares, out, own=self.compile)

    def rows(self, clients: np.ndarray) -> np.ndarray:
        """How many training rows these clients have."""
        offsets = self.data.train.offsets
        count: np.ndarray = offsets[clients + 1] - offsets[clients]
        return count

    def batch_rows(self, clients: np.ndarray) -> np.ndarray:
        """The size of these clients' minibatches: what was asked for, or all they have."""
        rows = self.rows(clients)
        size: np.ndarray = np.minimum(self.algorithm.batch_size or rows, rows)
        return size

    def noise(self, rows: int, *key: Key) -> Tensor | None:
        """Noise for some rows, if the problem wants any: the same whenever it is asked for."""
        shape = self.problem.noise_shape
        if shape is None:
            return None
        drawn = generator(self.seed, "latent", *key).uniform(-1, 1, (rows, *shape))
        return torch.from_numpy(drawn).to(self.layout.device, self.layout.dtype)


def reshuffled(rows: np.ndarray, wanted: int, random: np.random.Generator) -> np.ndarray:
    """`wanted` rows in random order without replacement, epoch after epoch.

    >>> drawn = reshuffled(np.array([4, 5, 6]), 7, np.random.default_rng(0))
    >>> sorted(drawn[:3].tolist()), sorted(drawn[3:6].tolist()), len(drawn)
    ([4, 5, 6], [4, 5, 6], 7)
    """
    if wanted <= len(rows):
        return rows[random.choice(len(rows), wanted, replace=False)]
    epochs = [random.permutation(rows) for _ in range(-(-wanted // len(rows)))]
    return np.concatenate(epochs)[:wanted]


class ClientStack:
    """A stack of clients with batches of one size, as a method's client function sees it."""

    def __init__(
        self, setup: Setup, clients: np.ndarray, carried: Tensor, number: int, phase: str
    ) -> None:
        self._setup, self._clients = setup, clients
        self._number, self._phase = number, phase
        self._oracle = setup.oracle
        self._field = setup.oracle.field(len(clients))
        self.layout = setup.layout
        self.carried = carried.expand(len(clients), -1)

    def _points(self, z: Tensor) -> Tensor:
        """A row per client, also where all clients are at one point."""
        whole = isinstance(z, Pieces) or z.ndim == 2
        return z if whole else z.expand(len(self._clients), -1)

    def _rows(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The inputs and labels of some rows, in the shape that their numbers have."""
        begun = time.perf_counter()
        index = torch.from_numpy(np.ascontiguousarray(rows)).to(self.layout.device)
        data = self._setup.data
        inputs = data.take(index.reshape(-1), self.layout.dtype)
        found = inputs.reshape(*rows.shape, *data.input_shape), data.labels[index]
        self._setup.seconds["gather"] += time.perf_counter() - begun
        return found

    def _batch(self, inputs: Tensor, labels: Tensor, clients: np.ndarray, *key: Key) -> Batch:
        noise = self._noise(clients, inputs.shape[1], *key)
        return Batch(inputs, labels, noise, self._key(clients, *key))

    def _noise(self, clients: np.ndarray, rows: int, *key: Key) -> Tensor | None:
        if self._setup.problem.noise_shape is None:
            return None
        at = (self._number, self._phase, *key)
        drawn = [self._setup.noise(rows, int(client), *at) for client in clients]
        known = [noise for noise in drawn if noise is not None]
        return torch.stack(known) if known else None

    def _key(self, clients: np.ndarray, *key: Key) -> Tensor | None:
        """A number for each client that its dropout follows from."""
        if not self._oracle.drops:
            return None
        at = (self._number, self._phase, *key)
        seed = self._setup.seed
        numbers = [generator(seed, "dropout", int(c), *at).integers(2**62) for c in clients]
        return torch.tensor(numbers, device=self.layout.device)

    def minibatches(self, steps: int, stream: str = "batches") -> Iterator[Batch]:
        size = int(self._setup.batch_rows(self._clients[:1])[0])
        drawn = np.stack([self._drawn(int(c), steps * size, stream) for c in self._clients])
        by_step = drawn.reshape(len(self._clients), steps, size).swapaxes(0, 1)
        numbers = max(1, drawn.size // steps * math.prod(self._setup.data.input_shape))
        at_once = max(1, GATHERED // numbers)
        for first in range(0, steps, at_once):
            inputs, labels = self._rows(by_step[first : first + at_once])
            for k in range(len(inputs)):
                yield self._batch(inputs[k], labels[k], self._clients, stream, first + k)

    def _drawn(self, client: int, wanted: int, stream: str) -> np.ndarray:
        key = (stream, client, self._number, self._phase)
        rows = self._setup.data.train[client]
        return reshuffled(rows, wanted, generator(self._setup.seed, *key))

    def gradient(self, z: Tensor, batch: Batch, track: bool = True) -> Tensor:
        if self._field is not None:
            return self._clipped(gradient(self._field, z, batch))
        _, found, carried = self._oracle.gradient(self._points(z), self.carried, batch)
        if track:
            self.carried = carried
        return self._clipped(found)

    def gradients(self, points: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """One pass over a stack that has every client several times."""
        n = len(points)
        z = torch.cat([self._points(point) for point in points])
        again = [None if part is None else torch.cat([part] * n) for part in batch]
        carried = self.carried.repeat(n, 1)
        _, gradient, carried = self._oracle.gradient(z, carried, Batch(*again))  # type: ignore[arg-type]
        self.carried = carried[: len(self._clients)]
        return list(self._clipped(gradient).chunk(n))

    def _clipped(self, gradient: Tensor) -> Tensor:
        clip = self._setup.algorithm.clip
        if clip is None:
            return gradient
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        return gradient * (clip / norm).clamp(max=1)

    def loss(self, z: Tensor, batch: Batch) -> Tensor:
        return self._oracle.loss(self._points(z), self.carried, batch).unsqueeze(1)

    def full_gradient(self, z: Tensor) -> Tensor:
        points, gradient = self._points(z), torch.zeros_like(self._points(z))
        oracle = self._setup.oracle_of_all_rows
        for group, batch, share in self._full_batches():
            _, part, _ = oracle.gradient(points[group], self.carried[group], batch)
            gradient[group] += share * part
        return self._clipped(gradient)

    def full_loss(self, z: Tensor) -> Tensor:
        points, loss = self._points(z), self._points(z).new_zeros(len(self._clients), 1)
        oracle = self._setup.oracle_of_all_rows
        for group, batch, share in self._full_batches():
            part = oracle.loss(points[group], self.carried[group], batch)
            loss[group] += share * part.unsqueeze(1)
        return loss

    def inner(self, x: Tensor, batch: Batch) -> Tensor:
        value, self.carried = self._oracle.inner(self._points(x), self.carried, batch)
        return value

    def inner_pullback(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return self._oracle.inner_pullback(self._points(x), self._points(v), self.carried, batch)

    def statistics(self, z: Tensor, batch: Batch | None = None) -> Tensor:
        points = self._points(z)
        if batch is not None:
            return self._oracle.statistics(points, self.carried, batch)
        total = points.new_zeros(len(self._clients), self._setup.problem.n_statistics)
        oracle = self._setup.oracle_of_all_rows
        for group, batch, _ in self._full_batches():
            total[group] += oracle.statistics(points[group], self.carried[group], batch)
        return total

    def _full_batches(self) -> Iterator[tuple[slice | Tensor, Batch, float]]:
        """All rows in large passes: clients of one size together, and each pass's share of them."""
        all_rows = [self._setup.data.train[int(client)] for client in self._clients]
        for size in sorted({len(rows) for rows in all_rows}):
            group = [j for j, rows in enumerate(all_rows) if len(rows) == size]
            stacked = np.stack([all_rows[j] for j in group])
            for own in even_passes(size):
                rows = stacked[:, own]
                batch = self._batch(*self._rows(rows), self._clients[group], "all rows", own.start)
                yield places(group, self.layout.device), batch, rows.shape[1] / size


def even_passes(count: int) -> list[slice]:
    """So many rows in as few passes as possible, of about the same size: no row is left over.

    >>> even_passes(2050)
    [slice(0, 683, None), slice(683, 1366, None), slice(1366, 2050, None)]
    """
    passes = -(-count // FULL_BATCH)
    return [slice(count * k // passes, count * (k + 1) // passes) for k in range(passes)]


def places(rows: list[int], device: str = "cpu") -> slice | Tensor:
    """An index for these rows of a matrix; it gives a view of them where they are neighbours."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


def run_stack(
    setup: Setup,
    phase_name: str,
    number: int,
    clients: np.ndarray,
    received: Vectors,
    memory: Vectors,
) -> tuple[Vectors, Vectors]:
    """One phase's client function for one stack: its reply and its new memory, on the CPU."""
    phases = phases_of_round(setup.algorithm, setup.problem, number)
    phase = next(phase for phase in phases if phase.name == phase_name)
    layout = setup.layout
    received = {name: vector.to(layout.device) for name, vector in received.items()}
    memory = {name: vector.to(layout.device) for name, vector in memory.items()}
    nothing = torch.zeros(0, dtype=layout.dtype, device=layout.device)
    stack = ClientStack(setup, clients, received.pop("carried", nothing), number, phase_name)
    at = Round(number, setup.seed, layout, setup.problem, setup.members)
    noise = keyed.number(setup.seed, "noise", int(clients[0]), number, phase_name)
    try:
        with _seeded(noise, layout.device):  # by the stack, not by the order of work
            reply, memory = phase.client(at, received, memory, stack)
            take_steps([*reply.values(), *memory.values()])
    except ValueError as error:
        if setup.batch_rows(clients).max() > 1:
            raise
        raise UserError(
            f"client '{setup.data.names[clients[0]]}' trains on one row at a time, which this "
            f"network cannot do ({error}); use a larger algorithm.batch_size, leave out clients by "
            "data.min_rows, or take a network without BatchNorm."
        ) from None
    reply = {name: reply[name] for name in phase.up if name in reply}
    if layout.n_carried and phase.trains:
        reply["carried"] = stack.carried
    return _to_cpu(reply, len(clients)), _to_cpu(memory, len(clients))


@contextmanager
def _seeded(seed: int, device: str) -> Iterator[None]:
    """What draws from torch's own generator, and is no dropout layer, draws from this seed."""
    before = torch.get_rng_state()
    if device != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed looks for CUDA each time
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _to_cpu(vectors: Vectors, n_clients: int) -> Vectors:
    """A row per client, also where all clients' rows are one and the same vector."""
    here = {name: v if v.is_cpu else v.cpu() for name, v in vectors.items()}
    return {name: v.expand(n_clients, -1) if v.ndim == 1 else v for name, v in here.items()}
