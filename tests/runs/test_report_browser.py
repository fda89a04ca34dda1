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
    driver.get("about:blank")
    yield driver
    driver.quit()


DRAWN = """
return [...document.querySelectorAll('.chart')].map((box) => ({
  title: box.closest('figure').querySelector('figcaption').textContent,
  lines: [...box.querySelectorAll('.scatterlayer .js-line')]
    .filter((p) => (p.getAttribute('d') || '').length > 5).length,
  bars: [...box.querySelectorAll('.barlayer path')].filter((p) => p.getAttribute('d')).length,
  bands: [...box.querySelectorAll('.fills path')].filter((p) => p.getAttribute('d')).length,
  whiskers: [...box.querySelectorAll('.errorbar path')].filter((p) => p.getAttribute('d')).length,
  points: box.querySelectorAll('.scatterlayer path.point').length,
  image: [...box.querySelectorAll('.heatmaplayer image')].map((i) => i.href.baseVal).join().length,
  ticks: [...box.querySelectorAll('.ytick text')]
    .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
    .map((text) => text.textContent),
}));
"""

WIDER = """
const over = [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll *'))
  .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
const found = over.map((e) => e.outerHTML.slice(0, 80));
return [document.documentElement.scrollWidth, innerWidth, found];
"""

# The colour of every cell, read from the middle of each rectangle of the drawn image.
PIXELS = """
const done = arguments[0];
const trace = document.querySelector('.heatmaplayer').closest('.chart').data[0];
const picture = new Image();
picture.onload = () => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [picture.width, picture.height];
  const pen = canvas.getContext('2d');
  pen.drawImage(picture, 0, 0);
  const [rows, columns] = [trace.z.length, trace.z[0].length];
  done(trace.z.map((row, i) => row.map((_, j) => [...pen.getImageData(
    Math.floor((j + 0.5) * picture.width / columns),
    Math.floor((i + 0.5) * picture.height / rows), 1, 1).data].slice(0, 3).join())));
};
picture.src = document.querySelector('.heatmaplayer image').href.baseVal;
"""


def visit(browser: Any, records: list[RunRecord], path: Path, width: int = 1280) -> None:
    """Open the report; then nothing was complained about and nothing but the file was read."""
    for log in ("browser", "performance"):
        browser.get_log(log)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(write_report(records, path).as_uri())
    assert browser.get_log("browser") == []
    events = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    asked = [p["request"]["url"] for p in sent if p["documentURL"] == path.as_uri()]
    assert path.as_uri() in asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert [url for url in asked if url.startswith("file:")] == [path.as_uri()]


def drawn(browser: Any) -> dict[str, dict[str, Any]]:
    return {chart.pop("title"): chart for chart in browser.execute_script(DRAWN)}


def test_charts_are_drawn(browser: Any, tmp_path: Path) -> None:
    visit(browser, [make_record()], tmp_path / "report.html")
    charts = drawn(browser)
    assert {title: chart["lines"] for title, chart in charts.items()} == {
        "AUC": 5,  # three lines, and the two edges of the band
        "Training objective": 1,
        "ROC curve, all test rows pooled": 2,
        "Calibration, 95 % intervals": 2,
        "Megabytes sent, cumulative": 2,
        "Sites by round": 0,
    }
    assert charts["AUC"]["bands"] == 1
    assert charts["Calibration, 95 % intervals"]["whiskers"] == 10
    assert charts["Sites by round"]["image"] > 100
    assert charts["Sites by round"]["ticks"] == list(HOSPITALS)


def test_cells_have_the_colour_of_what_happened(browser: Any, tmp_path: Path) -> None:
    record = make_record(rounds=30)
    visit(browser, [record], tmp_path / "report.html")
    pixels = browser.execute_async_script(PIXELS)
    meaning: dict[str, set[str]] = {}
    for number in range(1, 31):
        entries = [e for e in record.ledger if e["round"] == number]
        for client, colours in enumerate(pixels):
            asked = [e for e in entries if client in e["selected"]]
            if not asked:
                what = "not selected"
            elif any(str(client) in e["refused"] for e in asked):
                what = "refused"
            else:
                what = "answered" if all(client in e["answered"] for e in asked) else "silent"
            meaning.setdefault(what, set()).add(colours[number - 1])
    assert {what: len(colours) for what, colours in meaning.items()} == dict.fromkeys(meaning, 1)
    assert len(meaning) == 4
    assert len(set.union(*meaning.values())) == 4


def test_tables(browser: Any, tmp_path: Path) -> None:
    visit(browser, [make_record()], tmp_path / "report.html")
    rows = browser.find_elements("css selector", "#sites tbody tr")
    assert [row.find_element("tag name", "th").text for row in rows] == [
        "Switzerland",
        "Hungary",
        "Cleveland",
        "Long Beach VA",
    ]
    assert "undefined (one class)" in rows[-1].text
    circles = browser.find_elements("css selector", "#sites .forest circle")
    places = [circle.rect["x"] for circle in circles]
    assert len(places) == 3
    assert places == sorted(places), "the marks move right as the AUC grows"


def test_toggle_changes_the_axis(browser: Any, tmp_path: Path) -> None:
    record = make_record()
    visit(browser, [record], tmp_path / "report.html")
    by_round, by_megabytes = browser.find_elements("css selector", ".toggle button")
    look = (
        "const p = document.querySelector('.chart');"
        "return [p.data.at(-1).x.at(-1), p.data[0].x.length, p.layout.xaxis.title.text,"
        "p.querySelector('.xtitle').textContent]"
    )
    sent = (record.history[-1]["bytes_up"] + record.history[-1]["bytes_down"]) / 1e6
    assert browser.execute_script(look) == [100, 21, "Round", "Round"]
    by_megabytes.click()
    title = "Megabytes sent"
    assert browser.execute_script(look) == [pytest.approx(sent), 21, title, title]
    pressed = [button.get_attribute("aria-pressed") for button in (by_round, by_megabytes)]
    assert pressed == ["false", "true"]
    by_round.click()
    assert browser.execute_script(look) == [100, 21, "Round", "Round"]
    assert browser.get_log("browser") == []


def test_simulated_time(browser: Any, tmp_path: Path) -> None:
    """A third button; a run without a clock has no line on that axis and gets it back."""
    plain = make_record()
    history = [row | {"simulated_seconds": 90.0 * row["round"]} for row in plain.history]
    timed = replace(plain, history=history)
    visit(browser, [timed, plain], tmp_path / "report.html")
    by_round, _, by_time = browser.find_elements("css selector", ".toggle button")
    assert by_time.text == "By simulated time"
    look = (
        "const p = document.querySelector('.chart');"
        "return [p.data[0].x.at(-1), p.querySelector('.xtitle').textContent]"
    )

    def press(button: Any) -> None:  # without waiting for the page to scroll
        browser.execute_script("arguments[0].click()", button)

    press(by_time)
    assert browser.execute_script(look) == [2.5, "Simulated hours"]
    assert drawn(browser)["AUC, test"]["lines"] == 1
    press(by_round)
    assert browser.execute_script(look) == [100, "Round"]
    assert drawn(browser)["AUC, test"]["lines"] == 2
    assert browser.get_log("browser") == []


def test_weights_and_banner(browser: Any, tmp_path: Path) -> None:
    record = make_record(names=tuple(f"clinic {i}" for i in range(30)))
    weights = {f"lambda/clinic {i}": i / 435 for i in range(30)}
    why = "the run diverged after round 100: " + "test/auc fell; " * 20
    shown = replace(
        record,
        history=[row | weights for row in record.history],
        evaluation=record.evaluation | {"stopped": why},
    )
    visit(browser, [shown], tmp_path / "report.html", 390)
    assert drawn(browser)["Sites by weight"]["lines"] == 20
    assert len(browser.find_elements("css selector", "#weights .key li")) == 20
    banner = browser.find_element("css selector", ".banner")
    assert banner.text.startswith("This run was stopped early\nThe run diverged")
    scroll, window, over = browser.execute_script(WIDER)
    assert (over, scroll) == ([], window)


def test_several_runs(browser: Any, tmp_path: Path) -> None:
    visit(browser, three_runs(), tmp_path / "report.html")
    charts = drawn(browser)
    for title in ("AUC, test", "AUC, validation", "AUC, worst site", "Training objective"):
        assert charts[title]["lines"] == 3
    assert charts["ROC curve, all test rows pooled"]["lines"] == 4
    assert len(browser.find_elements("css selector", "#comparison tbody tr")) == 3
    assert len(browser.find_elements("css selector", "#sites .forest circle")) == 9
    assert len(browser.find_elements("css selector", "#participation .heatmaplayer image")) == 3


def test_many_clients_are_counted(browser: Any, tmp_path: Path) -> None:
    record = make_record(names=tuple(f"clinic {i}" for i in range(80)), rounds=20)
    visit(browser, [record], tmp_path / "report.html")
    charts = drawn(browser)
    assert charts["Sites that answered, by round"]["lines"] == 1
    assert charts["How often a site answered"]["bars"] > 3


def test_names_are_text_everywhere(browser: Any, tmp_path: Path) -> None:
    nasty = [make_record(name, names=NASTY) for name in NASTY]
    visit(browser, nasty, tmp_path / "report.html")
    shown = [th.text for th in browser.find_elements("css selector", "#sites tbody th")]
    assert sorted(shown) == sorted(NASTY)
    ticks = drawn(browser)["Sites by round"]["ticks"]
    assert ticks == ["<script>alert(1)</scrip…", *NASTY[1:]]
    assert browser.execute_script("return document.querySelectorAll('main b').length") == 0


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("several", [False, True])
def test_nothing_sticks_out(browser: Any, tmp_path: Path, width: int, several: bool) -> None:
    long = make_record("a" * 90, names=("H" * 60, *HOSPITALS[1:3], "St. Mary & " * 9))
    visit(browser, [*three_runs(), long] if several else [long], tmp_path / "report.html", width)
    scroll, window, over = browser.execute_script(WIDER)
    assert over == []
    assert scroll == window == width


def test_gaps_are_no_errors(browser: Any, tmp_path: Path) -> None:
    whole = make_record()
    objective = [{"round": row["round"], "train/objective": 0.1} for row in whole.history]
    for record in (
        RunRecord("empty", {}),
        RunRecord("saddle", {}, history=objective),
        replace(whole, evaluation={}, history=whole.history[:1], ledger=whole.ledger[:1]),
    ):
        visit(browser, [record], tmp_path / "report.html")
        for title, chart in drawn(browser).items():
            assert chart["lines"] or chart["points"] or chart["image"], title
