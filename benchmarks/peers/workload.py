"""What every contestant computes: FedAvg on cross-entropy, the same data, the same networks.

One round is 16 clients of 120 rows, each with 12 steps of SGD on batches of 10.
"""

import argparse
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn

CLIENTS, ROWS, STEPS, BATCH, RATE = 16, 120, 12, 10, 0.1
NETWORKS = ("lenet-5", "mlp")


@cache
def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Every client's pictures `(rows, 28, 28)` and labels from 0 to 9."""
    random = np.random.default_rng(0)
    return [
        (random.normal(size=(ROWS, 28, 28)).astype(np.float32), random.integers(0, 10, ROWS))
        for _ in range(CLIENTS)
    ]


def asked_network() -> str:
    """The network named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default=NETWORKS[0])
    return str(parser.parse_known_args()[0].network)


def torch_network(name: str) -> "nn.Sequential":
    """The network for pictures `(n, 1, 28, 28)`, as fedsaddle's models of that name are."""
    from torch import nn

    if name == "mlp":
        wide, hidden = nn.Linear(784, 200), nn.Linear(200, 200)
        return nn.Sequential(nn.Flatten(), wide, nn.ReLU(), hidden, nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
