"""Milliseconds per round: the simulator against a plain loop written here. Run: make bench.

One round is 16 clients of 120 rows, 12 local steps on batches of 10, FedAvg on cross-entropy. The
contestants take turns in one process; medians and ratios are printed, and the machine's load.
"""

import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedsaddle.algorithms import FedAvg, Members
from fedsaddle.data import FederatedData
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.engines.clients import reshuffled
from fedsaddle.federation import FederationOptions, Ledger
from fedsaddle.models import ModelOptions, build
from fedsaddle.problems import Risk
from fedsaddle.runs.rounds import Plan, run_round

CLIENTS, ROWS, STEPS, BATCH, REPEATS = 16, 120, 12, 10, 9
NETWORKS = {
    "logistic 784-10": ModelOptions(name="logistic"),
    "MLP 784-200-200-10": ModelOptions(name="mlp", arguments={"hidden": [200, 200]}),
}


def images() -> FederatedData:
    random = np.random.default_rng(0)
    clients = [
        (random.normal(size=(ROWS, 784)).astype(np.float32), random.integers(0, 10, ROWS))
        for _ in range(CLIENTS)
    ]
    return FederatedData.from_clients(clients, test=0, validation=0)


def plain_loop(network: nn.Module, data: FederatedData) -> Callable[[int], None]:
    """A client after the other, torch.optim.SGD, averaging state dictionaries."""

    def one_round(number: int) -> None:
        start = {name: value.clone() for name, value in network.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        random = np.random.default_rng(number)
        for client in range(CLIENTS):
            network.load_state_dict(start)
            optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
            drawn = reshuffled(data.train[client], STEPS * BATCH, random)
            for step in range(STEPS):
                rows = torch.from_numpy(drawn[step * BATCH : (step + 1) * BATCH])
                optimiser.zero_grad()
                loss = functional.cross_entropy(network(data.inputs[rows]), data.labels[rows])
                loss.backward()
                optimiser.step()
            for name, value in network.state_dict().items():
                total[name] += value / CLIENTS
        network.load_state_dict(total)

    return one_round


def simulator(network: nn.Module, data: FederatedData, **engine: object) -> Callable[[int], None]:
    method = FedAvg(learning_rate=0.1, local_steps=STEPS, batch_size=BATCH)
    problem = Risk(model=network)
    layout = problem.layout()
    able = torch.arange(CLIENTS)
    members = Members(able, data.names, able)
    plan = Plan(
        problem, method, layout, FederationOptions(), data.names, data.train.counts, members, 0
    )
    options = EngineOptions(**engine)
    machine = Simulation(problem, method, data, layout, members, options, seed=0)
    ledger = Ledger(layout)
    x, y = problem.start(torch.Generator())
    state = method.start(layout.flatten(x, y), layout, members)
    state["carried"] = layout.flatten_carried(problem.carried())

    def one_round(number: int) -> None:
        nonlocal state
        state, _ = run_round(plan, machine, ledger, state, number)

    return one_round


def main() -> None:
    torch.set_num_threads(1)
    data = images()
    table = []
    for title, options in NETWORKS.items():
        contestants = {"plain loop": plain_loop(build(options, (784,), 10), data)}
        for name, engine in (
            ("fedsaddle, loop", {"clients": "loop"}),
            ("fedsaddle, stack", {}),
            ("fedsaddle, stack, all cores", {"workers": os.cpu_count() or 1, "stack_size": 4}),
        ):
            contestants[name] = simulator(build(options, (784,), 10), data, **engine)
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(REPEATS + 1):
            for name, one_round in contestants.items():
                begun = time.perf_counter()
                one_round(number)
                if number:  # the first round warms up
                    times[name].append(1000 * (time.perf_counter() - begun))
        base = statistics.median(times["plain loop"])
        for name, values in times.items():
            median = statistics.median(values)
            table.append({"network": title, "runner": name, "ms": median, "ratio": base / median})
    print(f"{CLIENTS} clients x {STEPS} steps x batch {BATCH}")
    print(f"median of {REPEATS} interleaved rounds, load {os.getloadavg()[0]:.1f}")
    for row in table:
        print(f"{row['network']:20s} {row['runner']:28s} {row['ms']:8.1f} ms  x{row['ratio']:.2f}")
    print(json.dumps({"results": table, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
