"""Tables, report and settings of a comparison that was made up."""

import csv
import io
import json
import re

import numpy as np
import pytest
from scipy import stats

from fedsaddle.runs.compare import Comparison
from fedsaddle.runs.compare.results import write_results
from fedsaddle.runs.compare.tables import as_json, latex
from fedsaddle.runs.config import read, resolve, write_sections

VALUES = {"codasca": [0.90, 0.92, 0.91], "fed_avg": [0.80, 0.83, 0.79]}
METHODS = {"codasca": ("codasca", "auc"), "fed_avg": ("fedavg", "risk")}


@pytest.fixture
def made_up(tmp_path):
    for label, values in VALUES.items():
        method, problem = METHODS[label]
        for seed, value in enumerate(values):
            folder = tmp_path / "runs" / label / str(seed)
            folder.mkdir(parents=True)
            sections = {
                "algorithm": {"name": method},
                "problem": {"name": problem},
                "federation": {"availability": "latency"},
                "run": {"rounds": 2, "seed": seed},
            }
            text = write_sections(resolve(sections).sections())
            (folder / "config.toml").write_text(text)
            (folder / "data.json").write_text(json.dumps({"source": "<made up>"}))
            evaluation = {"round": 2}
            if (label, seed) == ("fed_avg", 1):
                evaluation["stopped"] = "the run diverged"
            (folder / "evaluation.json").write_text(json.dumps(evaluation))
            with (folder / "metrics.jsonl").open("w") as file:
                for number in range(3):
                    row = {
                        "round": number,
                        "train/objective": 1 - value * number / 2,
                        "test/auc": value * number / 2,
                        "test/worst_auc": value * number / 4,
                        "bytes_up": 1_000_000 * number,
                        "bytes_down": 500_000 * number,
                        "simulated_seconds": 60.0 * number,
                    }
                    file.write(json.dumps(row) + "\n")
    plan = {"seeds": [0, 1, 2], "budget_mb": 3.5, "base": {}, "entrants": dict.fromkeys(VALUES)}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return Comparison.load(tmp_path)


def test_csv_and_json_have_the_numbers(made_up):
    found = write_results(made_up, "test/auc", higher=True)
    first, second = csv.DictReader(io.StringIO((made_up.out / "comparison.csv").read_text()))
    assert (first["label"], first["method"], first["problem"]) == ("codasca", "codasca", "auc")
    assert float(first["mean"]) == pytest.approx(np.mean(VALUES["codasca"]))
    assert [float(second[f"seed_{seed}"]) for seed in range(3)] == VALUES["fed_avg"]
    assert (first["best"], second["best"]) == ("True", "False")
    assert float(first["megabytes"]) == 3.0
    p = stats.ttest_rel(*VALUES.values()).pvalue
    assert float(second["p_holm"]) == pytest.approx(p)
    told = json.loads((made_up.out / "comparison.json").read_text())
    assert told == json.loads(json.dumps(as_json(found)))
    assert told["best"] == "codasca"
    assert told["lines"][1]["stopped"] == {"1": "the run diverged"}
    assert told["lines"][0]["worst"]["mean"] == pytest.approx(np.mean(VALUES["codasca"]) / 2)
    (pair,) = told["differences"]
    assert pair["t"] == pytest.approx(p)
    assert pair["significant"] == (p < 0.05)


def test_smaller_may_be_better(made_up):
    found = write_results(made_up, "train/objective", higher=False)
    assert [line.best for line in found.lines] == [True, False]
    assert "smaller is better" in (made_up.out / "comparison.md").read_text()


def test_markdown_and_latex_are_tables_for_people(made_up):
    write_results(made_up, "test/auc", higher=True)
    text = (made_up.out / "comparison.md").read_text()
    assert "at most 3.5 MB each" in text
    head, rule, first, *_ = re.findall(r"^\|.*", text, re.MULTILINE)
    assert head.count("|") == rule.count("|") == first.count("|")
    assert "| codasca | auc | 2 | 3 | 2 min 0 s | 0.9100 | 0.8852 to 0.9348 | 3 |" in first
    assert "n = 3 seeds is too few" in text
    assert "fed_avg, seed 1: the run diverged" in text
    written = (made_up.out / "comparison.tex").read_text()
    assert r"\textbf{0.9100}" in written
    assert r"fed\_avg & risk" in written
    body = [line for line in written.splitlines() if line.endswith(r"\\")]
    assert len({line.count("&") for line in body}) == 1
    assert latex("50 % of {a}_b & c") == r"50 \% of \{a\}\_b \& c"


def test_the_report_has_mean_curves_with_bands_by_every_axis(made_up):
    write_results(made_up, "test/auc", higher=True)
    page = (made_up.out / "report.html").read_text()
    assert "&lt;made up&gt;" in page
    charts = re.findall(r'<script type="application/json">(.*?)</script>', page)
    auc = next(json.loads(text) for text in charts if "0.91" in text)["traces"]
    assert [trace["name"] for trace in auc] == ["codasca", "fed_avg"]
    assert all(trace["band"] for trace in auc)
    assert auc[0]["y"] == pytest.approx([0, 0.455, 0.91])
    half = stats.t.ppf(0.975, 2) * stats.sem(VALUES["codasca"])
    assert auc[0]["high"][-1] == pytest.approx(0.91 + half)
    assert auc[0]["sent"] == [0, 1.5, 3]
    assert auc[0]["time"] == [0, 1, 2]
    assert "By simulated time" in page
    assert "the run diverged" in page


def test_settings_can_be_trained_as_they_are(made_up):
    write_results(made_up, "test/auc", higher=True)
    for label, (method, problem) in METHODS.items():
        config = resolve(read(made_up.out / "best" / f"{label}.toml"))
        assert (config.algorithm["name"], config.problem["name"]) == (method, problem)
        assert config.federation.availability == "latency"
