# /// script
# dependencies = ["flwr[simulation]==1.41.0", "torch"]
# ///
"""FedAvg in Flower's simulation: Ray actors with one processor and one thread each."""

import os
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Turns
from torch.nn import functional
from workload import BATCH, CLIENTS, RATE, ROWS, asked_network, clients, torch_network

client_app, server_app = ClientApp(), ServerApp()
name = asked_network()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's local steps."""
    torch.set_num_threads(1)
    network = torch_network(name)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = map(torch.from_numpy, clients()[int(context.node_config["partition-id"])])
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
    for rows in torch.randperm(ROWS).split(BATCH):
        optimiser.zero_grad()
        outputs = network(inputs[rows].unsqueeze(1))
        functional.cross_entropy(outputs, labels[rows]).backward()
        optimiser.step()
    content = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": ROWS}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Rounds, one at a time."""
    arrays = ArrayRecord(torch_network(name).state_dict())
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    turns = Turns(flwr=version("flwr"), ray=version("ray"), torch=torch.__version__)
    while turns.next():
        arrays = strategy.start(grid, arrays, num_rounds=1).arrays


if __name__ == "__main__":
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    run_simulation(
        server_app,
        client_app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
