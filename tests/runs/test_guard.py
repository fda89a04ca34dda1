import json

import pytest
import torch

import fedsaddle
from fedsaddle.algorithms import Algorithm, LocalSGDA, Phase
from fedsaddle.data import DataOptions
from fedsaddle.runs.guard import Guard

SMALL = DataOptions(source="breast-cancer", clients=4)


def row(value, objective=0.1, **more):
    return {"validation/auc": value, "train/objective": objective} | more


def verdicts(rows, **options):
    guard = Guard("validation/auc", higher=True, **options)
    last = len(rows) - 1
    return [guard.judge(one, number == last) is not None for number, one in enumerate(rows)]


def test_one_bad_evaluation_is_forgiven_two_are_not():
    assert verdicts([row(0.9), row(0.7), row(0.9), row(0.89)]) == [False] * 4
    assert verdicts([row(0.9), row(0.7), row(0.7), row(0.7)]) == [False, False, True, True]


def test_a_bad_last_evaluation_is_never_silent():
    assert verdicts([row(0.9), row(0.9), row(0.7)]) == [False, False, True]


def test_a_slow_decline_within_reach_of_the_best_is_no_collapse():
    assert verdicts([row(0.95), row(0.9), row(0.88), row(0.86)]) == [False] * 4


def test_a_fall_within_the_intervals_is_noise():
    wide = {"validation/auc_low": 0.5, "validation/auc_high": 0.99}
    assert verdicts([row(0.9, **wide), row(0.7, **wide), row(0.7, **wide)]) == [False] * 3
    narrow = {"validation/auc_low": 0.69, "validation/auc_high": 0.71}
    best = {"validation/auc_low": 0.89, "validation/auc_high": 0.91}
    assert verdicts([row(0.9, **best), row(0.7, **narrow), row(0.7, **narrow)])[-1]


def test_an_objective_that_is_not_finite_is_bad_and_the_guard_can_be_off():
    rows = [row(0.9), row(0.9, None), row(0.9, float("inf"))]
    assert verdicts(rows) == [False, False, True]
    assert verdicts(rows, on=False) == [False] * 3


class TurnsRound(LocalSGDA):
    """Trains well for eight rounds, then runs away from the optimum."""

    name = "turns-round"

    def average(self, at, state, replies):
        if at.number < 8:
            return super().average(at, state, replies)
        return state | {"z": -30 * state["z"]} if at.number == 8 else state


def test_a_collapsing_run_ends_at_its_last_good_state_and_says_so(tmp_path):
    out = tmp_path / "run"
    options = {"rounds": 20, "out": out, "checkpoint_every": 3}
    result = fedsaddle.train("auc", SMALL, TurnsRound(), **options)
    assert result.stopped is not None
    assert "validation/auc fell from" in result.stopped
    assert "kept the model of round 8" in result.stopped
    assert "client-" in result.stopped
    assert "learning_rate" in result.stopped
    assert result.evaluation["summary"]["test/auc"] > 0.9
    good = next(one for one in result.history if one["round"] == 8)
    assert result.evaluation["summary"]["test/auc"] == good["test/auc"]
    assert json.loads((out / "evaluation.json").read_text())["stopped"] == result.stopped
    kept = [path.name for path in sorted((out / "checkpoints").iterdir())]
    assert kept == ["round-0000006.safetensors"]
    assert (out / "model/model.safetensors").exists()
    silent = fedsaddle.train("auc", SMALL, TurnsRound(), rounds=20, evaluation={"guard": False})
    assert silent.stopped is None
    assert silent.evaluation["summary"]["test/auc"] < 0.5


class Explodes(Algorithm):
    """Replies are fine for five rounds, then not finite at any client."""

    name = "explodes"

    def phases(self, number):
        return (Phase("steps", {"z": "point"}, {"z": "point"}, self.reply, self.take),)

    def reply(self, at, received, memory, client):
        return {"z": received["z"] * (float("nan") if at.number >= 5 else 1.0)}, memory

    def take(self, at, state, replies):
        return state | {"z": replies.mean("z")}


def test_replies_that_are_not_finite_stop_the_run_at_the_last_good_round():
    result = fedsaddle.train("auc", SMALL, Explodes(), rounds=9)
    assert "round 6, phase 'steps': only 0 of 4" in result.stopped
    assert "kept the model of round 5" in result.stopped
    assert result.record.evaluation["round"] == 5


def test_clipping_bounds_every_local_step():
    step, clip = 0.5, 0.01
    method = LocalSGDA(learning_rate=step, local_steps=1, clip=clip, batch_size=0)
    result = fedsaddle.train("auc", SMALL, method, rounds=1, engine={"dtype": "float64"})
    norms = result.record.ledger[0]["norms"].values()
    assert max(norms) == pytest.approx(step * clip, rel=1e-3)
    free = fedsaddle.train(
        "auc", SMALL, LocalSGDA(learning_rate=step, local_steps=1, batch_size=0), rounds=1
    )
    assert max(free.record.ledger[0]["norms"].values()) > 10 * step * clip
    assert torch.isfinite(result.x["a"])
