"""Step sizes that change with the round."""

from dataclasses import dataclass


def falling(start: float, power: float, number: int) -> float:
    """`start / (number + 1)^power`, for round `number` from 0.

    >>> falling(0.8, 0.5, 0), falling(0.8, 0.5, 3), falling(0.8, 0, 3)
    (0.8, 0.4, 0.8)
    """
    return float(start / (number + 1) ** power)


@dataclass(frozen=True)
class Stages:
    """Stages of `rounds`, `rounds·growth`, `rounds·growth²`, … rounds.

    >>> stages = Stages(rounds=2, growth=2.0)   # rounds 0-1, 2-5, 6-13, ...
    >>> [stages.stage(t) for t in (0, 1, 2, 5, 6)]
    [0, 0, 1, 1, 2]
    >>> stages.begins(2), stages.ends(5), stages.position(5)
    (True, True, 4)
    """

    rounds: int
    growth: float = 1.0

    def _place(self, number: int) -> tuple[int, int, int]:
        """The stage that round `number` is in, its first round, and the next stage's."""
        if self.growth == 1.0:
            stage, first = divmod(number, self.rounds)
            return stage, number - first, number - first + self.rounds
        stage, first = 0, 0
        while number >= (after := first + round(self.rounds * self.growth**stage)):
            stage, first = stage + 1, after
        return stage, first, after

    def stage(self, number: int) -> int:
        return self._place(number)[0]

    def begins(self, number: int) -> bool:
        return number == self._place(number)[1]

    def ends(self, number: int) -> bool:
        return number + 1 == self._place(number)[2]

    def position(self, number: int) -> int:
        """Which round of its stage this is, from 1."""
        return number - self._place(number)[1] + 1
