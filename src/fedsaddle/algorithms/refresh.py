"""All exchanges of a round: the method's own, after the one that sets closed-form variables.

    1. every selected client sends its sums at the server's point
    2. the server adds them up and sets the carried values

The problem says what is summed and what follows from it (`Problem.statistics`, `Problem.refresh`).
"""

from fedsaddle.algorithms.base import Algorithm, Client, Phase, Replies, Round, Vectors
from fedsaddle.problems import Problem


def phases_of_round(algorithm: Algorithm, problem: Problem, number: int) -> tuple[Phase, ...]:
    """The phases of round `number`, in order."""
    phases = algorithm.phases(number)
    if not problem.refreshes:
        return phases
    up = {"statistics": problem.n_statistics}
    return (Phase("refresh", {"z": "point"}, up, sums, set_carried, trains=False), *phases)


def sums(at: Round, received: Vectors, memory: Vectors, client: Client) -> tuple[Vectors, Vectors]:
    return {"statistics": client.statistics(received["z"])}, memory


def set_carried(at: Round, state: Vectors, replies: Replies) -> Vectors:
    carried, _ = at.layout.unflatten(state["z"], state["carried"])
    refreshed = at.problem.refresh(carried, replies.sum("statistics"))
    return state | {"carried": at.layout.flatten_carried(refreshed)}
