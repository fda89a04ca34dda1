"""The contract of a method: named vectors, one or more phases a round, two pure functions a phase.

Nothing here, and nothing in a method's file, knows about processes, networks or files. A client
function moves a whole stack of clients: what it receives from the server is `(d,)`, what belongs
to clients (memory, gradients, replies) is `(C, d)`, and the same line serves both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedsaddle import keyed
from fedsaddle.layout import Layout
from fedsaddle.problems import Batch, Problem
from fedsaddle.problems.base import Kind as ProblemKind

Vectors = dict[str, Tensor]
OutputRule = Literal["last", "average", "random"]
Size = Literal["point", "primal", "dual"] | int
"""How long a vector is: `d`, `dx`, `dy`, or a plain number."""


def length(size: Size, layout: Layout) -> int:
    """The number of floats of a declared vector."""
    if isinstance(size, int):
        return size
    return layout.d if size == "point" else layout.dx if size == "primal" else layout.dy


@dataclass(frozen=True)
class Members:
    """Who can take part, and in which named group: a server-side dual may weigh either."""

    able: Tensor
    """The clients with training rows, rising."""
    group_names: tuple[str, ...]
    group_of: Tensor
    """For each of `able`, the number of its group; without groups every client is its own."""

    def __len__(self) -> int:
        return len(self.able)


class Round(NamedTuple):
    """Where a run stands: the round's number from 0, the seed, the problem and who is in it."""

    number: int
    seed: int
    layout: Layout
    problem: Problem
    members: Members

    def random(self, purpose: str) -> np.random.Generator:
        """The server's own randomness in this round, the same wherever it is asked for."""
        return keyed.generator(self.seed, purpose, self.number)


class Client(Protocol):
    """What a client function may ask of the clients it moves (one, or a stack)."""

    @property
    def layout(self) -> Layout: ...

    def minibatches(self, steps: int, stream: str = "batches") -> Iterator[Batch]:
        """`steps` minibatches, reshuffled epoch after epoch; each stream is drawn by itself."""
        ...

    def gradient(self, z: Tensor, batch: Batch, track: bool = True) -> Tensor:
        """`G(z; batch)`; BatchNorm statistics follow the pass unless `track` is off."""
        ...

    def gradients(self, points: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """`G(z; batch)` at several points; BatchNorm statistics follow the pass at the first."""
        ...

    def loss(self, z: Tensor, batch: Batch) -> Tensor:
        """`f(z; batch)`, `(C, 1)`."""
        ...

    def full_gradient(self, z: Tensor) -> Tensor:
        """`G(z)` over all the client's training rows."""
        ...

    def full_loss(self, z: Tensor) -> Tensor:
        """`f(z)` over all the client's training rows, `(C, 1)`."""
        ...

    def statistics(self, z: Tensor, batch: Batch | None = None) -> Tensor:
        """The problem's statistics over all training rows, or over one batch, `(C, k)`."""
        ...

    def inner(self, x: Tensor, batch: Batch) -> Tensor:
        """`g(x; batch)` of a compositional problem, `(C, dx)`."""
        ...

    def inner_pullback(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """`∇g(x; batch)ᵀ v` of a compositional problem, `(C, dx)`."""
        ...


class Means(NamedTuple):
    """Means of clients' vectors, each client counted by its weight."""

    weights: Tensor
    vectors: Vectors

    def are_of(self, weights: Tensor) -> bool:
        """Whether clients were counted by these weights."""
        return weights is self.weights or torch.equal(weights.double(), self.weights.double())


@dataclass(frozen=True)
class Replies:
    """The accepted replies of one phase, in client order."""

    clients: Tensor
    vectors: Mapping[str, Tensor]
    """A row per client. To look at one may cost an engine that only adds them up a second pass."""
    rows: Tensor
    draws: Tensor
    """How often each was drawn: once, unless a phase draws with replacement."""
    means: Means | None = None
    """What an engine has averaged already."""

    def __len__(self) -> int:
        return len(self.clients)

    def mean(self, name: str, weights: Tensor | None = None) -> Tensor:
        """The average of one vector over the responders, uniform over draws unless weighted."""
        weights = self.draws if weights is None else weights
        if self.means is not None and self.means.are_of(weights):
            return self.means.vectors[name]
        stack, weights = self.vectors[name], weights.double()
        return weights.to(stack.dtype) @ stack / float(weights.sum())

    def sum(self, name: str) -> Tensor:
        return len(self) * self.mean(name, torch.ones(len(self)))


ClientFunction = Callable[[Round, Vectors, Vectors, Client], tuple[Vectors, Vectors]]
ServerFunction = Callable[[Round, Vectors, Replies], Vectors]


class Phase(NamedTuple):
    """One exchange with a set of clients.

    `client(round, received, memory, client) → reply, memory`;
    `server(round, state, replies) → state`.
    `down` and `up` name the vectors on the wire. A name in `kept` is one that the client keeps
    (until its memory's next era): it goes down only to clients that do not hold it yet.
    """

    name: str
    down: Mapping[str, Size]
    up: Mapping[str, Size]
    client: ClientFunction
    server: ServerFunction
    kept: tuple[str, ...] = ()
    trains: bool = True
    """Whether local training happens, so that carried values (BatchNorm) come back up."""
    everyone: bool = False
    """Whether all clients are asked, whatever the number selected per round."""
    draw: Callable[[Vectors, Members], Tensor] | None = None
    """Probabilities of the members: clients are then drawn by them, with replacement."""
    drawn_as: str | None = None
    """Another phase of the round: the clients drawn for it, and answering in it, serve here too."""

    @property
    def draw_key(self) -> str:
        """What the choice of clients, and who of them answers, is keyed by."""
        return self.drawn_as or self.name


class Algorithm(BaseModel):
    """A method: hyper-parameters are fields; `start`, `phases` and `output` are the rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    solves: ClassVar[frozenset[ProblemKind]] = frozenset({"auc", "minimax", "risk"})
    batch_size: int = Field(
        32,
        ge=0,
        description="rows of a minibatch (0: all rows); smaller clients use what they have",
    )

    clip: float | None = Field(
        None, gt=0, description="a client's gradient longer than this is scaled down to it"
    )
    output_rule: OutputRule = Field(
        "last",
        description="what is returned: the last iterate, the mean over rounds (average), "
        "or the iterate of a random round (random)",
    )

    def start(self, z: Tensor, layout: Layout, members: Members) -> Vectors:
        """The server's state before the first round."""
        return {"z": z, "output": z}

    def memory(self) -> Mapping[str, Size]:
        """What a client remembers between its rounds; zero until it has taken part."""
        return {}

    def phases(self, number: int) -> tuple[Phase, ...]:
        """The exchanges of round `number`, in order."""
        raise NotImplementedError

    def weights(self, replies: Replies) -> Tensor | None:
        """How the replies weigh in the mean of models and their statistics; None: all alike.

        By who replies, not by what: it is also asked before there are any vectors.
        """
        return None

    def after_round(self, at: Round, state: Vectors) -> Vectors:
        """Keep `output`, the point the method returns: last, mean, or a random round's."""
        z, output, number = state["z"], state["output"], at.number + 1
        if self.output_rule == "average":
            return state | {"output": output + (z - output) / number}
        if self.output_rule == "random" and at.random("output").integers(number) > 0:
            return state  # round r replaces the pick with probability 1/r
        return state | {"output": z}

    def observe(self, state: Vectors, members: Members) -> dict[str, float]:
        """Figures of the method's own for the metrics, such as the weight of every client."""
        return {}

    def era(self, number: int) -> int:
        """Client memory and kept vectors live as long as this number stays the same."""
        return 0
