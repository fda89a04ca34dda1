"""Selection and availability: which clients are asked, and which of them answer.

Both depend on (seed, phase, round, attempt) alone, so a run can be replayed anywhere.
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

    Uniformly without replacement, unless the phase draws by probabilities of its own.
    """
    able = at.members.able.numpy()
    size = options.clients_per_round or len(able)
    if size > len(able):
        raise UserError(
            f"federation.clients_per_round: {size} asked for, but only "
            f"{len(able)} clients have training rows."
        )
    random = generator(at.seed, "select", phase.name, at.number, attempt)
    if phase.draw is not None:
        probabilities = phase.draw(state, at.members).double().numpy()
        drawn = random.choice(able, size, replace=True, p=probabilities / probabilities.sum())
        return np.unique(drawn, return_counts=True)
    if phase.everyone or size == len(able):
        return able, np.ones(len(able), np.int64)
    chosen = np.sort(able[random.choice(len(able), size, replace=False)])
    return chosen, np.ones(size, np.int64)


def answering(
    options: FederationOptions,
    selected: np.ndarray,
    names: "tuple[str, ...]",
    at: Round,
    phase: str,
    attempt: int = 0,
) -> np.ndarray:
    """The first ones to answer, as many as are enough, in client order."""
    random = generator(at.seed, "availability", phase, at.number, attempt)
    arrivals = random.permutation(selected)
    if options.availability == "uniform-response":
        arrivals = arrivals[: ceil(random.uniform(0.5, 1.0) * len(selected))]
    elif options.availability == "dropout":
        lost = np.array([_dropout(options, names[client]) for client in arrivals])
        arrivals = arrivals[random.random(len(arrivals)) >= lost]
    return np.sort(arrivals[: ceil(options.enough * len(selected))])


def _dropout(options: FederationOptions, name: str) -> float:
    if isinstance(options.dropout, dict):
        return options.dropout.get(name, 0.0)
    return options.dropout


def check_dropout(options: FederationOptions, names: "tuple[str, ...]") -> None:
    """Refuse dropout probabilities outside [0, 1] and names of no client."""
    table = options.dropout if isinstance(options.dropout, dict) else {"": options.dropout}
    for name, probability in table.items():
        if not 0 <= probability <= 1:
            raise UserError(f"federation.dropout: {probability} is no probability (0 to 1).")
        if name and name not in names:
            raise UserError(f"federation.dropout: no client '{name}'; {nearest(name, names)}")
