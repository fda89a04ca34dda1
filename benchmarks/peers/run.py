"""Rounds per second of fedsaddle and of its peers, in turns. Run: make bench-peers.

Every contestant computes the same workload (workload.py) in a process and an environment of its
own. They take turns in blocks of rounds; medians, minima and ratios are printed, and stored in
benchmarks/results with the date, the versions, the processor and the load, and a plot.
"""

import argparse
import math
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from contestant import Contestant
from environment import Unavailable
from plot import plot
from torch.utils.flop_counter import FlopCounterMode
from workload import BATCH, CLIENTS, NETWORKS, ROWS, STEPS, torch_network

from fedsaddle.bench import describe_machine
from fedsaddle.runs.folder import write_json, write_text
from fedsaddle.terminal import show, table

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
CORES = os.cpu_count() or 1
WARM_UP, TURN = 3, 5

CONTESTANTS: dict[str, tuple[str, ...]] = {
    "fedsaddle, 1 worker": ("fedsaddle_rounds.py",),
    "fedsaddle, 1 worker, compiled": ("fedsaddle_rounds.py", "--compile"),
    f"fedsaddle, {CORES} workers": ("fedsaddle_rounds.py", "--workers", str(CORES)),
    f"fedsaddle, {CORES} workers, compiled": (
        "fedsaddle_rounds.py",
        "--workers",
        str(CORES),
        "--compile",
    ),
    "pfl-research": ("pfl_rounds.py",),
    "FedJAX": ("fedjax_rounds.py",),
    "fluke": ("fluke_rounds.py",),
    "Flower simulation": ("flower_rounds.py",),
    "plain loop, 1 thread": ("fedsaddle_rounds.py", "--plain", "1"),
    f"plain loop, {CORES} threads": ("fedsaddle_rounds.py", "--plain", str(CORES)),
}


def is_peer(name: str) -> bool:
    return not name.startswith(("fedsaddle", "plain loop"))


class Entry:
    """A contestant's line of the table; one that fails says why and is asked no more."""

    def __init__(self, name: str, network: str, open_ones: ExitStack) -> None:
        self.name, self.network = name, network
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.versions: dict[str, str] = {}
        self.reason: str | None = None
        script, *arguments = CONTESTANTS[name]
        try:
            contestant = Contestant(HERE / script, "--network", network, *arguments)
        except Unavailable as error:
            self.reason = str(error)
            return
        self._contestant = open_ones.enter_context(contestant)
        self.versions = contestant.versions

    def warm_up(self) -> None:
        self.take_turn(WARM_UP)
        self.seconds, self.processor = [], []

    def take_turn(self, count: int) -> None:
        if self.reason is not None:
            return
        try:
            self._contestant.wake()
            before = self._contestant.processor_seconds()
            self.seconds += [self._contestant.round() for _ in range(count)]
            after = self._contestant.processor_seconds()
            self._contestant.rest()
        except Unavailable as error:
            self.reason = str(error)
            return
        if before is not None and after is not None:
            self.processor.append((after - before) / count)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"network": self.network, "contestant": self.name}
        row |= {"peer": is_peer(self.name), "versions": self.versions}
        if self.reason is not None:
            return row | {"reason": self.reason}
        milliseconds = [1000 * seconds for seconds in self.seconds]
        times = {"median_ms": median(milliseconds), "minimum_ms": min(milliseconds)}
        processor = 1000 * median(self.processor) if self.processor else None
        return row | times | {"processor_ms": processor, "rounds_ms": milliseconds}


def compete(network: str, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """All contestants' rows for one network."""
    with ExitStack() as open_ones:
        entries = []
        for name in names:
            tell(f"{network}: starting {name}")
            entries.append(Entry(name, network, open_ones))
            entries[-1].warm_up()
        for start in range(0, rounds, TURN):
            tell(f"{network}: round {start} of {rounds}")
            for entry in entries:
                entry.take_turn(min(TURN, rounds - start))
        return [entry.row() for entry in entries]


def tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def peak_flops() -> float:
    """The most float32 operations a second in a product of matrices, on all cores."""
    torch.set_num_threads(CORES)
    a, b = torch.randn(2, 2048, 2048)
    best = math.inf
    for _ in range(20):
        begun = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begun)
    torch.set_num_threads(1)  # and no thread is left spinning
    return 2 * 2048**3 / best


def round_flops(network: str) -> int:
    """A round's operations; a backward pass counts as two forward passes."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        torch_network(network)(torch.zeros(BATCH, 1, 28, 28))
    return 3 * int(counter.get_total_flops()) * STEPS * CLIENTS


def compare(rows: list[dict[str, Any]], limit_ms: float) -> list[dict[str, Any]]:
    """Rows with their ratios: to the best peer, and to the arithmetic limit."""
    peers = [row["median_ms"] for row in rows if row["peer"] and "median_ms" in row]
    for row in rows:
        if "median_ms" in row:
            row["over_limit"] = row["median_ms"] / limit_ms
            row["over_best_peer"] = min(peers) / row["median_ms"] if peers else None
    return rows


def print_table(result: dict[str, Any]) -> None:
    lines = table(
        "network", "", "median ms", "minimum ms", "processor ms", "× best peer", "÷ limit"
    )
    for row in result["results"]:
        names = (row["network"], row["contestant"])
        if "reason" in row:
            lines.add_row(*names, row["reason"])
            continue
        times = (row["median_ms"], row["minimum_ms"], row["processor_ms"])
        ratio = row["over_best_peer"]
        lines.add_row(
            *names,
            *("-" if time is None else f"{time:.1f}" for time in times),
            f"{ratio:.2f}" if ratio else "-",
            f"{row['over_limit']:.1f}",
        )
    show(lines)
    limits = ", ".join(f"{name} {limit:.1f} ms" for name, limit in result["limit_ms"].items())
    print(f"{CLIENTS} clients x {STEPS} steps x batch {BATCH}, clients of {ROWS} rows")
    print(f"arithmetic limit at {result['peak_gflops']:.0f} GFLOP/s: {limits}")
    print(f"{result['cpu']}, {result['cores']} cores, load {result['load'][0]}, {result['date']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="rounds measured of each")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    asked = parser.parse_args()
    result = describe_machine() | {"rounds": asked.rounds, "limit_ms": {}, "results": []}
    peak = peak_flops()
    for network in asked.networks:
        rows = compete(network, asked.only, asked.rounds)
        peak = max(peak, peak_flops())  # of a moment when nothing else ran
        result["limit_ms"][network] = 1000 * round_flops(network) / peak
        result["results"] += compare(rows, result["limit_ms"][network])
    result["peak_gflops"] = peak / 1e9
    asked.out.mkdir(parents=True, exist_ok=True)
    minute = result["date"][:16].replace(":", "")
    stem = asked.out / f"peers-{minute}"
    write_json(stem.with_suffix(".json"), result)
    write_text(stem.with_suffix(".svg"), plot(result))
    print_table(result)
    print(f"stored: {stem.with_suffix('.json')}")


if __name__ == "__main__":
    main()
