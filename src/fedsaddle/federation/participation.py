"""Selection and availability: which clients are asked, and which of them answer.

Both depend on (seed, phase, round, attempt) alone, so a run can be replayed anywhere. A phase that
is `drawn_as` another one shares its clients.
"""

from math import ceil

import numpy as np

from fedsaddle.algorithms import Phase, Round
from fedsaddle.algorithms.base import Vectors
from fedsaddle.errors import UserError, nearest
from fedsaddle.federation.options import FederationOptions
from fedsaddle.keyed import generator


def select(
    options: FederationOptions, at: Round, phase: Phase, state: Vectors, attempt: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The clients asked in this attempt at a phase, in client order, and how often each was drawn.

    Uniformly without replacement, unless the phase draws by probabilities of its own. Clients out
    of reach are not selected: fewer are asked then, and drawn by what is left of the probabilities.
    """
    able = at.members.able.numpy()
    size = options.clients_per_round or len(able)
    key = ("select", phase.draw_key, at.number, attempt)
    near = reachable(options, len(able), at.number)
    pool = able[near]
    if phase.draw is not None:
        random = generator(at.seed, *key)
        weights = phase.draw(state, at.members).double().numpy()[near]
        weights = weights if weights.sum() > 0 else np.ones(len(pool))
        drawn = random.choice(pool, size, replace=True, p=weights / weights.sum())
        return np.unique(drawn, return_counts=True)
    if not phase.everyone and size < len(pool):
        chosen = generator(at.seed, *key).choice(len(pool), size, replace=False)
        pool = np.sort(pool[chosen])
    return pool, np.ones(len(pool), np.int64)


def all_take_part(options: FederationOptions, phase: Phase, n_clients: int) -> bool:
    """Whether all of so many clients are asked in this phase, each once, and all of them answer."""
    asked = phase.everyone or options.clients_per_round in (0, n_clients)
    answer = options.availability == "always" and options.enough == 1
    return asked and answer and phase.draw is None


def reachable(options: FederationOptions, n_clients: int, number: int) -> np.ndarray | slice:
    """The places, among the clients with training rows, of those reachable in round `number`.

    All of them, unless availability is cyclic: the clients live around the globe in the order of
    their numbers, so that neighbours share their hours. Client j of n can be reached for
    `cycle_share` of every day, from the day's `j/n` on. When nobody can, the server waits for the
    next one.

    >>> options = FederationOptions(availability="cyclic", cycle_rounds=4, cycle_share=0.5)
    >>> [reachable(options, 4, number).tolist() for number in (0, 1, 2, 4)]
    [[0, 3], [0, 1], [1, 2], [0, 3]]
    """
    if options.availability != "cyclic":
        return slice(None)
    day = options.cycle_rounds * n_clients  # in parts of a round, to stay with whole numbers
    since = (number * n_clients - np.arange(n_clients) * options.cycle_rounds) % day
    awake = np.flatnonzero(since < options.cycle_share * day)
    return awake if len(awake) else np.flatnonzero(since == since.max())


def enough_of(options: FederationOptions, selected: int) -> int:
    """How many replies of so many selected clients are enough."""
    return ceil(round(options.enough * selected, 9))  # 0.55 · 100 is a bit above 55


def answering(
    options: FederationOptions,
    selected: np.ndarray,
    names: "tuple[str, ...]",
    at: Round,
    draw_key: str,
    attempt: int = 0,
    seconds: np.ndarray | None = None,
) -> np.ndarray:
    """The first ones to answer, as many as are enough, in client order.

    First by the clock, where `seconds` says how long each of the selected takes.
    """
    enough = enough_of(options, len(selected))
    if seconds is not None:
        return np.sort(selected[np.argsort(seconds, kind="stable")[:enough]])
    if options.availability in ("always", "cyclic") and enough == len(selected):
        return selected
    random = generator(at.seed, "availability", draw_key, at.number, attempt)
    arrivals = random.permutation(selected)
    if options.availability == "uniform-response":
        arrivals = arrivals[: ceil(random.uniform(0.5, 1.0) * len(selected))]
    elif options.availability == "dropout":
        lost = np.array([_dropout(options, names[client]) for client in arrivals])
        arrivals = arrivals[random.random(len(arrivals)) >= lost]
    return np.sort(arrivals[:enough])


def _dropout(options: FederationOptions, name: str) -> float:
    if isinstance(options.dropout, dict):
        return options.dropout.get(name, 0.0)
    return options.dropout


def check_options(options: FederationOptions, names: "tuple[str, ...]", n_able: int) -> None:
    """Refuse, before anything runs, what does not fit these clients."""
    if options.clients_per_round > n_able:
        raise UserError(
            f"federation.clients_per_round: {options.clients_per_round} asked for, but only "
            f"{n_able} clients have training rows."
        )
    if (options.availability == "trace") != (options.trace is not None):
        raise UserError(
            "federation.trace: name the ledger.jsonl of an earlier run, "
            "together with federation.availability = 'trace'."
        )
    table = options.dropout if isinstance(options.dropout, dict) else {"": options.dropout}
    for name, probability in table.items():
        if not 0 <= probability <= 1:
            raise UserError(f"federation.dropout: {probability} is no probability (0 to 1).")
        if name and name not in names:
            raise UserError(f"federation.dropout: no client '{name}'; {nearest(name, names)}")
