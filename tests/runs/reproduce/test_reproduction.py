"""Whole reproductions, very small: what is written, what follows from it, and resume."""

import csv
import json
import shutil

import pytest

from fedsaddle.errors import UserError
from fedsaddle.runs.compare.statistics import summarise
from fedsaddle.runs.reproduce import plan, read_experiment, reproduce, store
from fedsaddle.runs.reproduce.page import read_results, results_page

TINY = {
    "localscgdam-table1-fashion-mnist": {"iterations": 16, "values": (4,)},
    "cdma-fig1-mnist": {"run": {"rounds": 2}, "only": ("CDMA-ADA", "CDMA-NC")},
}


def tiny(name):
    """An experiment of the repository on bundled data, for seconds."""
    experiment = read_experiment(name)
    data = {"source": "digits"} | ({"clients": 60} if name.startswith("cdma") else {})
    quick = experiment.scale["quick"].model_copy(
        update={
            "data": data,
            "model": {"name": "mlp", "arguments": {"hidden": [8]}},
            "seeds": 2,
            "evaluations": 1,
            **TINY[name],
        }
    )
    return plan(experiment.model_copy(update={"scale": {"quick": quick}}), "quick")


@pytest.mark.parametrize("name", TINY)
def test_what_a_reproduction_writes(name, tmp_path):
    made, out = tiny(name), tmp_path / "out"
    result = reproduce(made, out, jobs=2)
    assert result == json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert result["command"] == f"fedsaddle reproduce {name} --scale quick"
    assert result["seeds"] == [0, 1]
    assert [entrant["label"] for entrant in result["entrants"]] == [e.label for e in made.entrants]
    for entrant in result["entrants"]:
        metrics = entrant["metrics"]["test/auc"]["end"]
        last = {}
        for seed in ("0", "1"):
            lines = (out / "runs" / entrant["label"] / seed / "metrics.jsonl").read_text()
            last[seed] = json.loads(lines.splitlines()[-1])["test/auc"]
        assert metrics["seeds"] == last
        assert metrics["mean"] == summarise(list(last.values())).mean
    assert len(result["claims"]) == len(made.claims)
    verdicts = {claim["verdict"] for claim in result["claims"]}
    assert verdicts <= {
        "undecided",
        "not reproduced",
        "out of reach",
    }  # of two seeds no lead counts
    rows = list(csv.DictReader((out / "curves.csv").open(encoding="utf-8")))
    assert {row["entrant"] for row in rows} == {entrant.label for entrant in made.entrants}
    assert all(float(row["least"]) <= float(row["mean"]) <= float(row["most"]) for row in rows)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(claim["verdict"] in page for claim in result["claims"])
    assert (out / "figure.svg").read_text(encoding="utf-8").strip() in page

    with pytest.raises(UserError, match="--resume"):
        reproduce(made, out)
    shutil.rmtree(out / "runs" / made.entrants[0].label / "1")
    again = reproduce(made, out, resume=True, jobs=1)
    assert again["claims"] == result["claims"]
    assert again["entrants"] == result["entrants"]

    kept = store(out, tmp_path / "results")
    assert kept.name == f"{name}-quick"
    assert sorted(path.name for path in kept.iterdir()) == [
        "curves.csv",
        "figure.svg",
        "result.json",
    ]
    text = results_page(read_results(tmp_path / "results"), [name, "other"], "results")
    assert f"](results/{name}-quick/figure.svg)" in text
    assert "- `fedsaddle reproduce other --scale cpu`" in text
    assert all(claim["ours"].replace("|", "\\|") in text for claim in result["claims"])


def test_a_broken_result_file_is_named(tmp_path):
    (tmp_path / "x-quick").mkdir()
    (tmp_path / "x-quick" / "result.json").write_text("{")
    with pytest.raises(UserError, match="x-quick"):
        read_results(tmp_path)
