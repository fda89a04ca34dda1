"""Published federated minimax methods, one file a family."""

from fedsaddle.algorithms.base import Algorithm, Members, Phase, Replies, Round
from fedsaddle.algorithms.coda import CODASCA, CODAPlus
from fedsaddle.algorithms.local import FedAvg, LocalSGDA

ALGORITHMS: dict[str, type[Algorithm]] = {
    method.name: method for method in (FedAvg, LocalSGDA, CODAPlus, CODASCA)
}

__all__ = [
    "ALGORITHMS",
    "CODASCA",
    "Algorithm",
    "CODAPlus",
    "FedAvg",
    "LocalSGDA",
    "Members",
    "Phase",
    "Replies",
    "Round",
]
