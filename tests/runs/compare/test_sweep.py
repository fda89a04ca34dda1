"""Sweeps: what is searched, what is never looked at, and that nothing depends on chance."""

import json

import optuna
import pytest
import torch

from fedsaddle.errors import UserError
from fedsaddle.runs.compare import Entrant, named_entrants, sweep
from fedsaddle.runs.compare.entrants import data_of, settle
from fedsaddle.runs.compare.spaces import Range, distributions, grid, spaces
from fedsaddle.runs.compare.sweep import GENERATION, Outcome, Search, Sweep, one_split, tune

BASE = one_split(
    {"data": {"source": "digits", "clients": 4}, "run": {"rounds": 6}, "evaluation": {"every": 1}},
    seed=0,
)


def configs(*names, base=BASE):
    return settle(base, named_entrants(base, names), 0)


def tried(config, metric="validation/auc", before=()):
    return sweep.try_one(config.sections(), metric, True, list(before), lambda what: None)


def test_no_test_row_plays_a_part(monkeypatch):
    config = configs("local-sgda")["local-sgda"]
    honest = tried(config)
    assert len(honest.by_round) == 6

    def poisoned(config):
        data = data_of(config)
        rows = torch.from_numpy(data.test.indices)
        data.inputs[rows] = 1e6
        data.labels[rows] = 1 - data.labels[rows]
        return data

    monkeypatch.setattr(sweep, "data_of", poisoned)
    assert tried(config) == honest
    seen = []
    monkeypatch.setattr(sweep.Judge, "round", lambda self, number, row, totals: seen.append(row))
    tried(config)
    assert not [name for row in seen if row for name in row if name.startswith("test/")]


def test_all_seeds_are_split_alike_so_that_none_is_tested_on_what_was_swept():
    one, other = (data_of(settle(BASE, named_entrants(BASE, ["coda"]), s)["coda"]) for s in (0, 9))
    assert one.test.indices.tolist() == other.test.indices.tolist()
    assert one_split({"data": {"seed": 4}}, 0)["data"]["seed"] == 4


def test_default_spaces_are_the_step_sizes():
    base = {"data": {"source": "digits"}}
    found = spaces({}, configs("codasca", "local-sgda", "local-sgda:risk", "afl:risk", base=base))
    assert list(found["codasca"]) == ["learning_rate"]
    assert list(found["local-sgda"]) == ["learning_rate", "dual_rate"]
    assert list(found["local-sgda-risk"]) == ["learning_rate"], "there is no dual variable"
    assert list(found["afl-risk"]) == ["learning_rate", "dual_rate"], "its dual is its own"
    rate = found["codasca"]["learning_rate"]
    assert rate.low < 0.8 < rate.high
    assert distributions(found["codasca"])["learning_rate"].log


def test_a_sweep_table_names_settings_of_all_or_of_one():
    table = {
        "learning_rate": [0.1, 1.0],
        "codasca": {"local_steps": {"low": 1, "high": 9}, "prox": {"low": 0.0, "high": 0.1}},
    }
    found = spaces(table, configs("codasca", "local-sgda"))
    assert found["local-sgda"] == {"learning_rate": [0.1, 1.0]}
    assert set(found["codasca"]) == {"learning_rate", "local_steps", "prox"}
    made = distributions(found["codasca"])
    assert isinstance(made["local_steps"], optuna.distributions.IntDistribution)
    assert not made["prox"].log, "a logarithm has no zero"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"learning_rat": [1]}, "sweep.learning_rat: no method here .* mean 'learning_rate'"),
        ({"codasca": {"lerning_rate": [1]}}, r"sweep.codasca.lerning_rate: .* 'learning_rate'"),
        ({"learning_rate": 0.1}, "sweep.learning_rate: a list of choices, or .* not 0.1"),
        ({"learning_rate": {"low": 1.0, "high": 0.1}}, r"low \(1.0\) must be below high"),
        ({"learning_rate": {"low": -1.0, "high": 1.0}}, "sweep.learning_rate: .*greater than 0"),
        ({"prox": {"low": 0.0, "high": 1.0, "log": True}}, "starts above 0, not at 0.0"),
        ({"learning_rate": {"lo": 1.0, "high": 2.0}}, "sweep.learning_rate"),
    ],
)
def test_mistakes_in_a_sweep_table_are_named(table, message):
    with pytest.raises(UserError, match=message):
        spaces(table, configs("codasca"))


def test_a_grid_has_equally_many_points_of_every_range_and_all_choices():
    space = {"learning_rate": Range(low=0.01, high=1.0), "local_steps": Range(low=1, high=4)}
    points = grid("x", space | {"batch_size": [8, 16]}, 20)
    assert len(points) == 18
    assert {point["learning_rate"] for point in points} == {0.01, 0.1, 1.0}
    assert {point["local_steps"] for point in points} == {1, 2, 4}
    with pytest.raises(UserError, match="has at least 4 points; use --sweep 4 or more"):
        grid("x", space, 3)


def search(sampler="tpe", trials=12, storage=None, **changes):
    config = configs("local-sgda")["local-sgda"]
    space = spaces({}, {"local-sgda": config})["local-sgda"]
    storage = storage or optuna.storages.InMemoryStorage()
    made = Sweep(trials, sampler)
    return Search("local-sgda", config, space, made, "validation/auc", True, storage)


def value_of(point):
    return Outcome(1 - abs(point["learning_rate"] - 0.5), {1: 0.5})


def fill(found, order):
    """Carry out a sweep in which the trials of a generation end in some order."""
    points = {}
    for first in range(0, found.trials, GENERATION):
        asked = [(place, found.propose(place, first)) for place in found.missing(first)]
        for place, point in sorted(asked, key=lambda pair: order * pair[0]):
            points[place] = point
            found.add(place, point, value_of(point))
    return points


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_what_is_tried_depends_neither_on_timing_nor_on_interruptions(sampler):
    forwards, backwards = search(sampler), search(sampler)
    points = fill(forwards, 1)
    assert fill(backwards, -1) == points
    assert forwards.winner() == backwards.winner()
    best = max(points.values(), key=lambda point: value_of(point).value)
    assert forwards.winner().items() >= best.items()
    stopped = search(sampler)
    for place in (2, 0):  # killed with half of the first generation in the database
        stopped.add(place, stopped.propose(place, 0), value_of(points[place]))
    assert stopped.missing(0) == [1, 3]
    assert fill(stopped, 1) | {place: points[place] for place in (0, 2)} == points


def test_the_first_trial_is_the_method_as_it_is():
    assert search().propose(0, 0) == {"learning_rate": 0.2, "dual_rate": 0.2}
    assert search().propose(1, 0) != search().propose(2, 0)


def test_a_trial_that_the_others_are_ahead_of_is_cut_short():
    config = configs("local-sgda")["local-sgda"]
    ahead = [
        optuna.trial.create_trial(value=1.0, intermediate_values=dict.fromkeys(range(1, 7), 1.0))
        for _ in range(5)
    ]
    cut = tried(config, before=ahead)
    assert cut.value is None
    assert 1 <= len(cut.by_round) < 6


def test_a_trial_that_diverges_is_no_winner():
    wild = {"algorithm": {"name": "local-sgda", "learning_rate": 1e30}}
    config = settle(BASE, [Entrant("wild", wild)], 0)["wild"]
    assert tried(config) == Outcome(None, {})
    lost = search()
    lost.add(0, lost.propose(0, 0), Outcome(None, {}))
    with pytest.raises(UserError, match=r"every trial of the sweep diverged.*\[sweep.local-sgda\]"):
        lost.winner()


def test_a_sweep_is_kept_resumed_and_refused_for_other_settings(tmp_path):
    entrants = named_entrants(BASE, ["local-sgda"])
    arguments = (BASE, entrants, 0, tmp_path, Sweep(5, "random"), "test/auc")
    (best,) = tune(*arguments, jobs=1)
    storage = f"sqlite:///{tmp_path / 'sweep.db'}"
    trials = optuna.load_study(study_name="local-sgda", storage=storage).trials
    assert sorted(trial.user_attrs["place"] for trial in trials) == [0, 1, 2, 3, 4]
    winner = max((t for t in trials if t.value is not None), key=lambda trial: trial.value)
    assert best.overrides["algorithm"].items() >= winner.params.items()
    again = tune(*arguments, jobs=1)
    assert again == [best]
    assert len(optuna.load_study(study_name="local-sgda", storage=storage).trials) == 5
    other = json.loads(json.dumps(BASE)) | {"run": {"rounds": 3}}
    with pytest.raises(UserError, match=r"local-sgda: sweep.db has a sweep of other settings"):
        tune(other, entrants, 0, tmp_path, Sweep(5, "random"), "test/auc")


def test_a_sweep_needs_validation_rows_and_a_metric_that_they_have(tmp_path):
    bare = BASE | {"data": BASE["data"] | {"validation": 0.0}}
    entrants = named_entrants(BASE, ["codasca"])
    with pytest.raises(UserError, match="--sweep: codasca: 'validation/auc' is not measured"):
        tune(bare, entrants, 0, tmp_path, Sweep(4), "test/auc")
    with pytest.raises(UserError, match="is of test rows only"):
        tune(BASE, entrants, 0, tmp_path, Sweep(4), "site/client-1/auc")
    assert not list(tmp_path.iterdir()), "refused before anything was written"
