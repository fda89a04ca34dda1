"""Which replies count: of the declared names and shapes, finite, and not too long."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms.base import Sums


@dataclass(frozen=True)
class Answer:
    """What came back from one client or a stack of them: row j of each vector is `clients[j]`."""

    clients: np.ndarray
    vectors: Mapping[str, Tensor]
    finite: Mapping[str, np.ndarray] | None = None
    """Whether each vector is numbers throughout, where an engine of our own has looked already, at
    shapes too."""
    moved: np.ndarray | None = None
    """How far each reply is from what the server holds, where an engine has measured it."""
    sums: Sums | None = None
    """The vectors added up, where an engine has done so."""

    def of(self, kept: np.ndarray) -> "Answer":
        """The answer of some of its clients."""
        if kept.all():
            return self
        rows = torch.from_numpy(kept)
        return Answer(
            self.clients[kept],
            {name: vector[rows] for name, vector in self.vectors.items()},
            None if self.finite is None else {name: f[kept] for name, f in self.finite.items()},
            None if self.moved is None else self.moved[kept],
        )


class Refusal(NamedTuple):
    """A reply that is not used, and why."""

    client: int
    reason: str


def screen(
    answers: Iterable[Answer], declared: Mapping[str, int], max_norm: float | None = None
) -> tuple[np.ndarray, Mapping[str, Tensor], list[Refusal]]:
    """The accepted clients and their stacked vectors in client order, and the refused ones."""
    good: list[Answer] = []
    refused: list[Refusal] = []
    for answer in answers:
        reason = _misshapen(answer, declared)
        if reason:
            refused += [Refusal(int(client), reason) for client in answer.clients]
            continue
        keep = np.ones(len(answer.clients), dtype=bool)
        for name in declared:
            for row in np.flatnonzero(keep & ~_finite(answer, name)):
                keep[row] = False
                refused.append(Refusal(int(answer.clients[row]), f"'{name}' is not finite"))
            if max_norm is not None:
                norms = torch.linalg.vector_norm(answer.vectors[name].double(), dim=1).numpy()
                for row in np.flatnonzero(keep & (norms > max_norm)):
                    keep[row] = False
                    reason = f"'{name}' has norm {norms[row]:.3g}, above {max_norm:g}"
                    refused.append(Refusal(int(answer.clients[row]), reason))
        good.append(answer.of(keep))
    clients = np.concatenate([np.zeros(0, np.int64), *(answer.clients for answer in good)])
    order = np.argsort(clients, kind="stable")
    if not good:
        return clients, {}, refused
    if len(good) == 1 and bool((np.diff(clients) > 0).all()):  # as it should be: nothing is copied
        vectors = good[0].vectors
        if vectors.keys() != declared.keys():
            vectors = {name: vectors[name] for name in declared}
        return clients, vectors, refused
    by_client = torch.from_numpy(order)
    stacked = {
        name: torch.cat([answer.vectors[name] for answer in good])[by_client] for name in declared
    }
    return clients[order], stacked, refused


def _finite(answer: Answer, name: str) -> np.ndarray:
    if answer.finite is not None:
        return answer.finite[name]
    found: np.ndarray = answer.vectors[name].isfinite().all(dim=1).numpy()
    return found


def _misshapen(answer: Answer, declared: Mapping[str, int]) -> str | None:
    if answer.finite is not None:
        return None
    for name, length in declared.items():
        if name not in answer.vectors:
            return f"'{name}' is missing"
        shape = tuple(answer.vectors[name].shape)
        if shape != (len(answer.clients), length):
            return f"'{name}' has shape {shape[1:]}, not ({length},)"
    return None
