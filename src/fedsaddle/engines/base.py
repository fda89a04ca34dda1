"""What a run asks of an engine. Nothing else differs between one laptop and ten hospitals."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from torch import Tensor

from fedsaddle.algorithms import Phase
from fedsaddle.algorithms.base import Vectors
from fedsaddle.federation import Answer
from fedsaddle.metrics import SiteEvaluation


class Engine(Protocol):
    def ask(
        self,
        phase: Phase,
        number: int,
        clients: np.ndarray,
        received: Vectors,
        weights: Tensor | None = None,
        measured: bool = False,
    ) -> list[Answer]:
        """These clients' replies in round `number`; their new memory waits for `commit`.

        With weights, an engine may take their means on the way, each client counted by its weight,
        and keep single ones only where somebody looks at them. `measured`: how far they are from
        what the server holds is asked for.
        """
        ...

    def commit(self, clients: Tensor) -> None:
        """These clients' replies were used: their new memory becomes theirs."""
        ...

    def evaluate(self, z: Tensor, carried: Tensor, split: str) -> list[SiteEvaluation]:
        """Every site's own counts and sums for one split ("train", "validation", "test")."""
        ...

    def extra(self, z: Tensor, carried: Tensor, split: str) -> dict[str, float]:
        """The problem's own metrics over one split's rows."""
        ...

    def objective(self, z: Tensor, carried: Tensor) -> float:
        """`mean_i f_i(z)` over training rows (of a fixed sample of clients when there are many)."""
        ...

    def memory_state(self) -> Vectors:
        """All clients' memory, for a checkpoint."""
        ...

    def load_memory(self, vectors: Mapping[str, Tensor]) -> None:
        """Take up the memory of a checkpoint."""
        ...

    def close(self) -> None: ...
