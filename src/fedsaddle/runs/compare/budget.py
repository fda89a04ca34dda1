"""How many rounds a communication budget pays for, found without training.

The ledger is kept ahead of the run. Round by round, for every phase, clients are selected and some
answer (both are keyed by seed, phase and round), and what would be sent is booked: floats down to
every selected client plus floats up from every answer, times the bytes of a float. So a method with
two phases a round, or with two vectors in a message, gets fewer rounds. Two things cannot be known
ahead: a method that draws clients by its own weights is charged as if it drew as many different
ones as it may, and a phase that is repeated because replies were refused is charged once.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch

from fedsaddle.algorithms import Members, Phase, Round
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError
from fedsaddle.federation import FederationOptions, Ledger, answering, select
from fedsaddle.federation.clock import response_seconds
from fedsaddle.federation.participation import check_options, reachable
from fedsaddle.runs.compare.entrants import seeded, with_data
from fedsaddle.runs.config import Config, make_algorithm, make_problem
from fedsaddle.runs.saved import starting_network

MOST_ROUNDS = 1_000_000


def rounds_within(
    budget_mb: float, configs: dict[str, Config], seeds: Sequence[int]
) -> dict[str, int]:
    """By label, the rounds that the budget pays for whichever of the seeds is run."""
    rounds: dict[str, int] = {}
    for seed in seeds:
        own = {label: seeded(config, seed) for label, config in configs.items()}
        for label, config, data in with_data(own):
            paid = _rounds_of(label, budget_mb, bill(config, data))
            rounds[label] = min(paid, rounds.get(label, paid))
    return rounds


def _rounds_of(label: str, budget_mb: float, totals: Iterator[int]) -> int:
    budget = round(budget_mb * 1e6)
    for rounds, sent in enumerate(totals):
        if sent > budget:
            if rounds == 0:
                raise UserError(
                    f"{label}: one round sends {sent / 1e6:.3g} MB, "
                    f"which is more than the budget of {budget_mb:g} MB."
                )
            return rounds
        if rounds == MOST_ROUNDS:
            break
    raise UserError(
        f"{label}: {budget_mb:g} MB pay for more than {MOST_ROUNDS:,} rounds; choose a smaller "
        "budget, or give --rounds."
    )


def bill(config: Config, data: FederatedData) -> Iterator[int]:
    """Bytes sent, up and down together, after the first round, the second, and so on for ever."""
    seed, federation = config.run.seed, config.federation
    able = np.flatnonzero(data.train.counts)
    check_options(federation, data.names, len(able))
    if federation.availability == "trace":
        raise UserError(
            "--budget-mb: with federation.availability = 'trace' the rounds are those of another "
            "run; give --rounds."
        )
    network = starting_network(config.model, data, seed)
    problem = make_problem(config.problem, network).prepare(data)
    layout = problem.layout(getattr(torch, config.engine.dtype))
    method = make_algorithm(config.algorithm)
    names = tuple(data.names[client] for client in able)
    members = Members(torch.from_numpy(able), names, torch.arange(len(able)))
    ledger = Ledger(layout)
    for number in count():
        at = Round(number, seed, layout, problem, members)
        for phase in phases_of_round(method, problem, number):
            _book(ledger, federation, data.names, at, phase, method.era(number))
        yield ledger.totals["bytes_down"] + ledger.totals["bytes_up"]


def _book(
    ledger: Ledger,
    federation: FederationOptions,
    names: tuple[str, ...],
    at: Round,
    phase: Phase,
    era: int,
) -> None:
    """Charge a phase as the run will: again while fewer answer than the quorum."""
    width = ledger.layout.dtype.itemsize
    for attempt in range(federation.retries + 1):
        selected = _selected(federation, at, phase, attempt)
        seconds = None
        if federation.availability == "latency":
            down = np.array(ledger.floats_down(phase, era, selected)) * width
            up = ledger.floats_up(phase) * width
            seconds = response_seconds(federation, at, phase, attempt, selected, down, up)
        asked = answering(federation, selected, names, at, phase.draw_key, attempt, seconds)
        ledger.charge(phase, at.number, era, attempt, selected, asked.tolist(), {})
        needed = min(federation.quorum, federation.enough) * len(selected)
        if len(asked) and len(asked) >= needed:
            return


def _selected(federation: FederationOptions, at: Round, phase: Phase, attempt: int) -> np.ndarray:
    if phase.draw is None:
        return select(federation, at, phase, {}, attempt)[0]
    able = at.members.able.numpy()  # drawn by weights that only the run will know
    pool = able[reachable(federation, len(able), at.number)]
    return np.asarray(pool[: federation.clients_per_round or len(able)])
