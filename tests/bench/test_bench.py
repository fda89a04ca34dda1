"""`fedsaddle bench` on tiny rounds: that it runs and says what it should, not how fast."""

import json

import pytest
import torch

from fedsaddle.bench.cases import METHODS, Case, Size, taking_part
from fedsaddle.bench.measure import LEAST
from fedsaddle.bench.plain import plain_loop
from fedsaddle.bench.simulator import Simulator
from fedsaddle.engines import EngineOptions

ONE_WORKER = ("--quick", "--workers", "1", "--no-compile", "--rounds", "2")


def test_results_are_printed_and_stored(run, tmp_path):
    methods = ("--networks", "logistic", "--methods", "fedavg,codasca", "--methods", "cdma-mnist")
    code, out, err = run("bench", *ONE_WORKER, *methods, "--json", "--out", "made/speed.json")
    assert code == 0, err
    printed = json.loads(out)
    assert printed == json.loads((tmp_path / "made/speed.json").read_text())
    assert {"date", "versions", "cpu", "cores", "load", "rounds", "results"} <= set(printed)
    assert [(row["method"], row["runner"]) for row in printed["results"]] == [
        (method, runner)
        for method in ("fedavg", "codasca", "cdma-mnist")
        for runner in ("plain loop", "fedsaddle, 1 worker")
    ]
    for row in printed["results"]:
        assert len(row["rounds_ms"]) >= 2
        assert sum(row["rounds_ms"]) >= 1000 * LEAST
        assert 0 < row["minimum_ms"] <= row["median_ms"]
        if row["runner"] == "plain loop":
            assert row["ratio"] == 1
        else:
            assert sum(row["profile"].values()) == pytest.approx(1)


def test_tables_are_for_people(run):
    code, out, err = run("bench", *ONE_WORKER, "--networks", "logistic")
    assert code == 0, err
    assert "× plain" in out
    assert "aggregation %" in out
    assert "1/1 logistic, fedavg" in err


def test_unknown_names_are_errors(run):
    code, _, err = run("bench", "--networks", "lenet")
    assert code == 2
    assert "--networks" in err
    assert "lenet-5" in err


@pytest.mark.parametrize("method", METHODS)
def test_plain_loop_and_simulator_do_the_same_rounds(method):
    """With one step on all rows a round has no order, and both must agree to rounding."""
    selected = METHODS[method].size.selected and 3
    case = Case("mlp", method, Size(clients=5, steps=1, batch=6, selected=selected))
    data = case.data()
    plan = case.plan(data, case.problem(data))
    simulator, one_round = (
        Simulator(case, data, EngineOptions(workers=1, compile=False)),
        plain_loop(case, data),
    )
    for number in range(3):
        answered = [entry["answered"] for entry in simulator(number)]
        assert answered == taking_part(plan, number)
        plain = {name.removeprefix("network."): t for name, t in one_round(number).items()}
        x, y = plan.layout.unflatten(simulator.state["z"], simulator.state["carried"])
        for name, value in (x | y).items():
            torch.testing.assert_close(plain[name], value, rtol=1e-4, atol=1e-6)
    simulator.close()
