"""The report in a real browser: it draws, it answers, it asks no network for anything."""

import json
import math
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report import write_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="Chromium and chromedriver are not installed",
    ),
]

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach VA")
NASTY = ("<script>alert(1)</script>", "</script>", "Zürich & Söhne", "<b>%{x}</b> $x^2$")


def interval(value: float, width: float) -> dict[str, float]:
    return {"auc": value, "auc_low": value - width, "auc_high": min(1.0, value + width)}


def make_ledger(n_clients: int, rounds: int, width: int, drop: float, seed: int) -> list[dict]:
    """Two phases a round with drop-outs, one refusal and one repetition."""
    dice = random.Random(seed)
    entries = []
    for number in range(1, rounds + 1):
        chosen = sorted(dice.sample(range(n_clients), max(2, n_clients * 3 // 4)))
        for phase in ("anchor", "steps"):
            answered = [client for client in chosen if dice.random() > drop] or chosen[:1]
            refused = {str(answered[-1]): "'z' is not finite"} if number % 17 == 9 else {}
            entry = {
                "round": number,
                "phase": phase,
                "attempt": 0,
                "selected": chosen,
                "answered": answered,
                "refused": refused,
                "floats_down": width * len(chosen),
                "floats_up": width * len(answered),
                "bytes_down": 4 * width * len(chosen),
                "bytes_up": 4 * width * len(answered),
            }
            entries.append(entry)
            if number == 20 and phase == "steps":
                entries.append(entry | {"attempt": 1, "answered": chosen, "refused": {}})
    return entries


def make_record(
    name: str = "heart-codasca",
    method: str = "codasca",
    names: tuple[str, ...] = HOSPITALS,
    rounds: int = 100,
    reach: float = 0.9,
    drop: float = 0.12,
    seed: int = 0,
) -> RunRecord:
    """A run that learns along a smooth curve, with every part a finished run has."""
    dice = random.Random(seed)
    ledger = make_ledger(len(names), rounds, 3_200, drop, seed)
    spent = dict.fromkeys(("floats_up", "floats_down", "bytes_up", "bytes_down"), 0)
    history = []
    for number in range(rounds + 1):
        for entry in (e for e in ledger if e["round"] == number):
            spent = {key: value + entry[key] for key, value in spent.items()}
        if number % 5:
            continue
        auc = reach - (reach - 0.5) * math.exp(-number / 18) + dice.gauss(0, 0.004)
        test = {f"test/{key}": value for key, value in interval(auc, 0.03).items()}
        history.append(
            {
                "round": number,
                "train/objective": -0.02 - 0.2 * (auc - 0.5) + dice.gauss(0, 0.002),
                "validation/auc": auc + 0.012 + dice.gauss(0, 0.006),
                "test/worst_auc": auc - 0.11 + dice.gauss(0, 0.008),
                "test/worst_site": names[2],
                **test,
                **spent,
                "seconds": 1.9 * number,
            }
        )
    final = history[-1]["test/auc"]
    sites = [
        {
            "name": site,
            "rows": 60 + 17 * i,
            "n_positive": 0 if i == 3 else 21 + 4 * i,
            "n_negative": 60 + 17 * i - (0 if i == 3 else 21 + 4 * i),
            "accuracy": 0.74 + 0.03 * i,
            **(
                dict.fromkeys(("auc", "auc_low", "auc_high"))
                if i == 3
                else interval(final + 0.02 - 0.06 * (i % 3), 0.04 + 0.02 * (i % 3))
            ),
        }
        for i, site in enumerate(names)
    ]
    steps = [i / 40 for i in range(41)]
    bins = [0.05 + i / 10 for i in range(10)]
    observed = [min(0.98, max(0.02, p + 0.05 * math.sin(7 * p))) for p in bins]
    summary = {
        "auc": final,
        "auc_low": final - 0.03,
        "auc_high": final + 0.03,
        "worst_auc": final - 0.1,
        "worst_site": names[2],
        "accuracy": 0.823,
        "ece": 0.041,
        "average_precision": 0.78,
    }
    return RunRecord(
        name=name,
        config={
            "data": {"source": "heart-disease", "test_fraction": 0.25, "standardise": True},
            "model": {"name": "logistic"},
            "problem": {"name": "auc", "surrogate": "square"},
            "algorithm": {"name": method, "learning_rate": 0.5, "local_steps": 8},
            "federation": {"fraction": 0.75, "quorum": 0.5, "availability": {"kind": "bernoulli"}},
            "engine": {"name": "simulation", "workers": 2},
            "evaluation": {"every": 5},
            "run": {"rounds": 100, "seed": seed},
        },
        environment={
            "fedsaddle": "0.1.0",
            "torch": "2.9.1",
            "python": "3.11.7",
            "platform": "Linux-6.1-x86_64",
            "started": "2025-11-03T09:12:44+00:00",
            "seed": seed,
        },
        data={
            "source": "heart-disease",
            "classes": ["healthy", "disease"],
            "clients": [
                {
                    "name": site,
                    "train_rows": 180 + 31 * i,
                    "train_positives": 60 + 7 * i,
                    "validation_rows": 30,
                    "test_rows": 60 + 17 * i,
                }
                for i, site in enumerate(names)
            ],
        },
        history=history,
        ledger=ledger,
        evaluation={
            "round": rounds,
            "summary": {f"test/{key}": value for key, value in summary.items()},
            "sites": sites,
            "roc": {"fpr": steps, "tpr": [x ** (1 / final - 1) for x in steps]},
            "reliability": {
                "predicted": bins,
                "observed": observed,
                "rows": [80 - 6 * i for i in range(10)],
                "low": [max(0.0, p - 0.08) for p in observed],
                "high": [min(1.0, p + 0.08) for p in observed],
            },
        },
    )


def three_runs() -> list[RunRecord]:
    return [
        make_record(),
        make_record("heart-coda-plus", "coda+", reach=0.87, seed=1),
        make_record("heart-fedavg", "fedavg", reach=0.82, seed=2),
    ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--hide-scrollbars",
        "--window-size=1280,900",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()
