"""Cost depends on the clients that take part, not on how many there are; memory stays flat.

Work is counted, not timed: function calls (of Python and of C) and bytes allocated in a round.
"""

import os
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsaddle
from fedsaddle.algorithms import CODASCA
from fedsaddle.data import FederatedData, Rows
from fedsaddle.runs.watching import Silent

MILLION, THOUSAND = 1_000_000, 1_000
METHODS = [
    ("auc", "codasca"),
    ("auc", "cdma-ada"),
    ("auc", "local-sgda-plus"),
    ("risk", "scaffold"),
]


def many(n_clients: int) -> FederatedData:
    """Clients with two rows each of one small table, and ten more that only test."""
    random = np.random.default_rng(0)
    labels = np.arange(THOUSAND) % 2
    inputs = random.normal(size=(THOUSAND, 3)) + labels[:, None]
    place = np.arange(n_clients + 11)
    return FederatedData(
        torch.from_numpy(inputs),
        torch.from_numpy(labels),
        Rows(random.integers(THOUSAND, size=2 * n_clients), 2 * np.minimum(place, n_clients)),
        Rows.empty(n_clients + 10),
        Rows(np.arange(40), 4 * np.maximum(place - n_clients, 0)),
        names=tuple(map(str, place[:-1].tolist())),
        classes=("0", "1"),
    )


class Meter(Silent):
    """Notes a figure after every round."""

    def __init__(self, figure: Callable[[], float]) -> None:
        self.figure, self.noted = figure, list[float]()

    def round(self, number, row, totals):
        self.noted.append(self.figure())


class Calls(Meter):
    """Counts the function calls of every round."""

    def __init__(self) -> None:
        super().__init__(lambda: self.count)
        self.count = 0

    def begin(self, rounds, done):
        sys.setprofile(self._event)

    def _event(self, frame, event, argument):
        self.count += event in ("call", "c_call")

    def end(self):
        sys.setprofile(None)

    @property
    def of_rounds(self) -> list[float]:
        return np.diff(self.noted).tolist()


def run(data, problem, method, observer=None, rounds=6, every=1000, **options):
    return fedsaddle.train(
        *(problem, data, method),
        rounds=rounds,
        federation={"clients_per_round": 16},
        evaluation={"every": every, "guard": False},
        observer=observer,
        **options,
    )


@pytest.fixture(scope="module")
def crowds() -> tuple[FederatedData, FederatedData]:
    return many(THOUSAND), many(MILLION)


@pytest.mark.parametrize(("problem", "method"), METHODS)
def test_a_million_clients_need_as_many_calls_as_a_thousand(crowds, problem, method):
    run(crowds[0], problem, method, few := Calls())
    run(crowds[1], problem, method, more := Calls())
    assert statistics.median(more.of_rounds) <= 1.02 * statistics.median(few.of_rounds)


def test_evaluation_of_a_million_clients_calls_only_for_those_with_test_rows(crowds):
    counts = []
    for data in crowds:
        run(data, "auc", "local-sgda", calls := Calls(), every=1)
        counts.append(statistics.median(calls.of_rounds))
    assert counts[1] <= 1.02 * counts[0]


def test_drawing_by_weight_calls_no_more_for_a_million_clients(crowds):
    """DRFA's λ has an entry for each client: vector work, but no calls."""
    counts = []
    for data in crowds:
        run(data, "agnostic", "drfa", calls := Calls())
        counts.append(statistics.median(calls.of_rounds))
    assert counts[1] <= 1.1 * counts[0]  # with replacement: fewer distinct ones of a thousand


def test_a_round_allocates_nothing_of_the_length_of_all_clients(crowds):
    def passing() -> float:
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return peak - held

    tracemalloc.start()
    try:
        run(crowds[1], "auc", "codasca", peaks := Meter(passing))
    finally:
        tracemalloc.stop()
    # Rounds 2 to 5: before the first and after the last is an evaluation.
    assert max(peaks.noted[1:5]) < MILLION


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read memory from")
def test_a_million_clients_fit_in_two_gigabytes(tmp_path):
    """The process's own peak: getrusage would count what its parent had before it."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_scale import MILLION, many, run
result = run(many(MILLION), "auc", "codasca", out={str(tmp_path / "run")!r})
assert result.history[-1]["test/auc"] > 0.5, result.history[-1]
result.report({str(tmp_path / "report.html")!r})
lines = open("/proc/self/status").read().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 2e9  # kilobytes
    (checkpoint, *_) = (tmp_path / "run/checkpoints").rglob("*.safetensors")
    assert checkpoint.stat().st_size < 1e5  # of those that took part


def test_memory_is_flat_over_a_long_run():
    def held() -> float:
        return tracemalloc.get_traced_memory()[0]

    def resident() -> float:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    data, method = many(50), CODASCA(local_steps=2)
    tracemalloc.start()
    try:
        run(data, "auc", method, python := Meter(held), rounds=300)
    finally:
        tracemalloc.stop()
    # The ledger and the metrics of the run are kept: a few lines a round.
    assert (python.noted[298] - python.noted[98]) / 200 < 10_000
    if Path("/proc/self/statm").exists():
        run(data, "auc", method, whole := Meter(resident), rounds=300)
        assert whole.noted[298] - whole.noted[98] < 30e6
