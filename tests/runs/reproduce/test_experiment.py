"""Experiment files: all of them resolve at every scale, and mistakes are named."""

import tomllib
from pathlib import Path

import pytest

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.errors import UserError
from fedsaddle.runs.reproduce import SCALES, experiment_names, plan, read_experiment

FOLDER = Path(__file__).parents[3] / "experiments"
WANTED = {
    "cdma-fig1-mnist",
    "cdma-fig1-cifar10",
    "cdma-fig2-mnist",
    "cdma-fig2-fashion-mnist",
    "cdma-table2-mnist",
    "cdma-table2-fashion-mnist",
    "cdma-fig3-mnist",
    "localscgdam-table1-fashion-mnist",
    "localscgdam-table1-cifar10",
    "localscgdam-table1-cifar100",
    "localscgdam-table1-ham10000",
    "localscgdam-fig4",
    "localscgdam-fig5",
    "drfa-fig4",
    "drfa-fig5",
    "drfa-fig6",
    "codasca-fig1-cifar100",
    "codasca-table3",
    "codasca-sources-heart",
    "codasca-sources-ham10000",
}
SMALL = """
title = "Digits"
paper = "Nobody, Figure 0"
notes = "Bundled data."

[base.data]
source = "digits"
clients = 3

[[entrants]]
label = "CODASCA"
algorithm = { name = "codasca", batch_size = 8 }

[[entrants]]
label = "FedAvg"
problem = { name = "risk" }
algorithm = { name = "fedavg" }
run = { rounds = 50 }

[vary]
setting = "algorithm.local_steps"
symbol = "I"
values = [2, 4]

[figure]
panels = [{ metric = "test/auc", title = "AUC" }]

[scale.quick]
reduced = "All."
seeds = 1
iterations = 9
evaluations = 2
algorithm = { batch_size = 4 }

[scale.cpu]
reduced = "Less."
seeds = 3
only = ["CODASCA"]
values = [8]
run = { rounds = 7 }

[[claims]]
text = "I = {value}: CODASCA beats FedAvg."
paper = { 2 = "0.9 against 0.8", 4 = "0.9 against 0.7" }
each = true
rule = "beats"
metric = "test/auc"
better = ["CODASCA"]
worse = ["FedAvg"]
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def small(tmp_path, old="", new=""):
    assert old in SMALL
    return read_experiment(write(tmp_path / "small.toml", SMALL.replace(old, new)))


def test_every_figure_and_table_has_a_file():
    assert set(experiment_names()) >= WANTED
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(experiment_names())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", experiment_names())
def test_experiments_resolve_at_every_scale(name, scale):
    made = plan(read_experiment(name), scale)  # checks every configuration and every claim
    assert made.reduced.endswith(".")
    assert made.claims
    given = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    changed = {*given["scale"][scale].get("algorithm", {}), "local_steps", "stage_rounds"}
    written = {entrant["label"]: entrant for entrant in given["entrants"]}
    for entrant in made.entrants:
        algorithm = made.config(entrant).algorithm
        label = max((name for name in written if entrant.label.startswith(name)), key=len)
        for key, value in written[label]["algorithm"].items():  # nothing was dropped
            if key not in changed:
                assert algorithm[key] == value


def test_all_nine_methods_of_cdma_send_as_many_floats_a_round():
    made = plan(read_experiment("cdma-fig1-mnist"), "paper")
    nine = [e for e in made.entrants if "our" not in e.label]
    assert len({e.overrides["algorithm"]["name"] for e in nine}) == 9
    for entrant in nine:
        config = made.config(entrant)
        method = ALGORITHMS[config.algorithm["name"]]
        options = {k: v for k, v in config.algorithm.items() if k != "name"}
        up = sum(
            size == "point" for phase in method(**options).phases(1) for size in phase.up.values()
        )
        assert up * config.federation.clients_per_round == 16
        assert config.federation.availability == "uniform-response"


def test_values_iterations_and_scales_go_over_the_entrants(tmp_path):
    made = plan(small(tmp_path), "quick")
    assert [e.label for e in made.entrants] == [
        "CODASCA, I = 2",
        "CODASCA, I = 4",
        "FedAvg, I = 2",
        "FedAvg, I = 4",
    ]
    configs = [made.config(entrant) for entrant in made.entrants]
    assert [config.algorithm["local_steps"] for config in configs] == [2, 4, 2, 4]
    assert [config.run.rounds for config in configs] == [4, 2, 4, 2]
    assert [config.evaluation.every for config in configs] == [2, 1, 2, 1]
    assert {config.algorithm["batch_size"] for config in configs} == {4}
    assert [claim.paper for claim in made.claims] == ["0.9 against 0.8", "0.9 against 0.7"]
    assert made.claims[1].text == "I = 4: CODASCA beats FedAvg."
    assert made.claims[1].better == ("CODASCA, I = 4",)


def test_a_scale_may_leave_some_out(tmp_path):
    made = plan(small(tmp_path), "cpu")
    (entrant,) = made.entrants
    assert entrant.label == "CODASCA, I = 8"
    assert made.config(entrant).run.rounds == 7
    assert list(made.seeds) == [0, 1, 2]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Digits"', 'titel = "Digits"', "titel: there is no such key"),
        ('notes = "Bundled data."', "", "notes is missing"),
        ("seeds = 1", "seeds = 0", "scale.quick.seeds"),
        ('rule = "beats"', 'rule = "wins"', "rule"),
        ('worse = ["FedAvg"]', 'worse = ["FedAvgg"]', "did you mean 'FedAvg"),
        ('name = "fedavg"', 'name = "fedavgg"', "FedAvg, I = 2: algorithm.name"),
        ("clients = 3", "klients = 3", "data.klients"),
        ("[base.data]", "[base.data", "not a TOML file"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, said):
    with pytest.raises(UserError, match=r"experiment small") as error:
        plan(small(tmp_path, old, new), "quick")
    assert said in str(error.value)


def test_unknown_names_and_scales(tmp_path):
    with pytest.raises(UserError, match="did you mean 'drfa-fig4'"):
        read_experiment("drfa-fig44")
    with pytest.raises(UserError, match="no such file"):
        read_experiment(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="no scale 'paper'; it has quick, cpu"):
        plan(small(tmp_path), "paper")
