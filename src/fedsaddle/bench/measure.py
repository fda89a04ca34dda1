"""Contestants take turns, so that whatever else the machine does hits all of them alike."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fedsaddle.bench.cases import Case
from fedsaddle.bench.plain import plain_loop
from fedsaddle.bench.simulator import Simulator
from fedsaddle.data import FederatedData
from fedsaddle.engines import EngineOptions

PLAIN = "plain loop"
WARM_UP = 2
"""Rounds that are not counted: they compile and fill caches. A method's very first round may differ
from the others."""
TURN, LEAST = 3, 0.2
"""Rounds in a row before the next contestant's turn, and seconds: a run does its rounds one right
after the other, and the first ones of a turn find caches full of what others left there."""

OneRound = Callable[[int], float]
"""Does round number so-and-so and says how many seconds it took."""


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    network: str
    method: str
    runner: str
    seconds: list[float]
    first: float
    """Seconds of the first round, with compilation."""
    profile: dict[str, float] | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    def row(self, base: float) -> dict[str, Any]:
        """As it is stored; `base` is the plain loop's median."""
        return {
            "network": self.network,
            "method": self.method,
            "runner": self.runner,
            "median_ms": 1000 * self.median,
            "minimum_ms": 1000 * self.minimum,
            "ratio": base / self.median,
            "first_ms": 1000 * self.first,
            "profile": self.profile,
            "rounds_ms": [1000 * seconds for seconds in self.seconds],
        }


def take_turns(
    contestants: Mapping[str, OneRound],
    rounds: int,
    warmed_up: Callable[[str], None] = lambda name: None,
    tick: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Every contestant's first round, and the seconds of so many rounds after the warm-up.

    Of short rounds there are more, for a turn to be long enough.

    >>> first, seconds = take_turns({"a": lambda number: float(number)}, rounds=4)
    >>> first, seconds
    ({'a': 0.0}, {'a': [2.0, 3.0, 4.0, 5.0]})
    """
    first = {}
    for name, one_round in contestants.items():
        tick(name)
        first[name], *_ = [one_round(number) for number in range(WARM_UP)]
        warmed_up(name)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for start in range(0, rounds, TURN):
        for name, one_round in contestants.items():
            tick(name)
            end, turn = min(start + TURN, rounds), 0.0
            while len(seconds[name]) < end or turn < LEAST:
                seconds[name].append(one_round(WARM_UP + len(seconds[name])))
                turn += seconds[name][-1]
    return first, seconds


def timed(one_round: Callable[[int], object], threads: int | None = None) -> OneRound:
    """The round with its seconds, in so many threads of this process."""

    def run(number: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        begun = time.perf_counter()
        one_round(number)
        seconds = time.perf_counter() - begun
        torch.set_num_threads(before)
        return seconds

    return run


def runners(workers: int, compiled: bool) -> dict[str, EngineOptions]:
    """The simulator's own rows: one worker and all, without and with compiled steps."""
    found = {}
    for count in sorted({1, workers}):
        for compile_steps in (False, True) if compiled else (False,):
            name = f"fedsaddle, {count} worker{'s' if count > 1 else ''}"
            name += ", compiled" if compile_steps else ""
            found[name] = EngineOptions(device="cpu", workers=count, compile=compile_steps)
    return found


@contextmanager
def simulators(
    case: Case, data: FederatedData, options: Mapping[str, EngineOptions]
) -> Iterator[dict[str, Simulator]]:
    with ExitStack() as open_ones:
        found = {}
        for name, chosen in options.items():
            found[name] = Simulator(case, data, chosen)
            open_ones.callback(found[name].close)
        yield found


def measure(
    case: Case,
    rounds: int,
    options: Mapping[str, EngineOptions],
    tick: Callable[[str], None] = lambda name: None,
) -> list[Measured]:
    """The plain loop and the simulator in each of these ways, in turns."""
    data = case.data()
    with simulators(case, data, options) as ours:
        contestants = {PLAIN: timed(plain_loop(case, data), threads=1)}
        contestants |= {name: timed(simulator) for name, simulator in ours.items()}

        def warmed_up(name: str) -> None:
            if name in ours:
                ours[name].forget()

        first, seconds = take_turns(contestants, max(rounds, case.size.rounds), warmed_up, tick)
        return [
            Measured(
                case.network,
                case.method,
                name,
                seconds[name],
                first[name],
                ours[name].profile() if name in ours else None,
            )
            for name in contestants
        ]
