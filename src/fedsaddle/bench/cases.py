"""What is measured: a network, a method, and how much a round is. The data are made up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsaddle.algorithms import ALGORITHMS, Algorithm, Members, Round
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError, nearest
from fedsaddle.federation import FederationOptions, answering, select
from fedsaddle.models import ModelOptions, build
from fedsaddle.problems import PROBLEMS, Problem
from fedsaddle.runs.rounds import Plan

CHARACTERS = 86
POSITIVE = 0.1
"""The share of positive rows where the problem is AUC."""


@dataclass(frozen=True)
class Network:
    """A network by name and the rows that it is given."""

    model: ModelOptions
    input_shape: tuple[int, ...]
    classes: int = 10

    def rows(self, count: int, random: np.random.Generator) -> np.ndarray:
        if self.model.name == "char-gru":
            return random.integers(0, CHARACTERS, (count, *self.input_shape))
        return random.uniform(-1, 1, (count, *self.input_shape)).astype(np.float32)


@dataclass(frozen=True)
class Size:
    """How much a round is; a client's rows are one epoch of its local steps."""

    clients: int = 16
    steps: int = 12
    batch: int = 10
    selected: int = 0
    """Clients asked in each phase, of whom some answer; 0: all, and all do."""
    rounds: int = 0
    """Rounds to be measured at least, where they are unlike each other."""

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    def tiny(self) -> "Size":
        """The same with little work, to try out that everything runs."""
        return Size(4 * self.clients // 16, 2, 4, self.selected and 4)


@dataclass(frozen=True)
class Method:
    """A method, the problem it solves, and the settings that keep all rounds alike."""

    name: str
    problem: str
    settings: dict[str, Any]
    size: Size = Size()


NETWORKS = {
    "lenet-5": Network(ModelOptions(name="lenet-5"), (28, 28)),
    "mlp": Network(ModelOptions(name="mlp", arguments={"hidden": [200, 200]}), (28, 28)),
    "logistic": Network(ModelOptions(name="logistic"), (28, 28)),
    "resnet-20": Network(ModelOptions(name="resnet-20"), (3, 32, 32)),
    "char-gru": Network(ModelOptions(name="char-gru"), (80,), CHARACTERS),
}
METHODS = {
    "fedavg": Method("fedavg", "risk", {"learning_rate": 0.1}),
    "codasca": Method("codasca", "auc", {"learning_rate": 0.1, "stage_rounds": 10**6}),
    "cdma-ada": Method("cdma-ada", "auc", {"learning_rate": 0.1}),
    "local-scgdam": Method("local-scgdam", "compositional-auc", {"learning_rate": 0.01}),
    # the setting of the paper's figure 1: 500 clients sorted by label, 8 selected
    "cdma-mnist": Method(
        "cdma-ada", "auc", {"learning_rate": 0.1}, Size(500, selected=8, rounds=30)
    ),
}
"""The methods that are measured, by what the table calls them."""


@dataclass(frozen=True)
class Case:
    """One row group of the table: a network and a method."""

    network: str
    method: str
    size: Size

    def data(self) -> FederatedData:
        """Made-up rows; where some clients are selected, sorted by label as in the paper."""
        random = np.random.default_rng(0)
        network, size = NETWORKS[self.network], self.size
        total = size.clients * size.rows
        if METHODS[self.method].problem == "risk":
            labels = random.integers(0, network.classes, total)
        else:
            labels = (np.arange(total) < POSITIVE * total).astype(np.int64)
            labels = labels if size.selected else random.permutation(labels)
        clients = [(network.rows(size.rows, random), own) for own in np.split(labels, size.clients)]
        return FederatedData.from_clients(clients, test=0, validation=0)

    def problem(self, data: FederatedData) -> Problem:
        problem = PROBLEMS[METHODS[self.method].problem]
        outputs = NETWORKS[self.network].classes if problem.kind == "risk" else 1
        model = build(NETWORKS[self.network].model, data.input_shape, outputs)
        return problem(model=model).prepare(data)

    def algorithm(self) -> Algorithm:
        method, size = METHODS[self.method], self.size
        sizes = {"local_steps": size.steps, "batch_size": size.batch}
        return ALGORITHMS[method.name](**sizes, **method.settings)

    def plan(self, data: FederatedData, problem: Problem) -> Plan:
        """What the simulator's rounds follow, and from which the plain loop takes its clients."""
        able = torch.arange(len(data.names))
        federation = FederationOptions()
        if self.size.selected:
            federation = FederationOptions(
                clients_per_round=self.size.selected, availability="uniform-response"
            )
        members = Members(able, data.names, able)
        layout = problem.layout()
        rows = data.train.counts
        return Plan(problem, self.algorithm(), layout, federation, data.names, rows, members, 0)


def taking_part(plan: Plan, number: int) -> list[list[int]]:
    """The clients that answer in each phase of round `number`."""
    at = Round(number, plan.seed, plan.layout, plan.problem, plan.members)
    clients = []
    for phase in phases_of_round(plan.algorithm, plan.problem, number):
        selected, _ = select(plan.federation, at, phase, {})
        clients.append(answering(plan.federation, selected, plan.names, at, phase.draw_key))
    return [own.tolist() for own in clients]


def cases(networks: Sequence[str], methods: Sequence[str], tiny: bool = False) -> list[Case]:
    """The cases asked for; a side that is left out means LeNet-5, or FedAvg.

    With neither: FedAvg on every network, and every method on LeNet-5.

    >>> [(case.network, case.method) for case in cases(["mlp", "logistic"], [])]
    [('mlp', 'fedavg'), ('logistic', 'fedavg')]
    """
    for option, given, known in (
        ("--networks", networks, list(NETWORKS)),
        ("--methods", methods, list(METHODS)),
    ):
        for name in given:
            if name not in known:
                raise UserError(f"{option}: there is no '{name}'; {nearest(name, known)}")
    if networks or methods:
        pairs = [(n, m) for m in methods or ["fedavg"] for n in networks or ["lenet-5"]]
    else:
        pairs = [(network, "fedavg") for network in NETWORKS]
        pairs += [("lenet-5", method) for method in METHODS if method != "fedavg"]
    sizes = {name: method.size.tiny() if tiny else method.size for name, method in METHODS.items()}
    return [Case(network, method, sizes[method]) for network, method in pairs]
