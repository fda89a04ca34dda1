"""What a round costs with more clients, what memory a long run needs, and how fast a run starts.

    make bench-growth

CODASCA, whose clients remember a vector each, with a linear model: rounds are short, so that
whatever depends on the number of clients shows.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedsaddle
from fedsaddle.algorithms import CODASCA, Members
from fedsaddle.bench import describe_machine
from fedsaddle.bench.measure import take_turns, timed
from fedsaddle.bench.simulator import Simulator
from fedsaddle.data import FederatedData, Rows
from fedsaddle.engines import EngineOptions
from fedsaddle.federation import FederationOptions
from fedsaddle.problems import AUC, Problem
from fedsaddle.runs.folder import write_json
from fedsaddle.runs.rounds import Plan
from fedsaddle.runs.watching import Silent

FEATURES, ROWS = 20, 12
TABLE = 10_000
"""Rows in memory; every client has some of them, and a million clients have some together."""
START = """
import time
begun = time.perf_counter()
import torch, fedsaddle
fedsaddle.train
imported = time.perf_counter()
fedsaddle.train("auc", "breast-cancer", rounds=1)
print(imported - begun, time.perf_counter() - imported)
"""


def table() -> tuple[torch.Tensor, torch.Tensor]:
    random, labels = np.random.default_rng(0), np.arange(TABLE) % 2
    rows = random.normal(size=(TABLE, FEATURES)).astype(np.float32) + labels[:, None]
    return torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels)


@dataclass(frozen=True)
class Crowd:
    """So many clients, of whom some take part in a round."""

    clients: int
    selected: int

    def data(self) -> FederatedData:
        rows = np.random.default_rng(1).integers(TABLE, size=ROWS * self.clients)
        offsets, nobody = ROWS * np.arange(self.clients + 1), Rows.empty(self.clients)
        names = tuple(f"client-{k}" for k in range(self.clients))
        return FederatedData(
            *table(), Rows(rows, offsets), nobody, nobody, names=names, classes=("0", "1")
        )

    def problem(self, data: FederatedData) -> Problem:
        return AUC(model=nn.Linear(FEATURES, 1)).prepare(data)

    def plan(self, data: FederatedData, problem: Problem) -> Plan:
        able = torch.arange(self.clients)
        return Plan(
            problem,
            CODASCA(local_steps=4, batch_size=4, stage_rounds=10**6),
            problem.layout(),
            FederationOptions(clients_per_round=self.selected),
            data.names,
            data.train.counts,
            Members(able, data.names, able),
            seed=0,
        )


def crowds(wanted: list[Crowd], rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a round for each, taking turns."""
    options = EngineOptions(device="cpu", workers=1, compile=False)
    data = {clients: Crowd(clients, 1).data() for clients in {crowd.clients for crowd in wanted}}
    simulators = {crowd: Simulator(crowd, data[crowd.clients], options) for crowd in wanted}
    contestants = {str(crowd): timed(one) for crowd, one in simulators.items()}
    _, seconds = take_turns(contestants, rounds)
    for simulator in simulators.values():
        simulator.close()
    return [
        {
            "clients": crowd.clients,
            "selected": crowd.selected,
            "median_ms": 1000 * statistics.median(seconds[str(crowd)]),
            "minimum_ms": 1000 * min(seconds[str(crowd)]),
        }
        for crowd in wanted
    ]


class Memory(Silent):
    """Megabytes of this process after some of the rounds."""

    def __init__(self, rounds: list[int]) -> None:
        self.megabytes = dict.fromkeys(rounds, 0.0)

    def round(self, number: int, row: Any, totals: dict[str, int]) -> None:
        if number in self.megabytes:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.megabytes[number] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def long_run(rounds: int) -> dict[str, Any]:
    """A run with its folder: what memory it had taken by then, and how long it took."""
    marks = sorted({max(1, rounds // 100), max(1, rounds // 10), rounds})
    memory, begun = Memory(marks), time.perf_counter()
    random, labels = np.random.default_rng(0), np.arange(40) % 2
    clients = [(random.normal(size=(40, FEATURES)), labels) for _ in range(200)]
    with tempfile.TemporaryDirectory(prefix="fedsaddle-") as folder:
        fedsaddle.train(
            "auc",
            FederatedData.from_clients(clients),
            CODASCA(local_steps=2, stage_rounds=10**6),
            rounds=rounds,
            out=Path(folder) / "run",
            federation={"clients_per_round": 20},
            evaluation={"every": max(1, rounds // 20)},
            engine={"device": "cpu"},
            observer=memory,
        )
    return {"megabytes": memory.megabytes, "seconds": time.perf_counter() - begun}


def start_up(times: int) -> dict[str, float]:
    """Seconds to import torch and fedsaddle, and then to train a round, in new interpreters."""
    found = []
    for _ in range(times):
        told = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True)
        found.append([float(seconds) for seconds in told.stdout.split()[-2:]])
    imported, trained = (statistics.median(column) for column in zip(*found, strict=True))
    return {"import": imported, "one_round": trained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each crowd")
    parser.add_argument("--long", type=int, default=10_000, help="rounds of the long run")
    parser.add_argument("--clients", type=int, default=1_000_000, help="of the largest crowd")
    options = parser.parse_args()
    result = describe_machine() | {"rounds": options.rounds}
    print("starting up", file=sys.stderr, flush=True)
    result["start_up_seconds"] = start_up(3)
    print(f"a run of {options.long} rounds", file=sys.stderr, flush=True)
    result["long_run"] = long_run(options.long)
    sizes = [options.clients // 10**k for k in (3, 2, 1, 0)]
    wanted = [Crowd(clients, 16) for clients in sizes]
    wanted += [Crowd(options.clients, selected) for selected in (64, 256)]
    print(f"crowds of up to {options.clients} clients", file=sys.stderr, flush=True)
    result["crowds"] = crowds(wanted, options.rounds)
    for row in result["crowds"]:
        print(
            f"{row['clients']:>9} clients, {row['selected']:>3} a round {row['median_ms']:8.2f} ms"
        )
    for number, megabytes in result["long_run"]["megabytes"].items():
        print(f"after {number:>6} rounds {megabytes:8.1f} MB")
    for what, seconds in result["start_up_seconds"].items():
        print(f"{what:<10} {seconds:6.2f} s")
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
