"""What there is to choose from, one table each."""

from collections.abc import Mapping

from fedsaddle.algorithms import ALGORITHMS, Algorithm, Phase
from fedsaddle.algorithms.base import Size
from fedsaddle.data.sources import SOURCES
from fedsaddle.models import MODELS
from fedsaddle.problems import PROBLEMS

Rows = list[dict[str, str]]


def floats(sizes: Mapping[str, Size]) -> str:
    """A sum of vector lengths in the papers' letters.

    >>> floats({"z": "point", "control": "point", "loss": 1})
    '2d + 1'
    """
    letters = {"point": "d", "primal": "dx", "dual": "dy"}
    parts = []
    for size, letter in letters.items():
        times = sum(1 for other in sizes.values() if other == size)
        if times:
            parts.append(letter if times == 1 else f"{times}{letter}")
    numbers = sum(size for size in sizes.values() if isinstance(size, int))
    return " + ".join(parts + ([str(numbers)] if numbers else [])) or "0"


def _down(phase: Phase) -> str:
    """What goes down; what a client keeps is sent only to those that do not hold it yet."""
    sent = {name: size for name, size in phase.down.items() if name not in phase.kept}
    once = {name: size for name, size in phase.down.items() if name in phase.kept}
    return floats(sent) + (f" (+ {floats(once)} to newcomers)" if once else "")


def _algorithm(method: type[Algorithm]) -> dict[str, str]:
    phases = method().phases(1)  # a round like most: some methods send less in their first
    return {
        "name": method.name,
        "paper": method.paper,
        "solves": ", ".join(sorted(method.solves)),
        "phases": ", ".join(phase.name for phase in phases),
        "floats up": ", then ".join(floats(phase.up) for phase in phases),
        "floats down": ", then ".join(_down(phase) for phase in phases),
    }


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def catalogue() -> dict[str, Rows]:
    """Methods, problems, data sets and networks."""
    return {
        "algorithms": [_algorithm(method) for method in ALGORITHMS.values()],
        "problems": [
            {"name": name, "kind": problem.kind, "what": _first_line(problem)}
            for name, problem in PROBLEMS.items()
        ],
        "data": [{"name": name, "what": source.description} for name, source in SOURCES.items()],
        "models": [{"name": name, "what": _first_line(make)} for name, make in MODELS.items()],
    }
