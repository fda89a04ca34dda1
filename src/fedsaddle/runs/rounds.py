"""The life of a round: select, ask, screen, move the server, write it down. It exists once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms import Algorithm, Phase, Replies, Round
from fedsaddle.algorithms.base import Means, Members, Vectors
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.engines import Engine, one_thread
from fedsaddle.errors import UserError
from fedsaddle.federation import (
    Answer,
    FederationOptions,
    Ledger,
    all_take_part,
    answering,
    screen,
    select,
)
from fedsaddle.federation.clock import response_seconds
from fedsaddle.federation.ledger import Entry, wire_up
from fedsaddle.federation.trace import Trace
from fedsaddle.layout import Layout
from fedsaddle.problems import Problem

AHEAD = 2**8
"""Clients, about, of whom it is found out at a time that they will take part, in this round and in
those to come: among other work it takes ten times as long as it does right after the last time."""
FORESEEN = ("always", "uniform-response", "dropout")
"""Models of availability by which that follows from the round alone, and is soon found out."""


class Asked(NamedTuple):
    """Whom an attempt at a phase asks, and what is known of the replies before they come."""

    selected: np.ndarray
    draws: np.ndarray
    clients: np.ndarray
    """Those whose replies the engine is to get: in a simulation, those who will answer."""
    seconds: np.ndarray | None
    """How long each selected client takes, where the run has a simulated clock."""
    expected: Replies
    """Without vectors."""
    weights: Tensor
    """How they count in the means."""


@dataclass(frozen=True)
class Plan:
    """What stays the same in every round of a run."""

    problem: Problem
    algorithm: Algorithm
    layout: Layout
    federation: FederationOptions
    names: tuple[str, ...]
    train_rows: np.ndarray
    members: Members
    seed: int
    real_clock: bool = False
    """Whether clients answer in their own time: who is absent is then seen, not drawn."""
    trace: Trace | None = None
    """Who answered in an earlier run that is replayed."""

    @cached_property
    def everyone(self) -> Asked:
        """All who can take part: nothing about them changes from one round to the next."""
        able = self.members.able.numpy()
        return self.asked(able, np.ones(len(able), np.int64), able)

    @cached_property
    def ahead(self) -> dict[tuple[str, str, int], Asked]:
        """Who takes part in rounds to come, by the phase, what its draw is keyed by, and when."""
        return {}

    def asked(
        self,
        selected: np.ndarray,
        draws: np.ndarray,
        clients: np.ndarray,
        seconds: np.ndarray | None = None,
    ) -> Asked:
        expected = self.replies(clients, selected, draws)
        weights = self.algorithm.weights(expected)
        weights = expected.draws if weights is None else weights
        return Asked(selected, draws, clients, seconds, expected, weights)

    def replies(self, clients: np.ndarray, selected: np.ndarray, draws: np.ndarray) -> Replies:
        """Of these clients, without vectors."""
        drawn = draws if clients is selected else draws[np.searchsorted(selected, clients)]
        rows = torch.from_numpy(self.train_rows[clients])
        return Replies(torch.from_numpy(clients), {}, rows, torch.from_numpy(drawn))


class Diverged(UserError):
    """The numbers of a run are no longer usable."""


def run_round(
    plan: Plan,
    engine: Engine,
    ledger: Ledger,
    state: Vectors,
    number: int,
    measured: bool = False,
) -> tuple[Vectors, list[Entry]]:
    """The server's state after round `number`, and the ledger's entries for it.

    Where the round is `measured`, they say which replies were furthest from the server's vectors.
    """
    at = Round(number, plan.seed, plan.layout, plan.problem, plan.members)
    entries: list[Entry] = []
    with one_thread():  # which is also faster where workers have all the cores
        for phase in phases_of_round(plan.algorithm, plan.problem, number):
            replies = gather(plan, engine, ledger, state, at, phase, entries, measured)
            state = _of_its_own(phase.server(at, state, replies), replies)
            if "carried" in replies.vectors:
                weights = plan.algorithm.weights(replies)
                state = state | {"carried": replies.mean("carried", weights)}
            engine.commit(replies.clients)
        return plan.algorithm.after_round(at, state), entries


def _of_its_own(state: Vectors, replies: Replies) -> Vectors:
    """The state without views of the replies: the next ones may come to lie where these are."""
    if not isinstance(replies.vectors, dict):  # they were only added up
        return state
    lent = {vector.untyped_storage().data_ptr() for vector in replies.vectors.values()}
    return {
        name: vector.clone() if vector.untyped_storage().data_ptr() in lent else vector
        for name, vector in state.items()
    }


def gather(
    plan: Plan,
    engine: Engine,
    ledger: Ledger,
    state: Vectors,
    at: Round,
    phase: Phase,
    entries: list[Entry],
    measured: bool,
) -> Replies:
    """Enough good replies to a phase; below the quorum it is tried again with a new selection."""
    federation = plan.federation
    received = {name: state[name] for name in phase.down}
    if plan.layout.n_carried:
        received["carried"] = state["carried"]
    needed = min(federation.quorum, federation.enough)  # what is enough is also a quorum
    for attempt in range(federation.retries + 1):
        asked = _asked(plan, ledger, at, phase, state, attempt)
        selected, seconds = asked.selected, asked.seconds
        question = (phase, at.number, asked.clients, received, asked.weights, measured)
        answers = engine.ask(*question) if len(asked.clients) else []
        declared = wire_up(phase, plan.layout)
        clients, vectors, refused = screen(answers, declared, federation.max_norm)
        arrived = [client for answer in answers for client in answer.clients.tolist()]
        entry = ledger.charge(
            phase,
            at.number,
            plan.algorithm.era(at.number),
            attempt,
            selected,
            arrived,
            {refusal.client: refusal.reason for refusal in refused},
            None if seconds is None else float(seconds[np.isin(selected, asked.clients)].max()),
        )
        entries.append(entry)
        if len(clients) and measured:
            entry["norms"] = longest(state, clients, vectors, answers)
        if len(clients) and len(clients) >= needed * len(selected):
            all_good = clients is asked.clients or np.array_equal(clients, asked.clients)
            who = asked.expected if all_good else plan.replies(clients, selected, asked.draws)
            means = _means(clients, answers[0])
            return Replies(who.clients, vectors, who.rows, who.draws, means)
    raise _no_quorum(plan, at, phase, entries[-1])


def _means(clients: np.ndarray, answer: Answer) -> Means | None:
    """What an engine has averaged, if it is the mean of just these clients."""
    theirs = answer.clients
    return answer.means if theirs is clients or np.array_equal(theirs, clients) else None


def _asked(
    plan: Plan, ledger: Ledger, at: Round, phase: Phase, state: Vectors, attempt: int
) -> Asked:
    federation = plan.federation
    if all_take_part(federation, phase, len(plan.members)):
        return plan.everyone
    foreseen = phase.draw is None and federation.availability in FORESEEN and not plan.real_clock
    if attempt or not foreseen:
        return _asked_now(plan, ledger, at, phase, state, attempt)
    key = (phase.name, phase.draw_key)
    if (*key, at.number) not in plan.ahead:
        each = federation.clients_per_round or len(plan.members)
        numbers = range(at.number, at.number + max(1, AHEAD // each))
        first = [_asked_now(plan, ledger, at._replace(number=n), phase, state) for n in numbers]
        plan.ahead.update({(*key, n): asked for n, asked in zip(numbers, first, strict=True)})
    return plan.ahead.pop((*key, at.number))


def _asked_now(
    plan: Plan, ledger: Ledger, at: Round, phase: Phase, state: Vectors, attempt: int = 0
) -> Asked:
    federation = plan.federation
    selected, draws = select(federation, at, phase, state, attempt)
    seconds = _seconds(plan, ledger, at, phase, attempt, selected)
    if plan.real_clock:
        clients = selected
    elif plan.trace is not None:
        clients = plan.trace.answering(at.number, phase.name, attempt)
    else:
        key = phase.draw_key
        clients = answering(federation, selected, plan.names, at, key, attempt, seconds)
    return plan.asked(selected, draws, clients, seconds)


def _seconds(
    plan: Plan, ledger: Ledger, at: Round, phase: Phase, attempt: int, selected: np.ndarray
) -> np.ndarray | None:
    """How long each selected client takes, where the run has a simulated clock."""
    if plan.federation.availability != "latency":
        return None
    width = plan.layout.dtype.itemsize
    down = np.array(ledger.floats_down(phase, plan.algorithm.era(at.number), selected)) * width
    up = ledger.floats_up(phase) * width
    return response_seconds(plan.federation, at, phase, attempt, selected, down, up)


def longest(
    state: Vectors,
    clients: np.ndarray,
    vectors: Mapping[str, Tensor],
    answers: Sequence[Answer] = (),
    most: int = 3,
) -> dict[str, float]:
    """The clients whose reply is furthest from what the server holds (or longest), and how far."""
    known = {
        int(client): float(moved)
        for answer in answers
        if answer.moved is not None
        for client, moved in zip(answer.clients, answer.moved, strict=True)
    }
    if not all(int(client) in known for client in clients):
        name = "z" if "z" in vectors else next(iter(vectors))
        start = state[name].double() if name in state else 0.0
        # in doubles: a difference of floats may overflow where both are finite
        moved = [float((vector.double() - start).norm()) for vector in vectors[name]]
        known = dict(zip(clients.tolist(), moved, strict=True))
    top = sorted(clients.tolist(), key=lambda client: -known[client])[:most]
    return {str(client): float(f"{known[client]:.4g}") for client in top}


def _no_quorum(plan: Plan, at: Round, phase: Phase, entry: Entry) -> UserError:
    good = len(entry["answered"]) - len(entry["refused"])
    message = (
        f"round {at.number + 1}, phase '{phase.name}': only {good} of {len(entry['selected'])} "
        f"selected clients gave a good reply, {plan.federation.retries + 1} times in a row; "
        f"federation.quorum is {plan.federation.quorum:g}."
    )
    if plan.real_clock:
        absent = sorted({*entry["selected"]} - {*entry["answered"]})
        message += f" No reply from: {', '.join(plan.names[c] for c in absent) or 'none'}."
    if not entry["refused"]:
        return UserError(message)
    client, reason = next(iter(entry["refused"].items()))
    message += f" Client '{plan.names[int(client)]}': {reason}."
    if "finite" not in reason:
        return UserError(message)
    return Diverged(f"{message} A smaller algorithm.learning_rate may help.")
