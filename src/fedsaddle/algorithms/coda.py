"""CODA: CODA+ with the dual variable recomputed at every stage.

Guo, Liu, Yuan, Shen, Liu and Yang, "Communication-Efficient Distributed Stochastic AUC
Maximization with Deep Neural Networks", ICML 2020, Algorithm 1.

    for each stage but the first, before its first round:
      1. every client scores a fresh minibatch
      2. α ← (mean score of the negatives) − (mean score of the positives)
    otherwise as in coda_plus.py
"""

from typing import ClassVar

from fedsaddle.algorithms.base import Client, Phase, Replies, Round, Size, Vectors
from fedsaddle.algorithms.coda_plus import CODAPlus
from fedsaddle.problems.base import Kind


class CODA(CODAPlus):
    """CODA+ whose dual variable is set to its optimum at the start of every later stage.

    `α ← b − a`, the scores' means over the negatives and the positives of one fresh minibatch of
    every client: four sums each, and the problem says what follows from their total. (A problem
    with `closed_form` has no dual variable to set: the sums are then not used.)

    >>> [phase.name for phase in CODA(stage_rounds=10).phases(10)]
    ['dual', 'steps']
    """

    name: ClassVar[str] = "coda"
    paper: ClassVar[str] = "Guo et al. 2020, Algorithm 1"
    solves: ClassVar[frozenset[Kind]] = frozenset({"auc"})

    def phases(self, number: int) -> tuple[Phase, ...]:
        phases = super().phases(number)
        if number == 0 or not self.stages.begins(number):
            return phases
        down: dict[str, Size] = {"z": "point"}
        up: dict[str, Size] = {"statistics": 4}
        dual = Phase("dual", down, up, self.score, self.set_dual, trains=False, everyone=True)
        return (dual, *phases)

    def score(
        self, at: Round, received: Vectors, memory: Vectors, client: Client
    ) -> tuple[Vectors, Vectors]:
        (batch,) = client.minibatches(1)
        return {"statistics": client.statistics(received["z"], batch)}, memory

    def set_dual(self, at: Round, state: Vectors, replies: Replies) -> Vectors:
        x, y = at.layout.unflatten(state["z"], state["carried"])
        best = at.problem.refresh(x | y, replies.sum("statistics"))
        return state | {"z": at.layout.flatten(x, {name: best[name] for name in y})}
