# /// script
# dependencies = ["fluke-fl==0.8.1"]
# ///
"""FedAvg in fluke: one process with one thread, one client after another."""

from importlib.metadata import version
from typing import Any

import torch
from protocol import Turns
from workload import BATCH, CLIENTS, RATE, asked_network, clients, torch_network

SETTINGS = {
    "client": {
        "batch_size": BATCH,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": RATE},
        "scheduler": {"name": "StepLR", "gamma": 1.0, "step_size": 1},
    },
    "server": {"weighted": True},
}


def name_operators() -> None:
    """Let torchvision be imported, as fluke does, where its build does not fit the one of torch.

    The published build of torchvision wants CUDA; without it the import stops at these two
    operators, which nothing here uses.
    """
    for operator in ("nms", "qnms"):
        arguments = "(Tensor boxes, Tensor scores, float overlap) -> Tensor"
        torch.library.define(f"torchvision::{operator}", arguments)


def main() -> None:
    name_operators()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import FastDataLoader
    from fluke.evaluation import ClassificationEval
    from fluke.server import EarlyStopping
    from fluke.utils import FederationObserver

    class Split:
        """The clients' rows as they are."""

        def assign(self, n_clients: int, batch_size: int) -> tuple[Any, ...]:
            loaders = [
                FastDataLoader(
                    torch.from_numpy(inputs).unsqueeze(1),
                    torch.from_numpy(labels),
                    num_labels=10,
                    batch_size=batch_size,
                    shuffle=True,
                )
                for inputs, labels in clients()
            ]
            return (loaders, [None] * n_clients), None

    class OneByOne(FederationObserver):
        def end_round(self, round: int) -> None:
            if not turns.next():
                raise EarlyStopping(round)

    torch.set_num_threads(1)  # two are slower as soon as anything else runs
    torch.manual_seed(0)
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_evaluator(ClassificationEval(eval_every=10**9, n_classes=10))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    settings = DDict(SETTINGS | {"model": torch_network(asked_network())})
    algorithm = FedAVG(n_clients=CLIENTS, data_splitter=Split(), hyper_params=settings)
    algorithm.set_callbacks([OneByOne()])
    turns = Turns(fluke=version("fluke-fl"), torch=torch.__version__)
    if turns.next():
        algorithm.run(n_rounds=10**9, eligible_perc=1.0)


if __name__ == "__main__":
    main()
