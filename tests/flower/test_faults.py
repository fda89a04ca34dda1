"""What goes wrong in a real federation: the run completes, and its participation can be replayed.

Every test has its own run in one federation, and leaves all parties as it found them.
"""

import time

import pytest

from fedsaddle.deploy.local import LINK

pytestmark = pytest.mark.federation


@pytest.mark.parametrize(
    ("algorithm", "problem"), [("cdma-ada", "auc"), ("drfa", "agnostic"), ("coda-plus", "auc")]
)
def test_other_methods_are_the_same_as_in_the_simulator(consortium, algorithm, problem):
    stages = {"stage_rounds": 2} if algorithm == "coda-plus" else {}
    config = consortium.config(algorithm, problem, options=stages)
    consortium.simulate(config, f"{algorithm}-simulated")
    consortium.run(config, algorithm)
    consortium.check_same_model(f"{algorithm}-simulated", algorithm)
    consortium.check_same_ledger(algorithm, f"{algorithm}-simulated")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("nan", "v * float('nan')", "not finite"),
        ("shape", "v[:, :-1]", "has shape"),
        ("missing", "v.long()", "missing"),
    ],
)
def test_a_site_that_answers_nonsense(consortium, name, change, reason):
    site = consortium.sites[-1]
    config = consortium.config(rounds=4)
    faulty = {"site": site, "rounds": (1, 2), "change": change}
    consortium.run(config, name, faulty=faulty)
    refused = [entry["refused"] for entry in consortium.lines(name)]
    client = str(sorted(consortium.sites).index(site))
    assert [reason in entry.get(client, "") for entry in refused] == [False, True, True, False]
    consortium.replay(config, name, f"{name}-replayed")
    consortium.check_same_model(name, f"{name}-replayed")


def test_a_site_killed_in_the_middle_and_started_again(consortium):
    site, federation = consortium.sites[0], consortium.federation
    config = consortium.config(rounds=8, engine={"grace_seconds": 30})
    run = consortium.submit(config, "killed")
    consortium.until(lambda: len(consortium.lines("killed")) >= 2)
    federation.kill(site)
    federation.start(site)
    assert federation.wait(run, 900).completed
    consortium.replay(config, "killed", "killed-replayed")
    consortium.check_same_model("killed", "killed-replayed")
    assert len(consortium.lines("killed")[-1]["answered"]) == len(consortium.sites)


def test_a_site_that_stalls_for_a_minute(consortium):
    site, federation = consortium.sites[-1], consortium.federation
    config = consortium.config(rounds=24, engine={"grace_seconds": 30})
    run = consortium.submit(config, "stalled")
    consortium.until(lambda: len(consortium.lines("stalled")) >= 2)
    federation.stall(site)
    time.sleep(60)
    federation.resume(site)
    assert federation.wait(run, 900).completed
    absent = [len(e["selected"]) - len(e["answered"]) for e in consortium.lines("stalled")]
    assert 1 in absent
    assert site in consortium.lines("stalled", "metrics.jsonl")[-1]["absent"]
    assert site in (consortium.folder / "stalled" / "report.html").read_text()
    consortium.replay(config, "stalled", "stalled-replayed")
    consortium.check_same_model("stalled", "stalled-replayed")


@pytest.mark.parametrize("rounds_before", [1, 3, 4])
def test_a_coordinator_killed_and_resumed_ends_with_the_same_model(consortium, rounds_before):
    name, federation = f"resumed-{rounds_before}", consortium.federation
    config = consortium.config(rounds=6)
    consortium.simulate(config, f"{name}-simulated")
    consortium.submit(config, name)
    consortium.until(lambda: len(consortium.lines(name)) >= rounds_before)
    federation.kill(LINK)
    federation.start(LINK)
    consortium.run(config, name, resume=True)
    consortium.check_same_model(name, f"{name}-simulated")
    consortium.check_same_ledger(name, f"{name}-simulated")


def test_without_a_quorum_the_run_fails_and_the_best_model_is_kept(consortium):
    first = consortium.sites[0]
    federation = consortium.federation
    config = consortium.config(
        rounds=40,
        engine={"grace_seconds": 20},
        federation={"quorum": 0.9, "retries": 1},
        evaluation={"auc": "binned", "every": 1},
    )
    run = consortium.submit(config, "lost")
    consortium.until(lambda: len(consortium.lines("lost", "metrics.jsonl")) >= 2)
    federation.kill(first)
    state = federation.wait(run, 900)
    federation.start(first)
    assert state.status == "finished:failed"
    assert "quorum" in state.details
    assert first in state.details
    assert (consortium.folder / "lost" / "model" / "best.safetensors").exists()
    assert (consortium.folder / "lost" / "report.html").exists()
