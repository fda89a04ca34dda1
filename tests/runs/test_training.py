"""Runs in a folder: what is written, resumed, refused."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import torch

import fedsaddle
from fedsaddle.algorithms import CODASCA, FedAvg
from fedsaddle.data import DataOptions, FederatedData
from fedsaddle.errors import UserError
from fedsaddle.problems import AUC, Problem
from fedsaddle.runs.training import Training

SMALL = DataOptions(source="breast-cancer", clients=4)


def train(out, **changes):
    options = {"rounds": 12, "out": out, "checkpoint_every": 5} | changes
    method = options.pop("algorithm", CODASCA(stage_rounds=4, batch_size=16))
    return fedsaddle.train("auc", SMALL, method, **options)


def test_a_run_folder_says_everything(tmp_path):
    result = train(tmp_path / "run")
    run = tmp_path / "run"
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["algorithm"]["name"] == "codasca"
    assert config["algorithm"]["stage_rounds"] == 4
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(13))
    for name in ("test/auc", "validation/auc", "train/objective", "floats_up", "seconds"):
        assert all(name in row for row in rows)
    assert {f"site/client-{k}/auc" for k in range(4)} <= set(rows[-1])
    assert rows[-1] == result.history[-1]
    d = 30 + 1 + 2 + 1
    assert rows[-1]["floats_up"] == 12 * 4 * 2 * d
    assert rows[-1]["bytes_up"] == 4 * rows[-1]["floats_up"]
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert checkpoints == ["round-0000010.safetensors", "round-0000012.safetensors"]
    assert {path.name for path in (run / "model").iterdir()} == {
        "model.json",
        "model.safetensors",
        "best.safetensors",
    }
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["summary"]["test/auc"] == rows[-1]["test/auc"]
    assert [site["name"] for site in evaluation["sites"]] == [f"client-{k}" for k in range(4)]


def test_the_ledger_of_a_run_with_a_folder_is_not_kept_in_memory(tmp_path, monkeypatch):
    kept = []
    booked = Training._book

    def book(training, entries):
        booked(training, entries)
        kept.append((len(training.entries), [told["round"] for told in training.told]))

    monkeypatch.setattr(Training, "_book", book)
    options = {"rounds": 5, "evaluation": {"every": 2}}
    inside = train(None, **options).record.ledger
    assert [entries for entries, _ in kept] == [1, 2, 3, 4, 5]
    kept.clear()
    outside = train(tmp_path / "run", **options).record.ledger
    assert kept == [(0, []), (0, [2]), (0, [2]), (0, [2, 4]), (0, [2, 4, 5])]
    assert outside == inside
    assert [entry["round"] for entry in outside] == [1, 2, 3, 4, 5]


def same_model(a, b):
    return (a / "model/model.safetensors").read_bytes() == (
        b / "model/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("rule", ["average", "random", "last"])
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path, rule):
    method = CODASCA(stage_rounds=4, batch_size=16, output_rule=rule)
    federation = {"clients_per_round": 3, "availability": "dropout", "dropout": 0.2}
    options = {"algorithm": method, "federation": federation}
    whole = train(tmp_path / "whole", **options)
    train(tmp_path / "parts", rounds=5, **options)
    train(tmp_path / "parts", rounds=7, resume=True, **options)
    resumed = train(tmp_path / "parts", resume=True, **options)
    assert same_model(tmp_path / "whole", tmp_path / "parts")
    last, again = whole.history[-1], resumed.history[-1]
    assert {k: v for k, v in last.items() if k != "seconds"} == {
        k: v for k, v in again.items() if k != "seconds"
    }
    assert whole.record.ledger == resumed.record.ledger
    assert resumed.best_round == whole.best_round or resumed.best_round in (5, 7)


def test_lines_after_the_last_checkpoint_are_written_again(tmp_path):
    train(tmp_path / "whole")
    train(tmp_path / "cut", rounds=10)
    with (tmp_path / "cut/metrics.jsonl").open("a") as file:
        file.write('{"round": 11, "test/auc": 0.5}\n{"round": 12, "test/a')
    with (tmp_path / "cut/ledger.jsonl").open("a") as file:
        file.write('{"round": 11}\n')
    train(tmp_path / "cut", resume=True)
    assert same_model(tmp_path / "whole", tmp_path / "cut")
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("whole", "cut")]
    assert ledgers[0] == ledgers[1]


def test_resuming_a_run_that_never_reached_a_checkpoint_starts_over(tmp_path):
    train(tmp_path / "whole", rounds=3)
    train(tmp_path / "early", rounds=3)
    shutil.rmtree(tmp_path / "early/checkpoints")
    train(tmp_path / "early", rounds=3, resume=True)
    assert same_model(tmp_path / "whole", tmp_path / "early")
    assert len((tmp_path / "early/metrics.jsonl").read_text().splitlines()) == 4


def test_the_folder_of_another_run_is_refused_and_left_alone(tmp_path):
    train(tmp_path / "run", rounds=2)
    before = (tmp_path / "run/config.toml").read_text()
    with pytest.raises(UserError, match=r"different run \(algorithm"):
        train(tmp_path / "run", rounds=2, algorithm=FedAvg(), resume=True)
    with pytest.raises(UserError, match=r"run\.seed is 0 there and 1 here"):
        train(tmp_path / "run", rounds=2, seed=1, resume=True)
    with pytest.raises(UserError, match="here already"):
        train(tmp_path / "run", rounds=2)
    assert (tmp_path / "run/config.toml").read_text() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="other files"):
        train(tmp_path / "mine", rounds=2)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_an_unreadable_checkpoint_is_named(tmp_path):
    train(tmp_path / "run", rounds=10)
    newest = tmp_path / "run/checkpoints/round-0000010.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"round-0000010.*delete it to resume"):
        train(tmp_path / "run", resume=True)
    newest.unlink()
    train(tmp_path / "run", resume=True)
    train(tmp_path / "whole")
    assert same_model(tmp_path / "whole", tmp_path / "run")


def test_the_best_model_is_the_best_evaluated_round(tmp_path):
    result = train(tmp_path / "run", evaluation={"best": "test/loss"})
    losses = {row["round"]: row["test/loss"] for row in result.history if row["round"] > 0}
    assert result.best_round == min(losses, key=losses.get)


def test_a_wrong_metric_name_fails_at_once(tmp_path):
    with pytest.raises(UserError, match="did you mean 'validation/auc'"):
        train(tmp_path / "run", evaluation={"best": "validation/acu"})
    with pytest.raises(UserError, match="does not say which"):
        train(tmp_path / "run", evaluation={"best": "test/rows"})
    assert not (tmp_path / "run").exists()


def test_binned_evaluation_is_close_to_exact():
    exact, binned = (
        fedsaddle.train("auc", SMALL, rounds=3, evaluation={"auc": how})
        for how in ("exact", "binned")
    )
    gap = exact.metrics["test/auc"] - binned.metrics["test/auc"]
    assert 0 <= np.abs(gap).max() < 2e-3


def test_closed_form_sets_the_class_means_of_all_clients():
    result = fedsaddle.train(AUC(model=logistic(30), closed_form=True), SMALL, rounds=5)
    assert set(result.x) >= {"a", "b", "alpha"}
    assert result.y == {}
    assert result.x["alpha"].item() == pytest.approx(
        (result.x["b"] - result.x["a"]).item(), abs=1e-6
    )
    assert result.x["a"] > result.x["b"]
    assert {entry["phase"] for entry in result.record.ledger} == {"refresh", "steps"}
    refresh = next(entry for entry in result.record.ledger if entry["phase"] == "refresh")
    clients = len(refresh["answered"])
    assert refresh["floats_up"] == 4 * clients
    assert result.history[-1]["test/auc"] > 0.9


def logistic(n):
    return torch.nn.Linear(n, 1)


def test_multiclass_risk_measures_accuracy():
    result = fedsaddle.train("risk", "digits", FedAvg(learning_rate=0.5), rounds=10)
    assert result.history[-1]["test/accuracy"] > 0.6
    assert "test/auc" not in result.history[-1]
    assert result.best_round is not None


class Quadratic(Problem):
    def start(self, generator):
        return {"x": torch.zeros(2)}, {"y": torch.zeros(2)}

    def loss(self, x, y, batch):
        pull = (x["x"] - batch.inputs.mean(0)).square().sum() / 2
        return pull + x["x"] @ y["y"] - y["y"].square().sum() / 2


def test_a_users_problem_in_ten_lines_trains_with_every_method():
    random = np.random.default_rng(0)
    clients = [random.normal(size=(20, 2)) + k for k in range(4)]
    data = FederatedData.from_clients(clients, test=0, validation=0)
    solution = np.mean([own.mean(0) for own in clients], axis=0) / 2
    methods = [m for m in fedsaddle.algorithms.ALGORITHMS.values() if "minimax" in m.solves]
    assert len(methods) >= 4
    for method in methods:
        result = fedsaddle.train(Quadratic(), data, method(learning_rate=0.1), rounds=100)
        assert result.model is None
        for found in (result.x["x"], result.y["y"]):
            distance = np.linalg.norm(found.numpy() - solution) / np.linalg.norm(solution)
            assert distance < 0.4, method.name


def test_one_class_one_row_and_empty_clients():
    random = np.random.default_rng(1)

    def rows(n):
        return random.normal(size=(n, 3))

    both = np.tile([0, 1], 20)
    clients = [
        (rows(40) + both[:, None], both),
        (rows(12), np.zeros(12, int)),
        (rows(1), np.ones(1, int)),
        (np.zeros((0, 3)), np.zeros(0, int)),
    ]
    names = ["both", "negatives", "one row", "empty"]
    data = FederatedData.from_clients(clients, names=names)
    result = fedsaddle.train("auc", data, rounds=5)
    assert {tuple(entry["selected"]) for entry in result.record.ledger} == {(0, 1, 2)}
    last = result.history[-1]
    assert last["site/both/auc"] is not None
    assert last["site/negatives/auc"] is None
    assert last["site/empty/rows"] == 0
    assert last["test/undefined_sites"] == 1
    assert torch.isfinite(result.x["a"])


@pytest.mark.parametrize(
    ("labels", "says"),
    [(np.zeros(20, int), "all training rows are of class '0'"), (np.arange(20) % 3, "two classes")],
)
def test_auc_needs_two_classes_among_all_clients(labels, says):
    data = FederatedData.from_clients([(np.ones((20, 2)), labels)])
    with pytest.raises(UserError, match=says):
        fedsaddle.train("auc", data, rounds=1)


def test_groups_and_dropout_name_clients_that_exist():
    with pytest.raises(UserError, match="did you mean 'client-1'"):
        fedsaddle.train("auc", SMALL, rounds=1, federation={"dropout": {"clent-1": 0.5}})
    with pytest.raises(UserError, match="no probability"):
        fedsaddle.train("auc", SMALL, rounds=1, federation={"dropout": 1.5})
    with pytest.raises(UserError, match=r"client 'client-1' is in no group"):
        fedsaddle.train("auc", SMALL, rounds=1, federation={"groups": {"a": ["client-0"]}})


def test_result_gives_arrays_and_a_report(tmp_path):
    result = fedsaddle.train("auc", SMALL, rounds=2)
    assert result.folder is None
    assert result.metrics["round"].tolist() == [0, 1, 2]
    assert result.metrics["test/auc"].dtype == float
    assert "test/worst_site" not in result.metrics
    assert isinstance(result.model, torch.nn.Module)
    path = result.report(tmp_path / "report.html")
    assert "client-2" in path.read_text()


@pytest.mark.data
def test_heart_disease_reports_every_hospital(data_root):
    result = fedsaddle.train(
        "auc", DataOptions(source="heart-disease", root=data_root), "codasca", rounds=30
    )
    sites = {site["name"]: site for site in result.evaluation["sites"]}
    assert set(sites) == {"cleveland", "hungarian", "switzerland", "va"}
    assert sites["switzerland"]["n_negative"] == 2
    assert sites["switzerland"]["auc"] is not None
    assert result.evaluation["summary"]["test/auc"] > 0.8


def test_many_stages_end_in_rest_and_not_in_divergence():
    """After a hundred stages the step size is below what a float can be."""
    method = CODASCA(stage_rounds=1, batch_size=16, learning_rate=1.0)
    assert method.rate(99) < torch.finfo(torch.float32).tiny
    result = fedsaddle.train("auc", SMALL, method, rounds=100)
    assert result.stopped is None
    assert result.history[-1]["round"] == 100
    assert result.history[-1]["test/auc"] > 0.9
