"""FedAvg in fedsaddle, or, with --plain, in the plain loop that `fedsaddle bench` compares with."""

import argparse

import torch
from protocol import Turns
from workload import BATCH, CLIENTS, NETWORKS, STEPS, clients

from fedsaddle.bench.cases import Case, Size
from fedsaddle.bench.plain import plain_loop
from fedsaddle.bench.simulator import Simulator
from fedsaddle.data import FederatedData
from fedsaddle.engines import EngineOptions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default=NETWORKS[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--plain", type=int, metavar="THREADS")
    asked = parser.parse_args()
    case = Case(asked.network, "fedavg", Size(CLIENTS, STEPS, BATCH))
    data = FederatedData.from_clients(clients(), test=0, validation=0)
    turns, number = Turns(torch=torch.__version__), 0
    if asked.plain:
        torch.set_num_threads(asked.plain)
        one_round = plain_loop(case, data)
    else:
        options = EngineOptions(device="cpu", workers=asked.workers, compile=asked.compile)
        one_round = Simulator(case, data, options)
    while turns.next():
        one_round(number)
        number += 1
    if isinstance(one_round, Simulator):
        one_round.close()


if __name__ == "__main__":
    main()
