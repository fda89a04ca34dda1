"""How a simulation is run (workers, stacks, compiled or not) and that it changes nothing."""

import gc
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS, LocalSGDA, Members, Phase
from fedsaddle.algorithms.base import Replies
from fedsaddle.data import FederatedData
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.engines import clients as clients_module
from fedsaddle.engines import simulation as simulation_module
from fedsaddle.engines.clients import ClientStack, Setup
from fedsaddle.engines.effort import (
    COMPILING,
    COMPILING_A_LAYER,
    OPERATIONS_PER_SECOND,
    SECONDS_PER_LAYER,
    SECONDS_PER_PASS,
    WORTH_COMPILING,
    WORTH_FORKING,
    Effort,
    effort_of_a_round,
)
from fedsaddle.engines.workers import can_fork
from fedsaddle.errors import UserError
from fedsaddle.problems import AUC, Risk
from fedsaddle.problems.compiled import can_compile
from fedsaddle.runs.watching import Silent

forks = pytest.mark.skipif(not can_fork(), reason="this system cannot fork processes")
compiles = pytest.mark.skipif(not can_compile(), reason="there is no C++ compiler")


def data_of(sizes=(40, 24, 30, 40, 27, 21, 40, 40), shape=(3,), seed=0) -> FederatedData:
    random = np.random.default_rng(seed)
    clients = []
    for shift, n in enumerate(sizes):
        y = np.arange(n) % 2
        rows = random.normal(size=(n, *shape)) + y.reshape(-1, *[1] * len(shape)) + 0.1 * shift
        clients.append((rows, y))
    return FederatedData.from_clients(clients)


def network(batch_norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if batch_norm else []), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(4, 1))


def numbers(result) -> torch.Tensor:
    return torch.cat([value.flatten() for value in (*result.x.values(), *result.y.values())])


def measured(result) -> list[dict]:
    """All that was measured, but for the time it took."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]


RUNS = {
    "codasca": ("auc", {}),
    "cdma-ada": ("auc", {"availability": "uniform-response", "clients_per_round": 6}),
    "drfa": ("agnostic", {"clients_per_round": 5}),
    "local-scgdam": ("compositional-auc", {}),
}


def run(method: str, rounds: int = 3, **engine):
    problem, federation = RUNS[method]
    return fedsaddle.train(
        problem,
        data_of(),
        ALGORITHMS[method](batch_size=20, local_steps=3),
        model=network(batch_norm=method != "drfa"),
        rounds=rounds,
        federation=federation,
        evaluation={"every": 1},
        engine=engine,
    )


@forks
@pytest.mark.parametrize("method", RUNS)
def test_any_number_of_workers_gives_the_same_bits(method):
    one = run(method, workers=1, stack_size=2)
    for workers in (2, 3):
        other = run(method, workers=workers, stack_size=2)
        assert torch.equal(numbers(one), numbers(other))
        assert measured(one) == measured(other)
        assert one.record.ledger == other.record.ledger
    assert one.history[-1]["test/auc"] > 0.5


@pytest.mark.parametrize("method", RUNS)
def test_vmap_loop_and_stacks_of_any_size_agree_in_double_precision(method):
    double = {"dtype": "float64", "workers": 1}
    expected = numbers(run(method, clients="stack", **double))
    for other in ({"clients": "vmap"}, {"clients": "loop"}, {"stack_size": 3}):
        found = numbers(run(method, **other, **double))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10, msg=str(other))


@forks
def test_evaluation_is_shared_among_workers_and_the_same(monkeypatch):
    """With small blocks, so that there are several."""
    monkeypatch.setattr(clients_module, "FULL_BATCH", 16)
    one, two = (run("codasca", rounds=1, workers=workers) for workers in (1, 2))
    assert measured(one) == measured(two)


def test_a_large_sites_loss_is_that_of_its_rows(monkeypatch):
    """However many passes it takes; a site without rows has none."""
    rows, random = 50, torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 3, generator=random)
    data = FederatedData.from_clients([(inputs, torch.arange(rows) % 2)], test=0, validation=0)
    engine = simulation(data, Risk(model=nn.Linear(3, 2)), LocalSGDA(), workers=1)
    z, carried = torch.ones(8), torch.zeros(0)
    sites = [np.arange(rows), np.arange(7), np.arange(0)]
    whole, outputs = engine._outcomes(z, carried, sites)
    monkeypatch.setattr(clients_module, "FULL_BATCH", 16)
    cut, in_parts = engine._outcomes(z, carried, sites)
    engine.close()
    assert cut == pytest.approx(whole, nan_ok=True)
    expected = torch.nn.functional.cross_entropy(
        inputs @ torch.ones(3, 2) + 1, torch.arange(rows) % 2
    )
    assert cut[0] == pytest.approx(float(expected))
    assert math.isnan(cut[2])
    np.testing.assert_allclose(in_parts, outputs, rtol=1e-6)
    assert len(outputs) == rows + 7


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([9, 9, 9, 9], [[0, 1], [2, 3]]),
        ([9, 9, 9], [[0], [1, 2]]),
        ([9], [[0]]),
        ([3, 9], [[0], [1]]),
        ([3, 9, 9], [[0], [1, 2]]),  # an even number already
        ([3, 9, 9, 9, 3, 5], [[0, 4], [5], [1], [2, 3]]),  # the largest group is cut
    ],
)
def test_stacks_are_even_in_number_and_no_more_than_that(sizes, expected):
    clients = [(torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)) for n in sizes]
    data = FederatedData.from_clients(clients, test=0, validation=0)
    engine = simulation(data, Risk(model=nn.Linear(3, 2)), LocalSGDA(batch_size=16), workers=1)
    found = engine._cut(np.arange(len(sizes))).stacks
    engine.close()
    assert found == expected


# --- replies that are not as declared -------------------------------------------------------------


class Misshapen(LocalSGDA):
    """Sends something odd from the stack that holds client 0, or from all."""

    name: ClassVar[str] = "test-misshapen"
    odd: str = "long"
    everywhere: bool = False

    def steps(self, at, received, memory, client):
        reply, memory = super().steps(at, received, memory, client)
        if 0 in client._clients or self.everywhere:
            z = reply["z"]
            if self.odd == "long":
                return {"z": torch.cat([z, z[:, :2]], dim=1)}, memory
            if self.odd == "missing":
                return {}, memory
            return {"z": z[0].repeat(2)}, memory  # one vector for all
        return reply, memory


def misshapen(workers: int, **options):
    return fedsaddle.train(
        "auc",
        data_of((12, 12, 12, 12)),
        Misshapen(batch_size=4, local_steps=1, **options),
        rounds=2,
        engine={"workers": workers, "stack_size": 1},
    )


@forks
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("long", "'z' has shape (9,), not (7,)"),
        ("missing", "'z' is missing"),
        ("one for all", "'z' has shape (14,), not (7,)"),
    ],
)
def test_a_misshapen_reply_is_refused_with_the_reason(odd, reason, workers):
    result = misshapen(workers, odd=odd)
    assert [entry["refused"] for entry in result.record.ledger] == [{"0": reason}] * 2
    assert [entry["answered"] for entry in result.record.ledger] == [[0, 1, 2, 3]] * 2


@forks
@pytest.mark.parametrize("workers", [1, 2])
def test_where_all_are_misshapen_the_run_stops_and_says_why(workers):
    with pytest.raises(UserError, match=r"only 0 of 4 .*'z' has shape \(9,\), not \(7,\)"):
        misshapen(workers, everywhere=True)


class Broken(LocalSGDA):
    """Sends something that is no number in one place of one client's reply."""

    name: ClassVar[str] = "test-broken"

    def steps(self, at, received, memory, client):
        reply, memory = super().steps(at, received, memory, client)
        z = reply["z"] + 0
        z[client._clients == 2, 1] = torch.nan
        return {"z": z}, memory


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=compiles)])
def test_a_reply_that_is_no_number_is_refused_also_where_replies_are_only_added_up(compile):
    method = Broken(batch_size=4, local_steps=1)
    options = {"workers": 1, "compile": compile, "stack_size": 4}
    result = fedsaddle.train("auc", data_of((12,) * 4), method, rounds=2, engine=options)
    assert [entry["refused"] for entry in result.record.ledger] == [{"2": "'z' is not finite"}] * 2
    assert result.x["a"].isfinite().all()


class First(LocalSGDA):
    """The server takes the first client's reply as it is, and asks twice a round."""

    name: ClassVar[str] = "test-first"

    def phases(self, number):
        (steps,) = super().phases(number)
        look = Phase("look", {"z": "point"}, {"loss": 1}, self.look, self.nothing, trains=False)
        return steps, look

    def average(self, at, state, replies):
        return state | {"z": replies.vectors["z"][0]}

    def look(self, at, received, memory, client):
        return {"loss": client.full_loss(received["z"])}, memory

    def nothing(self, at, state, replies):
        return state


def test_a_server_may_keep_a_part_of_the_replies():
    """What a method keeps is not written over by what the next phase sends."""
    data, method = data_of((12, 12, 12, 12)), First(batch_size=4, local_steps=2)
    found = fedsaddle.train("risk", data, method, rounds=3)
    alone = LocalSGDA(batch_size=4, local_steps=2)
    expected = fedsaddle.train("risk", data.only(0), alone, rounds=3)
    torch.testing.assert_close(numbers(found), numbers(expected), rtol=0, atol=1e-6)


@forks
@pytest.mark.parametrize("workers", [1, 2])
def test_replies_are_added_up_where_they_are_computed(workers):
    data, method = data_of((12,) * 5), LocalSGDA(batch_size=4, local_steps=2)
    engine = simulation(data, AUC(model=nn.Linear(3, 1)), method, workers=workers, stack_size=2)
    z, clients = torch.linspace(-1, 1, engine._setup.layout.d), torch.arange(5)
    weights = torch.tensor([3, 1, 4, 1, 5])
    question = (method.phases(0)[0], 0, clients.numpy(), {"z": z})
    (single,) = engine.ask(*question)
    every = Replies(clients, single.vectors, weights, torch.ones(5))
    expected = every.mean("z", weights)
    torch.testing.assert_close(expected, weights.float() @ single.vectors["z"] / 14)
    plain = every.mean("z")
    (answer,) = engine.ask(*question, weights)
    replies = Replies(clients, answer.vectors, weights, torch.ones(5), answer.means)
    torch.testing.assert_close(replies.mean("z", weights), expected)
    assert list(replies.vectors) == ["z"]
    assert not isinstance(replies.vectors, dict), "nobody has looked at a single one"
    torch.testing.assert_close(replies.mean("z"), plain)  # which takes the replies themselves
    (answer,) = engine.ask(*question, weights)
    assert isinstance(answer.vectors, dict), "where somebody looks, they are kept"
    engine.close()


class ByHand(LocalSGDA):
    """Takes a derivative by what it receives, as one may who has tensors of one's own."""

    def steps(self, at, received, memory, client):
        z = received["z"].requires_grad_()
        assert z.grad is None, "there is something left of an earlier round"
        with torch.enable_grad():
            (0.5 * z @ z).backward()
        return {"z": (z - 0.5 * z.grad).detach()}, memory


class Alternating(LocalSGDA):
    """Sends one number more in every other round, in a phase of the same name."""

    def phases(self, number):
        (phase,) = super().phases(number)
        return (phase._replace(up={**phase.up, "loss": 1} if number % 2 else phase.up),)

    def steps(self, at, received, memory, client):
        loss = torch.zeros(1)
        return {**super().steps(at, received, memory, client)[0], "loss": loss}, memory


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=forks)])
def test_what_clients_do_with_what_they_receive_is_gone_by_the_next_round(workers):
    own, options = network(batch_norm=False), {"workers": workers, "stack_size": 2}
    found = fedsaddle.train("auc", data_of(), ByHand(), model=own, rounds=4, engine=options)
    for name, start in own.state_dict().items():
        torch.testing.assert_close(found.x[name], start / 2**4)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=forks)])
def test_a_phase_may_send_something_else_in_another_round(workers):
    options = {"workers": workers, "stack_size": 2}
    found = fedsaddle.train("risk", data_of(), Alternating(), rounds=4, engine=options)
    ups = [entry["floats_up"] for entry in found.record.ledger]
    assert [up - ups[0] for up in ups] == [0, 8, 0, 8], "of eight clients"
    assert not any(entry["refused"] for entry in found.record.ledger)


def test_who_is_furthest_is_told_where_there_is_an_evaluation():
    data, options = data_of((12, 12, 12, 12)), {"rounds": 5, "evaluation": {"every": 2}}
    found = fedsaddle.train("risk", data, LocalSGDA(local_steps=2), **options)
    told = {entry["round"]: entry.get("norms") for entry in found.record.ledger}
    assert {number for number, norms in told.items() if norms} == {2, 4, 5}
    assert all(len(norms) == 3 and min(norms.values()) > 0 for norms in told.values() if norms)


# --- what is worth workers or a compiler ----------------------------------------------------------


def simulation(data, problem, method, clients_per_round=0, rounds=1, **options) -> Simulation:
    able = torch.arange(data.n_clients)
    members = Members(able, data.names, able)
    problem = problem.prepare(data)
    return Simulation(
        *(problem, method, data, problem.layout(), members, EngineOptions(**options)),
        seed=0,
        clients_per_round=clients_per_round,
        rounds=rounds,
    )


CORES = len(os.sched_getaffinity(0))


def test_a_tiny_run_is_one_process_and_not_compiled():
    engine = simulation(data_of(), AUC(model=network()), LocalSGDA(local_steps=4))
    assert engine._decide(0, 3) == (1, False)
    one_step = simulation(data_of((40,)), AUC(model=network()), LocalSGDA(local_steps=1))
    assert one_step._decide(0, 1000) == (1, False), "one stack for one process"
    result = fedsaddle.train("auc", data_of(), rounds=1)
    assert result.history


def rounds_worth_compiling(effort: Effort) -> int:
    return int(WORTH_COMPILING * effort.compiling / effort.overhead) + 1


@pytest.mark.parametrize("features", [3, 3000])
def test_a_long_run_has_a_process_for_each_core_and_is_compiled(monkeypatch, features):
    """Of small networks too: what a pass takes besides is most of it."""
    data = data_of((40,) * 4, (features,))
    problem = AUC(model=nn.Linear(features, 1))
    auto = simulation(data, problem, LocalSGDA(batch_size=20, local_steps=20))
    effort = effort_of_a_round(auto._setup, 4, stacks=2)
    some, enough = int(WORTH_FORKING / effort.seconds) + 1, rounds_worth_compiling(effort)
    monkeypatch.setattr(simulation_module, "can_compile", lambda: True)
    assert auto._decide(4, some - 2) == (1, False)
    assert auto._decide(4, some) == (CORES, False)
    assert auto._decide(4, enough - 2) == (CORES, False)
    assert auto._decide(4, enough) == (CORES, True)
    monkeypatch.setattr(simulation_module, "can_compile", lambda: False)
    assert auto._decide(4, enough) == (CORES, False)
    monkeypatch.setattr(simulation_module, "can_fork", lambda: False)
    assert auto._decide(4, enough) == (1, False)


def test_every_size_of_minibatch_has_to_repay_its_own_programs(monkeypatch):
    monkeypatch.setattr(simulation_module, "can_compile", lambda: True)
    like, unlike = (
        simulation(data_of(sizes), AUC(model=nn.Linear(3, 1)), LocalSGDA(batch_size=100))
        for sizes in ((40, 40, 40, 40), (40, 50, 60, 70))
    )
    enough = rounds_worth_compiling(effort_of_a_round(unlike._setup, 4, stacks=4))
    assert like._decide(0, 2 * enough)[1]
    assert not unlike._decide(0, 4 * enough - 4)[1]
    assert unlike._decide(0, 4 * enough)[1]


@compiles
@pytest.mark.parametrize(("sizes", "programs"), [((40, 40, 40), 2), ((40, 50, 60, 70, 80), 1)])
def test_passes_over_all_rows_are_compiled_where_clients_have_few_sizes(sizes, programs):
    """CDMA has such a pass and then steps on minibatches."""
    engine = simulation(
        data_of(sizes),
        AUC(model=nn.Linear(3, 1)),
        ALGORITHMS["cdma-ada"](batch_size=10, local_steps=1),
        workers=1,
        compile=True,
    )
    setup, clients = engine._setup, np.arange(3)
    point = torch.zeros(3, setup.layout.d)
    stack = ClientStack(setup, clients, torch.zeros(0), 0, "steps")
    full = stack.full_gradient(point)
    (batch,) = stack.minibatches(1)
    assert stack.gradient(point, batch).abs().sum() > 0
    assert len(setup.oracle._programs) == programs
    plain = ClientStack(replace(setup, compile=False), clients, torch.zeros(0), 0, "steps")
    torch.testing.assert_close(full, plain.full_gradient(point))


@pytest.mark.parametrize("compile", [True, False])
def test_what_is_set_is_done(compile):
    engine = simulation(data_of(), AUC(model=network()), LocalSGDA(), workers=3, compile=compile)
    assert engine._decide(0, 1) == (3, compile)


def test_without_fork_several_workers_are_refused(monkeypatch):
    monkeypatch.setattr(simulation_module, "can_fork", lambda: False)
    with pytest.raises(UserError, match=r"^engine\.workers: .*use 1\.$"):
        simulation(data_of(), AUC(model=network()), LocalSGDA(), workers=2)
    simulation(data_of(), AUC(model=network()), LocalSGDA(), workers=1)


def setup_of(data, problem, **options) -> Setup:
    engine = simulation(data, problem, LocalSGDA(**options), workers=1, compile=False)
    return engine._setup


def operations(setup: Setup, clients: int) -> float:
    return effort_of_a_round(setup, clients, stacks=1).arithmetic * OPERATIONS_PER_SECOND


def test_operations_of_a_linear_layer():
    """Six for each weight and row: two forwards, and, as if a layer were below, four back."""
    data = data_of((40, 25, 17), (50,))
    problem = Risk(model=nn.Linear(50, 1, bias=False))
    setup = setup_of(data, problem, batch_size=10, local_steps=7)
    assert operations(setup, 3) == pytest.approx(6 * 50 * 10 * 7 * 3)
    most = int(data.train.counts.max())
    whole = setup_of(data, problem, batch_size=0, local_steps=1)
    assert operations(whole, 1) == pytest.approx(6 * 50 * most)
    few = setup_of(data, problem, batch_size=1000, local_steps=1)
    assert operations(few, 1) == pytest.approx(6 * 50 * most), "no more rows than there are"


def test_operations_of_a_convolution():
    """A weight is used at every pixel of the output."""
    data = data_of((40, 25), (1, 12, 12))
    model = nn.Sequential(nn.Conv2d(1, 3, 5, bias=False), nn.AvgPool2d(8), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(3, 1, bias=False))
    setup = setup_of(data, Risk(model=model), batch_size=4, local_steps=2)
    convolution = 6 * (3 * 25) * (8 * 8)
    head = 6 * 3
    assert operations(setup, 2) == pytest.approx((convolution + head) * 4 * 2 * 2)


def test_what_a_pass_and_a_compiler_take_grows_with_the_layers():
    deep = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    setup = setup_of(data_of((40, 25)), Risk(model=deep), batch_size=10, local_steps=7)
    of_a_pass = SECONDS_PER_PASS + 3 * SECONDS_PER_LAYER
    effort = effort_of_a_round(setup, clients=2, stacks=2)
    assert effort.overhead == pytest.approx(2 * 7 * of_a_pass)
    assert effort.seconds == effort.arithmetic + effort.overhead
    assert effort.compiling == pytest.approx(COMPILING + 3 * COMPILING_A_LAYER)


# --- compiled runs --------------------------------------------------------------------------------


@forks
@compiles
def test_a_compiled_run_is_the_same_to_rounding(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    data = data_of((16, 16, 16, 16))

    def train(compile: bool):
        return fedsaddle.train(
            AUC(model=network()),
            data,
            LocalSGDA(batch_size=4, local_steps=3),
            rounds=3,
            engine={"compile": compile, "workers": 1, "stack_size": 2},
        )

    compiled, plain = train(True), train(False)
    torch.testing.assert_close(numbers(compiled), numbers(plain), rtol=0, atol=1e-5)
    assert list(tmp_path.glob("compiled/**/*.so")), "it was compiled indeed"


# --- nothing is left over -------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to look at")
def test_runs_leave_no_process_and_no_handle_behind():
    def left() -> tuple[int, list[str]]:
        gc.collect()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return len(os.listdir("/proc/self/fd")), children

    run("codasca", rounds=1, workers=2, stack_size=2)
    before = left()
    for _ in range(3):
        run("codasca", rounds=1, workers=2, stack_size=2)
    assert left() == before


class Resident(Silent):
    """The process's memory after every round."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def round(self, number, row, totals):
        pages = Path("/proc/self/statm").read_text().split()[1]
        self.bytes.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_two_thousand_rounds_take_no_more_memory_than_some_hundred():
    rounds, every, warm = 2000, 40, 400
    fedsaddle.train(
        AUC(model=nn.Linear(3, 1)),
        data_of((12, 12, 12, 12)),
        ALGORITHMS["codasca"](batch_size=4, local_steps=1),
        rounds=rounds,
        evaluation={"every": every, "guard": False},
        engine={"workers": 1, "stack_size": 8},
        observer=(memory := Resident()),
    )
    grown = memory.bytes[-1] - memory.bytes[warm]
    kept = 10_000 * (rounds - warm) / every  # the history; and a line of the ledger for each round
    assert grown < 4e6 + kept + 1_000 * (rounds - warm)


LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(),
    reason="this system has no large pages for who asks",
)
def test_memory_for_stacks_may_be_in_large_pages():
    program = """
import torch
from fedsaddle.engines.workers import keep_memory
keep_memory()
numbers = torch.ones(2**22)
with open("/proc/self/smaps") as lines:
    for line in lines:
        first, *more = line.split()
        if "-" in first and first[0] in "0123456789abcdef":
            start, end = (int(place, 16) for place in first.split("-"))
        elif first == "VmFlags:" and start <= numbers[2**21 :].data_ptr() < end:
            print(*more)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "hg" in found.stdout.split(), found.stderr
