"""`fedsaddle reproduce`."""

import json

import pytest

EXPERIMENT = """
title = "Digits"
paper = "Nobody, Figure 0"
notes = "Bundled data."

[base.data]
source = "digits"
clients = 3

[[entrants]]
label = "CODASCA"
algorithm = { name = "codasca", local_steps = 1 }

[figure]
panels = [{ metric = "test/auc", title = "AUC" }]

[scale.quick]
reduced = "All of it."
seeds = 1
run = { rounds = 2 }

[[claims]]
text = "It learns something."
rule = "at-least"
metric = "test/auc"
label = "CODASCA"
value = 0.1
"""


def test_list(run):
    code, out, _ = run("reproduce", "--list")
    assert code == 0
    assert "drfa-fig4" in out
    code, out, _ = run("reproduce", "--list", "--json")
    listed = {row["name"]: row for row in json.loads(out)}
    assert {"quick", "cpu", "paper"} == set(listed["codasca-fig1-cifar100"]["scales"])
    assert listed["cdma-fig1-mnist"]["claims"] > 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--list"),
        (["drfa-fig44"], "did you mean 'drfa-fig4'"),
        (["drfa-fig4", "--scale", "papers"], "did you mean 'paper'"),
        (["none.toml"], "none.toml: there is no such file"),
    ],
)
def test_mistakes_exit_with_two_and_write_nothing(run, tmp_path, arguments, said):
    code, out, err = run("reproduce", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not any(tmp_path.iterdir())


def test_reproduce_resume_and_store(run, tmp_path):
    (tmp_path / "digits.toml").write_text(EXPERIMENT)
    code, out, err = run("reproduce", "digits.toml")
    assert code == 0, err
    assert "reproduced" in out
    assert "1 runs in runs/digits-quick" in err
    assert (tmp_path / "runs/digits-quick/report.html").is_file()
    code, _, err = run("reproduce", "digits.toml")
    assert code == 2
    assert "--resume" in err
    code, out, err = run("reproduce", "digits.toml", "--resume", "--store", "kept", "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert printed["claims"][0]["verdict"] == "reproduced"
    assert printed["stored"] == "kept/digits-quick"
    assert (tmp_path / "kept/digits-quick/figure.svg").is_file()


def test_help_has_examples(run):
    code, out, _ = run("reproduce", "--help")
    assert code == 0
    assert "fedsaddle reproduce drfa-fig4 --scale cpu" in out
