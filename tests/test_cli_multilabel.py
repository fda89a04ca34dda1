"""Several findings per row, from the command line: train, evaluate, predict, report."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

NAMES = ["Edema", "Effusion", "Mass"]
FINDINGS = [option for name in NAMES for option in ("--label", name)]
TRAIN = ("--problem", "multilabel-auc", "--client", "site", "--out", "run")


def patients(n=300, seed=0):
    """Three findings, each written in its own way, with gaps; Ulm has never seen a mass."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 4))
    found = X[:, :3] + 0.5 * random.normal(size=(n, 3)) > [1, 0, -0.5]
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["site"] = random.choice(["Basel", "Genf", "Ulm"], n)
    unknown = random.choice(["", "-1.0", "known"], n, p=[0.15, 0.1, 0.75])
    frame["Edema"] = np.where(unknown == "known", np.where(found[:, 0], "1.0", "0.0"), unknown)
    frame["Effusion"] = np.where(found[:, 1], "yes", "no")
    frame["Mass"] = np.where(frame["site"] == "Ulm", 0, found[:, 2].astype(int))
    return frame


def truth(frame):
    """Labels without the library's help: NaN where unknown."""
    edema = frame["Edema"].map({"1.0": 1, "0.0": 0})
    return np.stack([edema, frame["Effusion"] == "yes", frame["Mass"]], axis=1).astype(float)


def aucs(labels, scores):
    found = {}
    for k, name in enumerate(NAMES):
        known = ~np.isnan(labels[:, k])
        both = len(set(labels[known, k])) == 2
        found[name] = roc_auc_score(labels[known, k], scores[known, k]) if both else None
    return found


@pytest.fixture
def trained(run):
    patients().to_csv("table.csv", index=False)
    setting = f"data.label={json.dumps(NAMES)}"
    result = run("train", "--data", "table.csv", "--set", setting, *TRAIN, "--rounds", "15")
    assert result[0] == 0, result[2]
    return result


def test_train_measures_every_finding_at_every_site(trained, tmp_path):
    _, out, _ = trained
    assert "pooled test AUC: Edema 0." in out
    assert "undefined (0/" in out  # masses at Ulm
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    for name in NAMES:
        assert last[f"test/auc_{name}_low"] > 0.5  # better than chance
        assert f"validation/auc_{name}" in last
        for site in ("Basel", "Genf", "Ulm"):
            assert last[f"site/{site}/n_positive_{name}"] >= 0
    assert last["site/Ulm/auc_Mass"] is None
    assert last["site/Ulm/n_positive_Mass"] == 0
    assert last["site/Ulm/n_negative_Mass"] == last["site/Ulm/rows"]
    values = [json.loads(line)["validation/mean_auc"] for line in lines[1:]]
    best = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert best["sites"][2]["findings"]["Mass"]["auc"] is None
    rounds = [json.loads(line)["round"] for line in lines[1:]]
    if rounds[int(np.argmax(values))] != 15:
        assert f"best round by validation: {rounds[int(np.argmax(values))]}" in out
    report = (tmp_path / "run/report.html").read_text()
    assert "Mean test AUC" in report
    assert "AUC of Effusion" in report
    table = report.split("Test AUC by site and finding")[2].split("</table>")[0]  # after the label
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    assert [name for name, _ in rows] == ["All sites", "Basel", "Genf", "Ulm"]
    pooled = re.findall(r">(0\.\d{3}|1\.000|–)<span", rows[0][1])
    assert pooled == [f"{last[f'test/auc_{name}']:.3f}" for name in NAMES]
    at_ulm = dict(zip(NAMES, re.findall(r">([^<>]+)<span[^>]*>([^<>]+)<", rows[3][1]), strict=True))
    assert at_ulm["Mass"] == ("–", f"0 / {last['site/Ulm/rows']}")
    assert at_ulm["Edema"][0] == f"{last['site/Ulm/auc_Edema']:.3f}"


def test_evaluate_and_predict_agree_with_scikit_learn(trained, run):
    new = patients(150, seed=1)
    new.to_csv("new.csv", index=False)
    code, _, err = run("predict", "run/model", "new.csv", "--out", "scores.csv")
    assert code == 0, err
    table = pd.read_csv("scores.csv")
    columns = [f"score_{name}" for name in NAMES]
    assert table.columns.tolist() == [*new.columns, *columns]
    scores = table[columns].to_numpy()
    assert ((scores > 0) & (scores < 1)).all()
    code, out, err = run("evaluate", "run/model", "new.csv", "--client", "site", "--json")
    assert code == 0, err
    metrics = json.loads(out)
    pooled = aucs(truth(new), scores)
    for name, value in pooled.items():
        assert metrics[f"test/auc_{name}"] == pytest.approx(value, abs=1e-9)
    assert metrics["test/mean_auc"] == pytest.approx(np.mean(list(pooled.values())), abs=1e-9)
    for site in ("Basel", "Genf", "Ulm"):
        rows = (new["site"] == site).to_numpy()
        for name, value in aucs(truth(new)[rows], scores[rows]).items():
            assert metrics[f"site/{site}/auc_{name}"] == (
                value if value is None else pytest.approx(value, abs=1e-9)
            )
    assert metrics["site/Ulm/auc_Mass"] is None
    code, out, err = run("evaluate", "run/model", "new.csv", "--label", "Mass", "--label", "Edema")
    assert code == 0, err
    assert f"{pooled['Mass']:.4f}" in out
    new.drop(columns=["Edema", "Effusion"]).to_csv("few.csv", index=False)
    code, out, err = run("evaluate", "run/model", "few.csv", "--label", "Mass", "--json")
    assert code == 0, err
    assert json.loads(out)["test/auc_Edema"] is None
    assert json.loads(out)["test/auc_Mass"] == metrics["test/auc_Mass"]


def test_a_finding_may_have_words_of_its_own(run):
    frame = patients(100)[["a", "b", "site"]]
    random = np.random.default_rng(2)
    for name in ("Edema", "Mass"):
        present = frame["a"] + random.normal(size=100) > 0
        frame[name] = np.where(present, "seen", "not seen")
    frame.to_csv("table.csv", index=False)
    labels = ("--label", "Edema", "--label", "Mass")
    code, _, err = run("train", "--data", "table.csv", *labels, *TRAIN, "--rounds", "2")
    assert code == 2
    assert "'Edema' has the values not seen, seen" in err
    positive = ("--set", "data.positive=seen")
    code, _, err = run("train", "--data", "table.csv", *labels, *TRAIN, *positive, "--rounds", "2")
    assert code == 0, err
    code, out, err = run("evaluate", "run/model", "table.csv", "--json")
    assert code == 0, err
    run("predict", "run/model", "table.csv")
    scores = pd.read_csv("scores.csv")
    expected = roc_auc_score(frame["Mass"] == "seen", scores["score_Mass"])
    assert json.loads(out)["test/auc_Mass"] == pytest.approx(expected)


def test_arrays_of_findings(run):
    frame = patients()
    labels = truth(frame)
    sites = frame["site"].to_numpy().astype(str)
    np.savez("rows.npz", X=frame[list("abcd")], y=np.nan_to_num(labels, nan=-1), site=sites)
    code, _, err = run("train", "--data", "rows.npz", *TRAIN, "--rounds", "5")
    assert code == 0, err
    code, out, err = run("evaluate", "run/model", "rows.npz", "--json")
    assert code == 0, err
    run("predict", "run/model", "rows.npz")
    scores = pd.read_csv("scores.csv").to_numpy()
    expected = list(aucs(labels, scores).values())
    assert [json.loads(out)[f"test/auc_{k}"] for k in range(3)] == pytest.approx(expected)


def test_resume_describe_and_several_runs(trained, run):
    code, _, err = run("train", "--resume", "--out", "run", "--set", "run.rounds=15", "--json")
    assert code == 0, err
    code, out, err = run(
        *("data", "describe", "--data", "table.csv", *FINDINGS, "--client", "site", "--json")
    )
    assert code == 0, err
    facts = json.loads(out)
    assert facts["task"] == "multilabel"
    assert facts["class_rows"] == np.nansum(truth(patients()), axis=0).astype(int).tolist()
    assert run("report", "run", "run", "--out", "both.html")[0] == 0


def test_many_findings_are_shown_by_their_mean(run):
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 3))
    labels = (random.random((120, 8)) < 0.4).astype(int)
    np.savez("rows.npz", X=X, y=labels, client=np.arange(120) % 2)
    code, out, err = run("train", "--data", "rows.npz", "--problem", "multilabel-auc", "--rounds=1")
    assert code == 0, err
    assert "mean AUC" in out
    assert "(n+/n-)" not in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train", "--data", "table.csv", *FINDINGS, "--client", "site"), "multilabel-auc"),
        (("train", "--data", "table.csv", "--label", "Mass", *TRAIN[:4]), "use problem 'auc'"),
        (("train", "--data", "table.csv", "--label", "Mass", "--label", "b", *TRAIN[:4]), "'b'"),
        (("evaluate", "run/model", "table.csv", "--label", "Edem"), "did you mean 'Edema'"),
        (("evaluate", "run/model", "short.csv"), "no column 'Mass'"),
        (("predict", "run/model", "scored.csv"), "'score_Mass'"),
    ],
)
def test_bad_input(trained, run, tmp_path, arguments, says):
    patients().drop(columns="Mass").to_csv("short.csv", index=False)
    patients().assign(score_Mass=1).to_csv("scored.csv", index=False)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*arguments)
    assert code == 2
    assert says in err
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before
