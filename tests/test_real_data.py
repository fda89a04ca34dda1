"""Every problem with a natural method on real data, from the command line, for a few rounds."""

import json
import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsaddle
from fedsaddle.cli import main
from fedsaddle.data import FederatedData, Rows, load
from fedsaddle.engines import simulation
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.config import write_sections
from fedsaddle.runs.reproduce import experiment_names, plan, read_experiment


@pytest.fixture
def train(monkeypatch, capsys, tmp_path, data_root):
    """`fedsaddle train ... --json`: what it prints, and the last line of metrics.jsonl."""
    root = data_root.resolve()
    monkeypatch.setenv("FEDSADDLE_DATA", str(root))
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments, rounds, settings=()):
        command = [*arguments, "--rounds", rounds, "--out", "run", "--json"]
        for setting in ("evaluation.every=1000", *settings):  # first and last round
            command += ["--set", setting]
        monkeypatch.setattr(sys, "argv", ["fedsaddle", "train", *map(str, command)])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        assert not left.value.code, printed.err
        rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["round"] == rounds
        assert math.isfinite(rows[-1]["train/objective"])
        assert rows[-1]["floats_up"] > 0
        assert Path("run/model/model.safetensors").stat().st_size > 0
        return json.loads(printed.out), rows

    return call


def experiment(name: str, label: str) -> str:
    """The settings of one method of an experiment at full scale, as a file."""
    made = plan(read_experiment(name), "paper")
    (entrant,) = [entrant for entrant in made.entrants if entrant.label == label]
    Path("experiment.toml").write_text(write_sections(made.config(entrant).sections()))
    return "experiment.toml"


def fell(rows) -> bool:
    return rows[-1]["train/objective"] < rows[0]["train/objective"]


@pytest.mark.data
def test_auc_of_five_hundred_clients_with_one_class_each(train):
    printed, rows = train(experiment("cdma-fig1-mnist", "CDMA-ADA"), rounds=6)
    assert printed["summary"]["test/rows"] == 10000
    assert printed["summary"]["test/auc"] > 0.6
    assert [site["name"] for site in printed["sites"] if site["rows"]] == ["held-out"]
    facts = json.loads(Path("run/data.json").read_text())["clients"]
    assert {client["train_rows"] for client in facts[:500]} == {120}
    assert sum(client["train_positives"] in (0, 120) for client in facts[:500]) >= 499
    # Between half and all of 8 clients answer in either phase; each sends one vector.
    ledger = [json.loads(line) for line in Path("run/ledger.jsonl").read_text().splitlines()]
    assert {len(entry["selected"]) for entry in ledger} == {8}
    assert all(4 <= len(entry["answered"]) <= 8 for entry in ledger)
    assert rows[-1]["floats_up"] == sum(entry["floats_up"] for entry in ledger)


@pytest.mark.data
def test_compositional_auc_on_four_devices(train):
    printed, rows = train(
        experiment("localscgdam-table1-fashion-mnist", "LocalSCGDAM, p = 4"),
        rounds=6,
        settings=["algorithm.batch_size=16", "model.name=lenet-5"],
    )
    facts = json.loads(Path("run/data.json").read_text())["clients"]
    assert sum(client["train_positives"] for client in facts) / sum(
        client["train_rows"] for client in facts
    ) == pytest.approx(0.1, abs=1e-4)
    (held_out,) = [site for site in printed["sites"] if site["rows"]]
    assert held_out["n_positive"] == held_out["n_negative"] == 5000
    assert held_out["auc"] > 0.7
    assert rows[-1]["floats_up"] == rows[-1]["floats_down"]


@pytest.mark.data
@pytest.mark.parametrize("name", ["drfa-fig4", "drfa-fig5"])
def test_the_worst_node_of_adult(train, name):
    printed, rows = train(experiment(name, "DRFA"), rounds=5)
    summary = printed["summary"]
    assert len(printed["sites"]) == 10
    assert summary["test/rows"] == 16281
    worst = min(site["accuracy"] for site in printed["sites"])
    assert summary["test/worst_accuracy"] == pytest.approx(worst)
    assert summary["test/auc"] > 0.75
    assert 0 < summary["test/std_accuracy"] < 0.2
    weights = {key: value for key, value in rows[-1].items() if key.startswith("lambda/")}
    assert len(weights) == 10
    assert sum(weights.values()) == pytest.approx(1)
    assert max(weights.values()) > 0.1


@pytest.mark.data
def test_groups_of_adult_have_weights(train):
    """Where the settings name no groups, the values of `data.feature` are weighed."""
    printed, rows = train(
        *("--data", "adult", "--problem", "agnostic", "--algorithm", "drfa"),
        rounds=3,
        settings=["data.partition=feature", "data.feature=sex", "data.clients=4"],
    )
    weights = {key: value for key, value in rows[-1].items() if key.startswith("lambda/")}
    assert set(weights) == {"lambda/Female", "lambda/Male"}
    assert sum(weights.values()) == pytest.approx(1)
    assert len(printed["sites"]) == 4


def test_a_site_that_only_tests_has_no_weight():
    """As the site 'held-out': a group of its own in the data, and no client to train on it."""
    data = FederatedData(
        torch.randn(40, 3, generator=torch.Generator().manual_seed(0)),
        torch.arange(40) % 2,
        Rows(np.arange(30), np.array([0, 10, 20, 30, 30])),
        Rows.empty(4),
        Rows(np.arange(30, 40), np.array([0, 0, 0, 0, 10])),
        names=("a", "b", "c", "held-out"),
        classes=("0", "1"),
        groups=("north", "north", "south", "held-out"),
    )
    last = fedsaddle.train("agnostic", data, "drfa", rounds=2).history[-1]
    assert {key for key in last if key.startswith("lambda/")} == {"lambda/north", "lambda/south"}
    assert last["site/held-out/rows"] == 10


@pytest.mark.data
@pytest.mark.parametrize(("problem", "method"), [("risk", "fedavg"), ("agnostic", "drfa")])
def test_next_character_by_speaker(train, problem, method):
    printed, rows = train(
        *("--data", "shakespeare", "--model", "char-gru"),
        *("--problem", problem, "--algorithm", method),
        rounds=3,
        settings=[
            "data.min_rows=30000",
            "federation.clients_per_round=2",
            "algorithm.learning_rate=0.8",
            "algorithm.batch_size=8",
            "algorithm.local_steps=5",
            "model.arguments={hidden=16}",
        ],
    )
    assert len(printed["sites"]) == 3
    assert all(site["rows"] > 90 for site in printed["sites"])
    assert "GLOUCESTER" in {site["name"] for site in printed["sites"]}
    assert printed["summary"]["test/accuracy"] > 1 / 20  # of 86 characters
    assert fell(rows)


@pytest.mark.data
@pytest.mark.parametrize("method", ["local-sgda", "cdma-one"])
def test_robust_training(train, method):
    printed, rows = train(
        *("--data", "fashion-mnist", "--problem", "robust", "--model", "mlp"),
        *("--algorithm", method),
        rounds=5,
        settings=[
            "model.arguments={hidden=[200, 200]}",
            "data.partition=sorted",
            "data.clients=500",
            "federation.clients_per_round=8",
            "algorithm.learning_rate=0.02",
            "problem.pgd_steps=2",
            "problem.ascent_steps=3",
        ],
    )
    summary = printed["summary"]
    assert summary["test/robust_loss"] >= summary["test/loss"] - 1e-6
    assert 0 <= summary["test/pgd_accuracy"] <= summary["test/accuracy"]
    assert summary["test/accuracy"] > 0.15
    assert fell(rows)


@pytest.mark.data
def test_a_gan_and_its_pictures(train, monkeypatch):
    quick = partial(simulation.train_scorer, steps=100)  # a worse judge than a run has
    monkeypatch.setattr(simulation, "train_scorer", quick)
    printed, _ = train(
        experiment("cdma-table2-mnist", "CDMA-ADA"),
        rounds=1,
        settings=["model.arguments={width=8}", "problem.generated=200", "algorithm.local_steps=4"],
    )
    assert printed["summary"]["test/frechet_distance"] > 0
    assert 1 <= printed["summary"]["test/inception_score"] <= 10
    samples = json.loads(Path("run/evaluation.json").read_text())["samples"]
    assert samples.startswith("data:image/png;base64,")
    assert samples in Path("run/report.html").read_text()


@pytest.mark.data
def test_four_hospitals(train):
    printed, _ = train("--data", "heart-disease", "--algorithm", "codasca", rounds=15)
    sites = {site["name"]: site for site in printed["sites"]}
    assert list(sites) == ["cleveland", "hungarian", "switzerland", "va"]
    assert printed["summary"]["test/auc"] > 0.75
    assert all(site["auc_low"] < site["auc"] < site["auc_high"] for site in sites.values())


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "settings"), [("ham10000", ["data.image_size=16"]), ("ham10000-8x8", [])]
)
def test_melanoma_by_collection(train, source, settings):
    printed, _ = train("--data", source, "--algorithm", "codasca", rounds=15, settings=settings)
    sites = {site["name"]: site for site in printed["sites"]}
    assert list(sites) == ["rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"]
    assert printed["summary"]["test/auc"] > 0.6
    assert sites["rosendahl"]["n_positive"] > 0


@pytest.mark.data
@pytest.mark.parametrize("source", ["breastmnist", "pneumoniamnist"])
def test_medmnist(train, source):
    printed, rows = train(
        *("--data", source, "--algorithm", "codasca"),
        rounds=10,
        settings=["algorithm.learning_rate=0.1", "data.partition=iid", "data.clients=4"],
    )
    assert printed["summary"]["test/auc"] > 0.6
    assert "validation/auc" in rows[-1]  # the publisher's own validation rows
    assert rows[-1]["site/held-out/rows"] == printed["summary"]["test/rows"]


@pytest.mark.data
def test_cifar_10(train):
    printed, _ = train(
        experiment("cdma-fig1-cifar10", "CDMA-ADA"),
        rounds=2,
        settings=["algorithm.local_steps=2", "model.name=mlp"],
    )
    assert printed["summary"]["test/auc"] > 0.5
    assert printed["sites"][-1]["n_negative"] == 9 * printed["sites"][-1]["n_positive"]


@pytest.mark.data
def test_cifar_100_with_disjoint_classes(train):
    printed, _ = train(
        experiment("codasca-fig1-cifar100", "CODASCA, K = 8, I = 32"),
        rounds=4,
        settings=["model.name=logistic", "algorithm.learning_rate=0.01"],
    )
    facts = json.loads(Path("run/data.json").read_text())["clients"]
    assert all(client["train_positives"] > 0 for client in facts[:8])
    (held_out,) = [site for site in printed["sites"] if site["rows"]]
    assert held_out["n_positive"] == held_out["n_negative"]
    assert held_out["auc"] > 0.5


@pytest.mark.data
@pytest.mark.parametrize("name", experiment_names())
def test_experiments_find_their_data(name, data_root):
    made = plan(read_experiment(name), "cpu")
    config = made.config(made.entrants[0])
    options = config.data.model_copy(update={"root": data_root})
    data = load(options, binary=PROBLEMS[config.problem["name"]].task == "binary")
    own = {"shakespeare": 100, "ham10000-8x8": 4, "heart-disease": 4}  # clients of the source
    expected = len(options.train_on) or own.get(options.source, options.clients)
    counts = data.train.counts[data.train.counts > 0]
    assert len(counts) == expected
    assert options.source == "shakespeare" or not len(data.validation.indices)
    assert len(data.test.indices) > 0
