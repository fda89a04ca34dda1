"""The life of a round: select, ask, screen, move the server, write it down. It exists once."""

from dataclasses import dataclass

import numpy as np
import torch

from fedsaddle.algorithms import Algorithm, Phase, Replies, Round
from fedsaddle.algorithms.base import Members, Vectors
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.engines import Engine
from fedsaddle.errors import UserError
from fedsaddle.federation import FederationOptions, Ledger, answering, screen, select
from fedsaddle.federation.clock import response_seconds
from fedsaddle.federation.ledger import Entry, wire_up
from fedsaddle.layout import Layout
from fedsaddle.problems import Problem


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


class Diverged(UserError):
    """The numbers of a run are no longer usable."""


def run_round(
    plan: Plan, engine: Engine, ledger: Ledger, state: Vectors, number: int
) -> tuple[Vectors, list[Entry]]:
    """The server's state after round `number`, and the ledger's entries for it."""
    at = Round(number, plan.seed, plan.layout, plan.problem, plan.members)
    entries: list[Entry] = []
    for phase in phases_of_round(plan.algorithm, plan.problem, number):
        replies = gather(plan, engine, ledger, state, at, phase, entries)
        state = phase.server(at, state, replies)
        if "carried" in replies.vectors:
            weights = plan.algorithm.weights(replies)
            state = state | {"carried": replies.mean("carried", weights)}
        engine.commit(replies.clients.numpy())
    return plan.algorithm.after_round(at, state), entries


def gather(
    plan: Plan,
    engine: Engine,
    ledger: Ledger,
    state: Vectors,
    at: Round,
    phase: Phase,
    entries: list[Entry],
) -> Replies:
    """Enough good replies to a phase; below the quorum it is tried again with a new selection."""
    federation = plan.federation
    received = {name: state[name] for name in phase.down}
    if plan.layout.n_carried:
        received["carried"] = state["carried"]
    needed = min(federation.quorum, federation.enough)  # what is enough is also a quorum
    for attempt in range(federation.retries + 1):
        selected, draws = select(federation, at, phase, state, attempt)
        seconds = _seconds(plan, ledger, at, phase, attempt, selected)
        asked = answering(federation, selected, plan.names, at, phase.draw_key, attempt, seconds)
        answers = engine.ask(phase, at.number, asked, received) if len(asked) else []
        declared = wire_up(phase, plan.layout)
        clients, vectors, refused = screen(answers, declared, federation.max_norm)
        arrived = np.concatenate([np.zeros(0, np.int64), *(answer.clients for answer in answers)])
        entry = ledger.charge(
            phase,
            at.number,
            plan.algorithm.era(at.number),
            attempt,
            selected,
            np.sort(arrived),
            {refusal.client: refusal.reason for refusal in refused},
            None if seconds is None else float(seconds[np.isin(selected, asked)].max()),
        )
        entries.append(entry)
        if len(clients):
            entry["norms"] = longest(state, clients, vectors)
        if len(clients) and len(clients) >= needed * len(selected):
            return Replies(
                torch.from_numpy(clients),
                vectors,
                rows=torch.from_numpy(plan.train_rows[clients]),
                draws=torch.from_numpy(draws[np.searchsorted(selected, clients)]),
            )
    raise _no_quorum(plan, at, phase, entries[-1])


def _seconds(
    plan: Plan, ledger: Ledger, at: Round, phase: Phase, attempt: int, selected: np.ndarray
) -> np.ndarray | None:
    """How long each selected client takes, where the run has a simulated clock."""
    if plan.federation.availability != "latency":
        return None
    width = plan.layout.dtype.itemsize
    down = ledger.floats_down(phase, plan.algorithm.era(at.number), selected) * width
    up = ledger.floats_up(phase) * width
    return response_seconds(plan.federation, at, phase, attempt, selected, down, up)


def longest(
    state: Vectors, clients: np.ndarray, vectors: Vectors, most: int = 3
) -> dict[str, float]:
    """The clients whose reply is furthest from what the server holds (or longest), and how far."""
    name = "z" if "z" in vectors else next(iter(vectors))
    moved = vectors[name].double()  # a difference of floats may overflow where both are finite
    if name in state:
        moved = moved - state[name].double()
    top = moved.norm(dim=1).topk(min(most, len(clients)))
    norms = [float(f"{norm:.4g}") for norm in top.values.tolist()]
    return dict(zip(map(str, clients[top.indices.numpy()].tolist()), norms, strict=True))


def _no_quorum(plan: Plan, at: Round, phase: Phase, entry: Entry) -> UserError:
    good = len(entry["answered"]) - len(entry["refused"])
    message = (
        f"round {at.number + 1}, phase '{phase.name}': only {good} of {len(entry['selected'])} "
        f"selected clients gave a good reply, {plan.federation.retries + 1} times in a row; "
        f"federation.quorum is {plan.federation.quorum:g}."
    )
    if not entry["refused"]:
        return UserError(message)
    client, reason = next(iter(entry["refused"].items()))
    message += f" Client '{plan.names[int(client)]}': {reason}."
    if "finite" not in reason:
        return UserError(message)
    return Diverged(f"{message} A smaller algorithm.learning_rate may help.")
