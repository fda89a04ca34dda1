# /// script
# dependencies = ["pfl[pytorch]==0.6.0"]
# ///
"""FedAvg in pfl-research: two processes with one thread each, which share the cohort.

pfl distributes by torch.distributed when it finds the variables that `torchrun` sets. The first
process starts the second, and passes the driver's "round" on to it, so that both wait in between.
"""

import os
import socket
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import torch
from protocol import Turns
from torch.nn import functional
from workload import BATCH, CLIENTS, RATE, asked_network, clients, torch_network

PROCESSES = 2


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def join(rank: int, port: str) -> None:
    """Set what pfl reads when it is imported."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "bench",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
    }


class First(Turns):
    """The process that talks to the driver and passes every line on to the other processes."""

    def __init__(self, port: str) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], "--port", port, "--rank"]
        self._others = [
            subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, text=True)
            for rank in range(1, PROCESSES)
        ]
        super().__init__(pfl=version("pfl"), torch=torch.__version__)

    def next(self) -> bool:
        wanted = super().next()
        for other in self._others:
            assert other.stdin is not None
            print("round" if wanted else "end", file=other.stdin, flush=True)
        return wanted


class Other:
    """Any other process: it does as the first one says."""

    def next(self) -> bool:
        return sys.stdin.readline().strip() == "round"


def train(turns: First | Other) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch_network(asked_network())

        def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.layers(inputs), labels)

        def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict:
            return {}

    class OneByOne(TrainingProcessCallback):
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            return not turns.next(), Metrics()

    rows = [
        (torch.from_numpy(inputs).unsqueeze(1), torch.from_numpy(labels))
        for inputs, labels in clients()
    ]
    order = iter(range(10**9))
    data = FederatedDataset(
        make_dataset_fn=lambda user: users[user],
        user_sampler=lambda: next(order) % CLIENTS,
    )
    users = [Dataset(raw_data=pair, user_id=str(user)) for user, pair in enumerate(rows)]
    torch.manual_seed(0)
    network = Network()
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    if turns.next():
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=10**9,
                evaluation_frequency=10**9,
                train_cohort_size=CLIENTS,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH
            ),
            callbacks=[OneByOne()],
            send_metrics_to_platform=False,
        )


def main() -> None:
    torch.set_num_threads(1)
    np.random.seed(0)
    if "--rank" in sys.argv:
        join(int(sys.argv[-1]), sys.argv[sys.argv.index("--port") + 1])
        train(Other())
    else:
        port = free_port()
        join(0, port)
        train(First(port))


if __name__ == "__main__":
    main()
