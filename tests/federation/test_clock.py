"""The simulated clock: its distributions, its sum, and its place in a run."""

import json

import numpy as np
import pytest

from fedsaddle import train
from fedsaddle.algorithms import DRFA
from fedsaddle.federation import FederationOptions
from fedsaddle.federation.clock import devices, jitter, response_seconds

CLIENTS = np.arange(3000)


def clocked(**fields):
    return FederationOptions(availability="latency", **fields)


def test_devices_are_log_normal_about_the_medians():
    options = clocked(latency_seconds=0.2, bandwidth=5e5, device_spread=0.7)
    drawn = devices(options, 1, CLIENTS)
    assert drawn.shape == (3, 3000)
    logs = np.log(drawn / np.array([[0.2], [5e5], [1.0]]))
    assert np.abs(logs.mean(axis=1)).max() < 4.5 * 0.7 / np.sqrt(3000)
    assert np.abs(logs.std(axis=1) / 0.7 - 1).max() < 4.5 / np.sqrt(2 * 3000)
    off_diagonal = np.corrcoef(logs)[np.triu_indices(3, 1)]
    assert np.abs(off_diagonal).max() < 4.5 / np.sqrt(3000)


def test_a_device_is_the_clients_own_whoever_else_is_asked():
    options = clocked()
    together = devices(options, 1, np.array([4, 7, 9]))
    np.testing.assert_array_equal(together[:, 1:2], devices(options, 1, np.array([7])))
    assert (together != devices(options, 2, np.array([4, 7, 9]))).all()


@pytest.mark.parametrize("tail", [1.1, 2.0, 4.0])
def test_the_jitter_is_pareto_with_median_one(round_at, phase_of, tail):
    drawn = jitter(clocked(tail=tail), round_at(), phase_of(), 0, CLIENTS)
    assert drawn.min() >= 2 ** (-1 / tail)
    for level in (1.0, 1.5, 3.0):
        chance = level**-tail / 2  # P(J > x) = (x·2^{1/tail})^{−tail}
        share = (drawn > level).mean()
        assert abs(share - chance) < 4.5 * np.sqrt(chance * (1 - chance) / 3000)


def test_the_jitter_is_new_for_every_round_phase_and_attempt(round_at, phase_of):
    def drawn(number=0, name="steps", attempt=0, seed=0):
        at = round_at(10, number, seed)
        return jitter(clocked(), at, phase_of(name), attempt, np.array([3]))[0]

    assert drawn() == drawn()
    values = {drawn(), drawn(number=1), drawn(name="losses"), drawn(attempt=1), drawn(seed=1)}
    assert len(values) == 5


def test_seconds_are_delay_transfer_and_work(round_at, phase_of):
    options = clocked(
        latency_seconds=0.25,
        bandwidth=1000,
        seconds_per_phase=3,
        device_spread=0,
        tail=1e9,  # no jitter to speak of
    )
    down, up, clients = np.array([500, 2000]), 100, np.array([0, 1])
    trained = response_seconds(options, round_at(), phase_of(), 0, clients, down, up)
    np.testing.assert_allclose(trained, [0.25 + 0.6 + 3, 0.25 + 2.1 + 3], rtol=1e-6)
    untrained = phase_of(trains=False)
    asked = response_seconds(options, round_at(), untrained, 0, clients, down, up)
    np.testing.assert_allclose(asked, [0.25 + 0.6 + 0.3, 0.25 + 2.1 + 0.3], rtol=1e-6)


def test_slow_lines_and_slow_machines_take_longer(round_at, phase_of):
    options = clocked(device_spread=1.0, tail=1e9, latency_seconds=0)
    at, phase, none = round_at(), phase_of(), np.zeros(3000)
    _, bandwidth, speed = devices(options, at.seed, CLIENTS)
    work = response_seconds(options, at, phase, 0, CLIENTS, none, 0)
    np.testing.assert_allclose(work, 1 / speed, rtol=1e-6)
    sent = response_seconds(options, at, phase, 0, CLIENTS, none + 6e6, 10**6)
    np.testing.assert_allclose(sent - work, 7e6 / bandwidth, rtol=1e-6)


def run(rounds, out=None, resume=False, **federation):
    return train(
        "risk",
        "breast-cancer",
        DRFA(local_steps=2),
        rounds=rounds,
        out=out,
        resume=resume,
        checkpoint_every=1,
        federation={"clients_per_round": 4, **federation},
        evaluation={"every": 1},
    )


def test_a_run_adds_up_the_time_of_its_phases():
    result = run(4, availability="latency", enough=0.5)
    entries = result.record.ledger
    by_round = [
        sum(entry["simulated_seconds"] for entry in entries if entry["round"] <= number)
        for number in range(5)
    ]
    np.testing.assert_allclose(result.metrics["simulated_seconds"], by_round, rtol=1e-12)
    assert all(entry["simulated_seconds"] > 0 for entry in entries)
    for entry in entries:
        assert len(entry["answered"]) == -(-len(entry["selected"]) // 2)


def test_waiting_for_fewer_is_faster():
    half, whole = (run(4, availability="latency", enough=share) for share in (0.5, 1.0))
    ends = [result.metrics["simulated_seconds"][-1] for result in (half, whole)]
    assert ends[0] < ends[1]


def test_a_phase_lasts_until_its_last_used_reply():
    options = {"latency_seconds": 0.5, "seconds_per_phase": 0.0, "bandwidth": 1e12}
    result = run(4, availability="latency", enough=0.5, **options)
    for entry in result.record.ledger:  # nothing but the delay is left
        delays = devices(clocked(**options), 0, np.array(entry["answered"]))[0]
        assert entry["simulated_seconds"] == pytest.approx(delays.max(), rel=1e-6)


def test_the_clock_goes_on_after_a_resume(tmp_path):
    through = run(4, out=tmp_path / "through", availability="latency")
    run(2, out=tmp_path / "cut", availability="latency")
    resumed = run(4, out=tmp_path / "cut", resume=True, availability="latency")
    for name in ("simulated_seconds", "train/objective"):
        assert resumed.metrics[name].tolist() == through.metrics[name].tolist()
    rows = (tmp_path / "cut" / "ledger.jsonl").read_text().splitlines()
    assert len(rows) == 8
    assert all("simulated_seconds" in json.loads(row) for row in rows)


def test_without_the_clock_nothing_is_written_of_it():
    result = run(1, availability="always")
    assert "simulated_seconds" not in result.metrics
    assert all("simulated_seconds" not in entry for entry in result.record.ledger)
