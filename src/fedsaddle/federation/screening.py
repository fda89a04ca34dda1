"""Which replies count: of the declared names and shapes, finite, and not too long."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms.base import Means


class Answer(NamedTuple):
    """What came back from one client or a stack of them: row j of each vector is `clients[j]`."""

    clients: np.ndarray
    vectors: Mapping[str, Tensor]
    broken: Mapping[str, Collection[int]] | None = None
    """For each vector the rows that are not numbers throughout, if any, where an engine of our own
    has looked for them already, and at names, shapes and the order of clients too."""
    moved: np.ndarray | None = None
    """How far each reply is from what the server holds, where an engine has measured it."""
    means: Means | None = None
    """The means of the vectors, where an engine has taken them."""

    def without(self, rows: Collection[int]) -> "Answer":
        """The answer of the other clients."""
        kept = np.delete(np.arange(len(self.clients)), [*rows])
        return Answer(
            self.clients[kept],
            {name: vector[kept] for name, vector in self.vectors.items()},
            moved=None if self.moved is None else self.moved[kept],
        )


class Refusal(NamedTuple):
    """A reply that is not used, and why."""

    client: int
    reason: str


def screen(
    answers: Sequence[Answer], declared: Mapping[str, int], max_norm: float | None = None
) -> tuple[np.ndarray, Mapping[str, Tensor], list[Refusal]]:
    """The accepted clients and their stacked vectors in client order, and the refused ones."""
    if len(answers) == 1 and answers[0].broken == {} and max_norm is None:
        return answers[0].clients, answers[0].vectors, []
    good: list[Answer] = []
    refused: list[Refusal] = []
    for answer in answers:
        if answer.broken is None and (reason := _misshapen(answer, declared)):
            refused += [Refusal(int(client), reason) for client in answer.clients]
            continue
        reasons: dict[int, str] = {}
        for name in declared:
            for row in _broken(answer, name):
                reasons.setdefault(row, f"'{name}' is not finite")
            if max_norm is not None:
                norms = torch.linalg.vector_norm(answer.vectors[name].double(), dim=1).tolist()
                for row, norm in enumerate(norms):
                    if norm > max_norm:
                        reasons.setdefault(row, f"'{name}' has norm {norm:.3g}, above {max_norm:g}")
        for row, reason in reasons.items():
            refused.append(Refusal(int(answer.clients[row]), reason))
        good.append(answer.without(reasons) if reasons else answer)
    if not good:
        return np.zeros(0, np.int64), {}, refused
    if len(good) == 1 and (own := good[0].clients.tolist()) == sorted(own):  # nothing is copied
        vectors = good[0].vectors
        if len(vectors) > len(declared):
            vectors = {name: vectors[name] for name in declared}
        return good[0].clients, vectors, refused
    clients = np.concatenate([answer.clients for answer in good])
    order = np.argsort(clients, kind="stable")
    by_client = torch.from_numpy(order)
    stacked = {
        name: torch.cat([answer.vectors[name] for answer in good])[by_client] for name in declared
    }
    return clients[order], stacked, refused


def _broken(answer: Answer, name: str) -> Collection[int]:
    if answer.broken is not None:
        return answer.broken.get(name, ())
    finite: list[bool] = answer.vectors[name].isfinite().all(dim=1).tolist()
    return [row for row, good in enumerate(finite) if not good]


def _misshapen(answer: Answer, declared: Mapping[str, int]) -> str | None:
    for name, length in declared.items():
        if name not in answer.vectors:
            return f"'{name}' is missing"
        shape = tuple(answer.vectors[name].shape)
        if shape != (len(answer.clients), length):
            return f"'{name}' has shape {shape[1:]}, not ({length},)"
    return None
