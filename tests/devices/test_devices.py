"""A simulation on a device that is not the CPU: the same results, and one process for each device.

There may be no such device here, so these tests bring one along (`pretend`), in interpreters of
their own: torch cannot be told of a device once it has computed a gradient.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsaddle.algorithms import LocalSGDA, Members
from fedsaddle.engines import EngineOptions, Simulation, simulation
from fedsaddle.engines.workers import can_fork
from fedsaddle.errors import UserError
from fedsaddle.problems import Risk
from runs import cases, data_of, dense, on_one_device, on_two_devices

forks = pytest.mark.skipif(not can_fork(), reason="this system cannot fork processes")


def in_a_fresh_interpreter(function, folder: Path) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, str(folder)).result()


def test_a_run_on_a_device_is_the_run_on_the_cpu(tmp_path):
    """For every method, every problem and many kinds of layers."""
    found = in_a_fresh_interpreter(on_one_device, tmp_path)
    assert found.keys() == cases(tmp_path).keys()
    assert {case: run for case, run in found.items() if isinstance(run, str)} == {}
    for case, run in found.items():
        assert run["far"] < 1e-12, case
        there, here = run["measured"]
        close = {name: approx(value) for name, value in here.items()}
        assert there == close, case
        assert run["devices"] == {"pretend:0"}, case
        assert run["seeds"] >= 2, f"{case}: the device's own generator is seeded in every round"


def approx(value: Any) -> Any:
    return pytest.approx(value, nan_ok=True) if isinstance(value, float) else value


@forks
def test_each_device_has_a_process_and_what_cannot_be_forked_is_done_without(tmp_path):
    """Torch refuses gradients to a fork of a process that has computed some on a device."""
    found = in_a_fresh_interpreter(on_two_devices, tmp_path)
    first, second, cpu = found["first"], found["second"], found["cpu"]
    devices = {device: int(process) for process, device in first["processes"]}
    assert devices.keys() == {"pretend:0", "pretend"}
    assert devices["pretend:0"] == first["own"] != devices["pretend"]
    assert len(first["processes"]) == 2
    assert first["warned"] == cpu["warned"] == []
    assert cpu["far"] < 1e-12

    assert second["processes"] == [(str(first["own"]), "pretend:0")]
    (warning,) = second["warned"]
    assert warning.startswith("1 of 2 worker processes could not start and are done without (")
    assert "fork" in warning
    assert second["far"] < 1e-12


def engine(devices: list[str], monkeypatch, clients: int = 300, **options: Any) -> Simulation:
    """Nothing is put on the devices before work begins."""
    monkeypatch.setattr(simulation, "_devices", lambda wanted: devices)
    problem, data = Risk(model=dense()), data_of(sizes=(8,) * clients)
    return Simulation(
        problem,
        LocalSGDA(),
        data,
        problem.layout(),
        Members(torch.arange(clients), (), torch.arange(clients)),
        EngineOptions(**options),
        seed=0,
    )


def sizes(engine: Simulation, clients: int) -> list[int]:
    return [len(stack) for stack in engine._cut(torch.arange(clients).numpy()).stacks]


def test_stacks_fill_a_device(monkeypatch):
    on_cpu, on_one = engine(["cpu"], monkeypatch), engine(["pretend:0"], monkeypatch)
    assert max(sizes(on_cpu, 300)) <= simulation.LARGEST_STACK
    assert sizes(on_one, 300) == [100, 100, 100]
    assert sizes(on_one, 128) == [128]
    assert sizes(engine(["pretend:0"], monkeypatch, stack_size=50), 100) == [50, 50]
    monkeypatch.setattr(simulation, "ON_A_DEVICE", 10 * 4 * on_one._setup.layout.d)
    assert sizes(on_one, 20) == [10, 10]


def test_every_device_has_a_stack(monkeypatch):
    three = engine([f"pretend:{k}" for k in range(3)], monkeypatch)
    assert sizes(three, 16) == [5, 5, 6]
    assert sizes(three, 2) == [1, 1]
    assert sizes(engine(["pretend:0", "pretend:1"], monkeypatch, workers=1), 16) == [16]


def test_a_device_takes_one_process(monkeypatch):
    with pytest.raises(UserError, match=r"^engine\.workers: .* one process; use 2\.$"):
        engine(["pretend:0", "pretend:1"], monkeypatch, workers=3)
