"""The command line as a user types it."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest

from fedsaddle.metrics import auc_score


def patients(n=120, seed=0):
    """Mixed columns, missing values, three hospitals."""
    random = np.random.default_rng(seed)
    died = random.random(n) < 0.3
    frame = pd.DataFrame(
        {
            "age": random.normal(60, 9, n) + 9 * died,
            "sex": random.choice(["f", "m"], n),
            "smoker": random.choice(["yes", "no", None], n),
            "hospital": random.choice(["Basel", "Genf", "Ulm"], n),
            "died": np.where(died, "yes", "no"),
        }
    )
    frame.loc[::17, "age"] = np.nan
    return frame


QUICK = ("--rounds", "3", "--set", "data.clients=3")


def test_train_needs_no_config(run, tmp_path):
    code, out, err = run("train", *QUICK)
    assert code == 0, err
    assert "pooled test AUC 0." in out
    folder = tmp_path / "runs/breast-cancer-codasca-1"
    assert (folder / "report.html").stat().st_size > 10_000
    assert (folder / "model/model.safetensors").exists()
    code, out, err = run("train", *QUICK)
    assert code == 0
    assert (tmp_path / "runs/breast-cancer-codasca-2").is_dir()


def test_own_table_train_predict_evaluate(run, tmp_path):
    frame = patients()
    frame.to_csv("patients.csv", index=False)
    code, out, err = run(
        *("train", "--data", "patients.csv", "--label", "died", "--client", "hospital"),
        *("--rounds", "20", "--out", "run"),
    )
    assert code == 0, err
    assert all(name in out for name in ("Basel", "Genf", "Ulm"))
    new = patients(40, seed=1)
    new.loc[0, "smoker"] = "sometimes"
    new.to_csv("new.csv", index=False)
    code, out, err = run("predict", "run/model", "new.csv", "--out", "scores.csv")
    assert code == 0, err
    scores = pd.read_csv("scores.csv")
    assert scores.columns.tolist() == [*new.columns, "score"]
    assert scores["hospital"].tolist() == new["hospital"].tolist()
    np.testing.assert_allclose(scores["age"], new["age"])
    assert scores["score"].between(0, 1).all()
    code, out, err = run(
        *("evaluate", "run/model", "new.csv", "--label", "died", "--client", "hospital", "--json")
    )
    assert code == 0, err
    metrics = json.loads(out)
    expected = auc_score((new["died"] == "yes").astype(int), scores["score"])
    assert metrics["test/auc"] == pytest.approx(expected, abs=1e-9)
    assert "site/Ulm/auc" in metrics
    code, out, err = run("evaluate", "run/model", "new.csv", "--label", "died")
    assert "test/auc" in out
    code, out, err = run("predict", "run/model", "new.csv", "--out", "best.parquet", "--best")
    assert code == 0, err
    assert len(pd.read_parquet("best.parquet")) == 40


def test_one_file_per_site(run):
    for name, part in patients().groupby("hospital"):
        part.drop(columns="hospital").to_parquet(f"{name}.parquet")
    files = [
        option for name in ("Basel", "Genf", "Ulm") for option in ("--data", f"{name}.parquet")
    ]
    code, out, err = run("train", *files, "--label", "died", "--rounds", "2", "--json")
    assert code == 0, err
    assert [site["name"] for site in json.loads(out)["sites"]] == ["Basel", "Genf", "Ulm"]


def test_arrays(run):
    random = np.random.default_rng(0)
    X, y = random.normal(size=(60, 4)), np.arange(60) % 2
    np.savez("rows.npz", X=X + y[:, None], y=y, client=np.arange(60) % 3)
    code, out, err = run("train", "--data", "rows.npz", "--rounds", "5", "--out", "run")
    assert code == 0, err
    code, out, err = run("predict", "run/model", "rows.npz", "--out", "scores.csv")
    assert code == 0, err
    scores = pd.read_csv("scores.csv")["score"]
    code, out, err = run("evaluate", "run/model", "rows.npz", "--label", "y", "--json")
    assert json.loads(out)["test/auc"] == pytest.approx(auc_score(y, scores))


def test_images_and_many_classes(run):
    code, out, err = run(
        *("train", "--data", "digits", "--problem", "risk", "--rounds", "5", "--out", "run")
    )
    assert code == 0, err
    assert "test accuracy" in out
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez("new.npz", X=digits.data[:20] / 16, y=digits.target[:20])
    code, out, err = run("predict", "run/model", "new.npz", "--out", "scores.csv")
    assert code == 0, err
    table = pd.read_csv("scores.csv")
    assert [f"score_{k}" for k in range(10)] == table.columns.tolist()[:10]
    np.testing.assert_allclose(table.iloc[:, :10].sum(axis=1), 1)
    assert (table["prediction"] == table.iloc[:, :10].to_numpy().argmax(1)).all()
    code, out, err = run("evaluate", "run/model", "new.npz", "--label", "y", "--json")
    accuracy = (table["prediction"] == digits.target[:20]).mean()
    assert json.loads(out)["test/accuracy"] == pytest.approx(accuracy)
    pd.DataFrame({"a": [1]}).to_csv("table.csv", index=False)
    code, out, err = run("predict", "run/model", "table.csv")
    assert code == 2
    assert "NPZ" in err


def test_a_run_that_diverges_keeps_its_last_good_model_and_exits_with_1(run, tmp_path):
    code, _, err = run(
        *("train", "--algorithm", "coda-plus", "--set", "algorithm.learning_rate=3"),
        *("--set", "data.clients=5", "--rounds", "60", "--out", "run"),
    )
    assert code == 1
    assert "the run diverged" in err
    assert "Traceback" not in err
    assert "learning_rate" in err
    assert (tmp_path / "run/model/model.safetensors").exists()
    assert "he run diverged" in (tmp_path / "run/report.html").read_text()


def test_write_config_is_commented_and_runs(run, tmp_path):
    code, out, err = run("train", "--write-config", "run.toml", *QUICK, "--algorithm", "fedavg")
    assert code == 0, err
    text = (tmp_path / "run.toml").read_text()
    assert "# communication rounds" in text
    assert tomllib.loads(text)["run"]["rounds"] == 3
    code, out, err = run("train", "run.toml", "--out", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["round"] == 3
    code, out, err = run("train", "--write-config", "run.toml")
    assert code == 2
    assert "exists" in err


def test_report_of_several_runs(run, tmp_path):
    for name, method in (("a", "fedavg"), ("b", "coda-plus")):
        assert run("train", *QUICK, "--algorithm", method, "--out", name)[0] == 0
    code, out, err = run("report", "a", "b", "--out", "both.html", "--json")
    assert code == 0, err
    assert json.loads(out) == {"report": "both.html"}
    text = (tmp_path / "both.html").read_text()
    assert "fedavg" in text
    assert "coda-plus" in text


def test_list(run):
    code, out, _ = run("list", "algorithms", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["algorithms"]}
    assert rows["codasca"]["floats up"] == "2d"
    assert rows["codasca"]["floats down"] == "2d (+ dx to newcomers)"
    assert rows["drfa"]["floats up"] == "2d, then 1"
    assert "Yuan" in rows["codasca"]["paper"]
    code, out, _ = run("list")
    assert all(word in out for word in ("codasca", "heart-disease", "mlp", "auc"))


def test_every_command_has_help_with_an_example(run):
    for command in ("train", "report", "predict", "evaluate", "list"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert f"fedsaddle {command}" in out
        assert "--json" in out


def _bad_files(folder):
    patients().to_csv(folder / "good.csv", index=False)
    three = patients().assign(died=np.arange(120) % 3)
    three.to_csv(folder / "three.csv", index=False)
    patients().assign(empty=None).to_csv(folder / "empty-column.csv", index=False)
    text = patients()
    text["age"] = text["age"].astype(object)
    text.loc[5, "age"] = "old"
    text.to_csv(folder / "text.csv", index=False)
    (folder / "broken.parquet").write_bytes(b"PAR1 not really")
    (folder / "broken.toml").write_text("[run\n")
    (folder / "wrong.toml").write_text("[run]\nronds = 3\n")


GOOD = ("--data", "good.csv", "--label", "died", "--client", "hospital")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--data", "nowhere.csv"), "nowhere.csv: no such file"),
        (("--data", "good.csv", "--label", "dead"), "did you mean 'died'"),
        (("--data", "good.csv", "--label", "died", "--client", "hopital"), "'hospital'"),
        (("--data", "three.csv", "--label", "died"), "three.csv"),
        (("--data", "empty-column.csv", "--label", "died"), "'empty'"),
        (("--data", "text.csv", "--label", "died", "--set", 'data.numeric=["age"]'), "'old'"),
        (("--data", "broken.parquet", "--label", "died"), "broken.parquet"),
        ((*GOOD, "--set", "algorithm.learning_rte=1"), "did you mean 'learning_rate'"),
        ((*GOOD, "--set", "algorithm.learning_rate=-1"), "algorithm.learning_rate"),
        ((*GOOD, "--rounds", "0"), "run.rounds"),
        ((*GOOD, "--algorithm", "codsca"), "did you mean 'codasca'"),
        ((*GOOD, "--problem", "acu"), "did you mean 'auc'"),
        ((*GOOD, "--model", "logistc"), "did you mean 'logistic'"),
        ((*GOOD, "--set", "evaluation.best=test/acu"), "did you mean 'test/auc'"),
        ((*GOOD, "--set", "federation.clients_per_round=99"), "clients_per_round"),
        ((*GOOD, "--set", "rounds=3"), "section.key=value"),
        (("broken.toml",), "broken.toml"),
        (("wrong.toml",), "did you mean 'rounds'"),
        (("missing.toml",), "missing.toml: there is no such file"),
        (("--resume",), "--out"),
        (("--resume", "--out", "nothing"), "no such file"),
    ],
)
def test_bad_input_is_one_sentence_exit_code_2_and_nothing_written(run, tmp_path, arguments, says):
    _bad_files(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run("train", *arguments)
    assert code == 2
    assert says in err
    assert err.startswith("fedsaddle: ")
    assert err.strip().count("\n") == 0
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("predict", "nowhere", "good.csv"), "model.json"),
        (("predict", "run/model", "nowhere.csv"), "nowhere.csv"),
        (("predict", "run/model", "short.csv"), "'age'"),
        (("predict", "run/model", "scored.csv"), "'score'"),
        (("evaluate", "run/model", "good.csv", "--label", "dead"), "'died'"),
        (("report", "good.csv"), "no run folder"),
        (("list", "algoritms"), "did you mean 'algorithms'"),
    ],
)
def test_bad_input_of_the_other_commands(run, tmp_path, arguments, says):
    _bad_files(tmp_path)
    patients().drop(columns="age").to_csv("short.csv", index=False)
    patients().assign(score=1).to_csv("scored.csv", index=False)
    assert run("train", *GOOD, "--rounds", "1", "--out", "run")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*arguments)
    assert code == 2
    assert says in err
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_damaged_model_folders_are_refused(run, tmp_path):
    _bad_files(tmp_path)
    assert run("train", *GOOD, "--rounds", "1", "--out", "run")[0] == 0
    model = tmp_path / "run/model"
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:50])
    assert "model.safetensors" in run("predict", "run/model", "good.csv")[2]
    (model / "model.safetensors").write_bytes(weights)
    description = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(description | {"input_shape": [2]}))
    code, _, err = run("predict", "run/model", "good.csv")
    assert code == 2
    assert "shape" in err
    (model / "model.json").write_text(json.dumps(description | {"format": 99}))
    assert "format" in run("predict", "run/model", "good.csv")[2]
    (model / "model.json").write_text("{")
    assert "model.json" in run("predict", "run/model", "good.csv")[2]


@pytest.mark.data
def test_heart_disease_from_the_command_line(run, data_root):
    code, out, err = run(
        *("train", "--data", "heart-disease", "--set", f"data.root={data_root.resolve()}"),
        *("--problem", "auc", "--algorithm", "codasca", "--rounds", "10"),
    )
    assert code == 0, err
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        assert hospital in out


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "engine.compile=maybe",
            "engine.compile: should be 'auto' or a valid boolean, not 'maybe'",
        ),
        (
            "federation.dropout=often",
            "federation.dropout: should be a valid number or a valid dictionary, not 'often'",
        ),
        ("engine.workers=-1", "engine.workers: should be greater than or equal to 0, not -1"),
        ("engine.sites=[1, 2]", "engine.sites.0: should be a valid string, not 1"),
    ],
)
def test_a_wrong_value_is_told_what_would_be_right(run, tmp_path, setting, said):
    code, out, err = run("train", *QUICK, "--set", setting)
    assert (code, out, err) == (2, "", f"fedsaddle: {said}.\n")
    assert not (tmp_path / "runs").exists()
