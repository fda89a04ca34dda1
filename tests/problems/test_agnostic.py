"""Agnostic learning: who solves it, what it picks by, and that the worst client gains."""

import numpy as np
import pytest
from torch import nn

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError
from fedsaddle.problems import Agnostic
from fedsaddle.runs.config import resolve


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """Seven clients whose label is `a > 0`, and one whose label is `a > 1.5`."""
    random = np.random.default_rng(0)
    clients = []
    for client in range(8):
        a = random.uniform(-2, 4, (400, 1)).astype(np.float32)
        clients.append((a, (a[:, 0] > (1.5 if client == 7 else 0)).astype(int)))
    return FederatedData.from_clients(clients)


def test_it_is_for_the_methods_with_a_dual_on_the_server() -> None:
    solvers = {name for name, method in ALGORITHMS.items() if "agnostic" in method.solves}
    assert solvers == {"afl", "drfa", "drfa-prox", "drfa-ga", "q-fedavg"}
    assert all("risk" in ALGORITHMS[name].solves for name in solvers)
    assert resolve({"problem": {"name": "agnostic"}}).algorithm["name"] == "drfa"
    with pytest.raises(UserError, match=r"'fedavg' does not solve 'agnostic'; these do: .*drfa"):
        resolve({"problem": {"name": "agnostic"}, "algorithm": {"name": "fedavg"}})


def test_the_worst_client_gains(data: FederatedData) -> None:
    plain = fedsaddle.train("risk", data, ALGORITHMS["fedavg"](learning_rate=0.5), rounds=60)
    method = ALGORITHMS["drfa"](learning_rate=0.5, dual_rate=0.02)
    fair = fedsaddle.train("agnostic", data, method, rounds=60)
    before = plain.evaluation["summary"]["test/worst_accuracy"]
    after = fair.evaluation["summary"]["test/worst_accuracy"]
    assert after > before + 0.04, (before, after)
    weights = {name: fair.history[-1][f"lambda/{name}"] for name in data.names}
    assert max(weights, key=lambda name: weights[name]) == "client-7"


def test_the_best_round_is_the_worst_clients(data: FederatedData) -> None:
    result = fedsaddle.train("agnostic", data, rounds=12, evaluation={"every": 3})
    rows = [row for row in result.history if row["round"]]
    best = max(rows, key=lambda row: row["validation/worst_accuracy"])
    assert result.best_round == best["round"]


def test_without_validation_rows_it_still_runs(data: FederatedData) -> None:
    clients = [(np.eye(2, dtype=np.float32), [0, 1])] * 2
    bare = FederatedData.from_clients(clients, test=0, validation=0)
    result = fedsaddle.train(Agnostic(model=nn.Linear(2, 1)), bare, rounds=2)
    assert result.best_round is not None


def test_groups_are_weighed_together(data: FederatedData) -> None:
    groups = {"many": list(data.names[:7]), "one": [data.names[7]]}
    result = fedsaddle.train("agnostic", data, rounds=3, federation={"groups": groups})
    assert {name for name in result.history[-1] if name.startswith("lambda/")} == {
        "lambda/many",
        "lambda/one",
    }
