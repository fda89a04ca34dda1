"""Which replies count: of the declared names and shapes, finite, and not too long."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fedsaddle.algorithms.base import Vectors


@dataclass(frozen=True)
class Answer:
    """What came back from one client or a stack of them: row j of each vector is `clients[j]`."""

    clients: np.ndarray
    vectors: Vectors


class Refusal(NamedTuple):
    """A reply that is not used, and why."""

    client: int
    reason: str


def screen(
    answers: Iterable[Answer], declared: Mapping[str, int], max_norm: float | None = None
) -> tuple[np.ndarray, Vectors, list[Refusal]]:
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
            norms = torch.linalg.vector_norm(answer.vectors[name].double(), dim=1).cpu().numpy()
            for row in np.flatnonzero(keep & ~np.isfinite(norms)):
                keep[row] = False
                refused.append(Refusal(int(answer.clients[row]), f"'{name}' is not finite"))
            if max_norm is not None:
                for row in np.flatnonzero(keep & (norms > max_norm)):
                    keep[row] = False
                    reason = f"'{name}' has norm {norms[row]:.3g}, above {max_norm:g}"
                    refused.append(Refusal(int(answer.clients[row]), reason))
        kept = torch.from_numpy(keep)
        vectors = {name: answer.vectors[name][kept] for name in declared}
        good.append(Answer(answer.clients[keep], vectors))
    clients = np.concatenate([np.zeros(0, np.int64), *(answer.clients for answer in good)])
    order = np.argsort(clients, kind="stable")
    if not good:
        return clients, {}, refused
    by_client = torch.from_numpy(order)
    stacked = {
        name: torch.cat([answer.vectors[name] for answer in good])[by_client] for name in declared
    }
    return clients[order], stacked, refused


def _misshapen(answer: Answer, declared: Mapping[str, int]) -> str | None:
    for name, length in declared.items():
        if name not in answer.vectors:
            return f"'{name}' is missing"
        shape = tuple(answer.vectors[name].shape)
        if shape != (len(answer.clients), length):
            return f"'{name}' has shape {shape[1:]}, not ({length},)"
    return None
