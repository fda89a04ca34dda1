"""The report's text: what it says, what it leaves out, and that it needs nothing from outside."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedsaddle.errors import UserError
from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report import render_report, write_report
from fedsaddle.runs.report.curves import MOST_WEIGHTS
from fedsaddle.runs.report.overview import sentence
from fedsaddle.runs.report.sites import MOST_ROWS, forest
from fedsaddle.runs.report.traffic import MOST_INCIDENTS
from fedsaddle.runs.report.words import method_name

PLOTLY = "/* plotly */"


@pytest.fixture(autouse=True)
def light_bundle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the 5 MB of plotly.js, which the browser tests look at."""
    if "whole_bundle" not in request.fixturenames:
        monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: PLOTLY)


@pytest.fixture
def whole_bundle() -> None:
    """A test that asks for this gets the real plotly.js."""


def entry(number: int, selected: list[int], answered: list[int], **more: Any) -> dict[str, Any]:
    cost = {"floats_down": 10 * len(selected), "floats_up": 5 * len(answered)}
    cost |= {"bytes_down": 40_000 * len(selected), "bytes_up": 20_000 * len(answered)}
    base = {"round": number, "phase": "steps", "attempt": 0, "refused": {}}
    return base | {"selected": selected, "answered": answered} | cost | more


def site(name: str, auc: float | None, positive: int, negative: int) -> dict[str, Any]:
    around = {"auc_low": None, "auc_high": None}
    if auc is not None:
        around = {"auc_low": auc - 0.05, "auc_high": auc + 0.05}
    counts = {"n_positive": positive, "n_negative": negative, "rows": positive + negative}
    return {"name": name, "auc": auc, "accuracy": 0.75} | around | counts


@pytest.fixture
def record() -> RunRecord:
    """Three rounds of three sites: one good, one worse, one with one class only."""
    tests = {"test/auc_low": 0.6, "test/auc_high": 0.95, "test/worst_auc": 0.7}
    history = [
        {"round": r, "test/auc": a, "validation/auc": a, "train/objective": -a, **tests}
        | {"bytes_up": 100 * r, "bytes_down": 200 * r, "seconds": 70.0 * r}
        for r, a in ((0, 0.5), (3, 0.9))
    ]
    names = ("Bern", "Genf", "Uri", "Zug")
    clients = [{"name": n, "train_rows": 1000 + i, "test_rows": 60} for i, n in enumerate(names)]
    clients[3]["test_rows"] = 0
    return RunRecord(
        name="alps",
        config={
            "problem": {"name": "auc"},
            "algorithm": {"name": "codasca", "step": {"size": 0.5}},
            "run": {"rounds": 3, "seed": 7},
        },
        environment={"fedsaddle": "0.1.0", "started": "2025-01-02T03:04:05"},
        data={"source": "heart", "classes": ["well", "ill"], "clients": clients},
        history=history,
        ledger=[
            entry(1, [0, 1], [0, 1]),
            entry(2, [0, 1, 2], [0, 1], refused={"1": "'z' is not finite"}),
            entry(2, [0, 2], [0, 2], attempt=1),
            entry(3, [0, 1, 2], [0, 1, 2], phase="anchor"),
        ],
        evaluation={
            "round": 3,
            "summary": {
                "test/auc": 0.9123,
                "test/auc_low": 0.8812,
                "test/auc_high": 0.9404,
                "test/worst_auc": 0.71,
                "test/worst_site": "Genf",
                "test/accuracy": 0.8,
                "test/ece": 0.0312,
                "test/average_precision": 0.66,
            },
            "sites": [
                site("Bern", 0.93, 20, 40),
                site("Genf", 0.71, 30, 30),
                site("Uri", None, 0, 60),
            ],
            "roc": {"fpr": [0, 0.5, 1], "tpr": [0, 0.9, 1]},
            "reliability": {
                "predicted": [0.1, 0.5, 0.9],
                "observed": [0.2, None, 0.8],
                "rows": [50, 0, 50],
                "low": [0.1, None, 0.7],
                "high": [0.3, None, 0.9],
            },
        },
    )


class Page(HTMLParser):
    """The document as a reader meets it: text per section, table rows, charts, loose ends."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.figures: dict[str, Any] = {}
        self.words: list[str] = []
        self.caption = ""
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in self.VOID:
            return
        self.open.append((tag, dict(attrs)))
        if tag == "tr":
            self.tables[self.caption].append([])
        if tag in ("th", "td"):
            self.tables[self.caption][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag, f"</{tag}> closes the innermost element"

    def handle_data(self, data: str) -> None:
        path = [tag for tag, _ in self.open]
        if not path or path[-1] in ("style", "html", "head"):
            return
        if path[-1] == "script":
            if self.open[-1][1].get("type") == "application/json":
                self.figures[self.title] = json.loads(data)
            return
        if path[-1] == "figcaption":
            self.title = data
        if path[-1] == "caption":
            self.caption = data
            self.tables[data] = []
        if "th" in path or "td" in path:
            self.tables[self.caption][-1][-1] += data
        self.words.append(data)
        section = next((attrs["id"] for tag, attrs in self.open if tag == "section"), "header")
        self.sections[section] = self.sections.get(section, "") + data + " "

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page(*records: RunRecord) -> Page:
    return Page(render_report(records))


def test_sentence_says_what_happened(record: RunRecord) -> None:
    assert sentence(record) == (
        "4 sites trained one model for 3 rounds with CODASCA; pooled test AUC 0.912 "
        "(95 % interval 0.881–0.940); worst site Genf 0.710; "
        "1 site has one class only and its AUC is undefined; 0.58 MB were sent."
    )


def test_who_has_all_training_rows_trained_alone(record: RunRecord) -> None:
    first, *others = record.data["clients"]
    idle = [site | {"train_rows": 0} for site in others]
    pooled = replace(record, data=record.data | {"clients": [first, *idle]})
    assert sentence(pooled) == sentence(record).replace("4 sites trained", "1 site trained", 1)
    assert sentence(pooled).startswith("1 site trained one model")


def test_megabytes_add_up(record: RunRecord) -> None:
    down = sum(e["bytes_down"] for e in record.ledger)
    up = sum(e["bytes_up"] for e in record.ledger)
    assert (down, up) == (400_000, 180_000)
    total = page(record).tables["What was sent, by phase"][-1]
    assert total == ["total", "10", "100", "45", "0.40 MB", "0.18 MB", "0.58 MB"]


def test_sections_in_order(record: RunRecord) -> None:
    found = page(record)
    assert list(found.sections) == [
        "header",
        "learning-curves",
        "sites",
        "discrimination-and-calibration",
        "communication",
        "participation",
        "configuration",
    ]
    links = [a["href"] for tag, a in found.elements if tag == "a"]
    assert links == ["#" + name for name in list(found.sections)[1:]]


def test_cards(record: RunRecord) -> None:
    text = " ".join(page(record).sections["header"].split())
    assert "Pooled test AUC 0.912 95 % interval 0.881–0.940" in text
    assert "Worst site’s AUC 0.710 Genf" in text
    assert "Test accuracy 0.800 ECE 0.031" in text
    assert "Sent 0.58 MB 0.40 MB to the sites, 0.18 MB back" in text
    assert "Time 3 min 30 s" in text


def test_sites_worst_first_undefined_last(record: RunRecord) -> None:
    head, *rows = page(record).tables["Test AUC by site, worst first"]
    assert head[:2] == ["Site", "AUC (95 % interval)"]
    assert head[3:] == ["Accuracy", "n+", "n−", "Test rows", "Training rows"]
    assert rows == [
        ["Genf", "0.710 (0.660–0.760)", "", "0.750", "30", "30", "60", "1,001"],
        ["Bern", "0.930 (0.880–0.980)", "", "0.750", "20", "40", "60", "1,000"],
        ["Uri", "undefined (one class)", "", "0.750", "0", "60", "60", "1,002"],
        ["Zug", "no test rows", "", "–", "–", "–", "0", "1,003"],
    ]


def test_forest_marks_lie_on_the_scale() -> None:
    """0.8 with 0.7 to 0.9 on a scale from 0.6 to 1: half way, between one and three quarters."""
    drawn = forest([{"auc": 0.8, "auc_low": 0.7, "auc_high": 0.9}], "auc", 0.6)
    assert 'cx="50.00%"' in drawn
    assert 'x1="26.50%" x2="73.50%"' in drawn


def test_curves_have_both_axes(record: RunRecord) -> None:
    figures = page(record).figures
    test, validation, worst = figures["AUC"]["traces"]
    assert (test["x"], test["y"]) == ([0, 3], [0.5, 0.9])
    assert test["sent"] == pytest.approx([0, 900 / 1e6])
    assert (test["low"], test["high"]) == ([0.6, 0.6], [0.95, 0.95])
    assert [t["name"] for t in (test, validation, worst)] == ["Test", "Validation", "Worst site"]
    assert len({t["colour"] for t in (test, validation, worst)}) == 3
    assert figures["Training objective"]["traces"][0]["y"] == [-0.5, -0.9]


def test_empty_calibration_bins_are_left_out(record: RunRecord) -> None:
    figures = page(record).figures
    (trace,) = figures["Calibration, 95 % intervals"]["traces"]
    assert (trace["x"], trace["y"], trace["rows"]) == ([0.1, 0.9], [0.2, 0.8], [50, 50])
    assert figures["ROC curve, all test rows pooled"]["traces"][0]["y"] == [0, 0.9, 1]


def test_incidents_are_listed(record: RunRecord) -> None:
    assert page(record).tables["Refused replies and repeated phases"][1:] == [
        ["2", "steps", "reply refused", "Genf", "'z' is not finite"],
        ["2", "steps", "repeated, attempt 2", "all", "only 1 of 3 replies were usable before"],
    ]


def test_participation_shows_the_worst_of_a_round(record: RunRecord) -> None:
    (trace,) = page(record).figures["Sites by round"]["traces"]
    words = [[trace["words"][status] for status in row] for row in trace["z"]]
    assert trace["x"] == [1, 2, 3]
    assert dict(zip(trace["y"], words, strict=True)) == {
        "Bern": ["answered", "answered", "answered"],
        "Genf": ["answered", "refused", "answered"],
        "Uri": ["not selected", "selected, no answer", "answered"],
        "Zug": ["not selected", "not selected", "not selected"],
    }


def test_participation_of_many_is_counted() -> None:
    ledger = [entry(1, [0, 1, 2], [0, 1]), entry(2, [0, 99], [0, 99])]
    figures = page(RunRecord("many", {}, ledger=ledger)).figures
    (per_round,) = figures["Sites that answered, by round"]["traces"]
    (often,) = figures["How often a site answered"]["traces"]
    assert (per_round["x"], per_round["y"]) == ([1, 2], [2, 2])
    assert (often["x"], often["y"]) == ([1, 2], [2, 1])


def test_configuration_is_flat_and_complete(record: RunRecord) -> None:
    tables = page(record).tables
    assert ["step.size", "0.5"] in tables["Algorithm"]
    assert ["seed", "7"] in tables["Run"]
    assert ["fedsaddle", "0.1.0"] in tables["Environment"]


def test_several_runs_are_compared(record: RunRecord) -> None:
    low = [site("Bern", 0.6, 20, 40), site("Basel", 0.8, 9, 9)]
    evaluation = record.evaluation | {"sites": low, "summary": {"auc": 0.7, "worst_auc": None}}
    config = record.config | {"algorithm": {"name": "fedavg"}}
    other = replace(record, config=config, evaluation=evaluation)
    found = page(record, other)
    assert list(found.sections)[1] == "comparison"
    head, first, second = found.tables["The runs on the test rows"]
    assert dict(zip(head, first, strict=True)) == {
        "Run": "alps",
        "Method": "CODASCA",
        "Problem": "AUC",
        "Pooled AUC (95 % interval)": "0.912 (0.881–0.940)",
        "Worst site’s AUC": "Genf 0.710",
        "AUPRC": "0.660",
        "Accuracy": "0.800",
        "ECE": "0.031",
        "Sent": "0.58 MB",
        "Rounds": "3",
    }
    assert second[:5] == ["alps (2)", "FedAvg", "AUC", "0.700", "–"]
    head, *rows = found.tables["Test AUC by site, worst first"]
    assert head[:3] == ["Site", "alps", "alps (2)"]
    values = {row[0]: row[1:3] for row in rows}
    assert values["Bern"] == ["0.930 (0.880–0.980)", "0.600 (0.550–0.650)"]
    assert values["Basel"] == ["not in this run", "0.800 (0.750–0.850)"]
    assert [row[0] for row in rows][:2] == ["Bern", "Genf"]
    traces = found.figures["AUC, test"]["traces"]
    assert [t["name"] for t in traces] == ["alps", "alps (2)"]
    assert len({t["colour"] for t in traces}) == 2
    assert ["name differs", "codasca", "fedavg"] in found.tables["Algorithm"]
    assert ["seed", "7", "7"] in found.tables["Run"]


def test_counts_on_which_runs_disagree_are_not_shown(record: RunRecord) -> None:
    clients = [client | {"train_rows": 5} for client in record.data["clients"]]
    other = replace(record, data=record.data | {"clients": clients})
    rows = page(record, other).tables["Test AUC by site, worst first"]
    assert {row[-1] for row in rows[1:]} == {"differs"}


NASTY = ["<script>alert(1)</script>", "</script>", "Zürich & Söhne", '" onload="x', "</title>"]


def test_all_text_is_escaped(record: RunRecord) -> None:
    nasty = "</script><script>alert(1)</script>"
    clients = [{"name": name, "train_rows": 1, "test_rows": 60} for name in NASTY]
    evil = replace(
        record,
        name=nasty,
        config={"<i>": {"<b>": nasty, "name": nasty}, "algorithm": {"name": nasty}},
        environment={"<u>": nasty, "started": nasty},
        data={"source": nasty, "classes": [nasty], "clients": clients},
        history=[
            row | {"test/worst_site": nasty, f"test/{nasty}": 1.0, f"lambda/{nasty}": 1.0}
            for row in record.history
        ],
        ledger=[
            entry(1, [0, 1, 2, 3, 4], [0, 1], refused={"1": nasty}, phase=nasty),
        ],
        evaluation=record.evaluation
        | {
            "stopped": nasty,
            "summary": {"test/auc": 0.8, "test/worst_auc": 0.5, "test/worst_site": nasty},
            "sites": [site(name, 0.5 + i / 10, 3, 4) for i, name in enumerate(NASTY)],
        },
    )
    for found in (page(evil), page(evil, evil)):
        types = [attrs.get("type") for tag, attrs in found.elements if tag == "script"]
        assert types.count(None) == 2, "only plotly's script and our own run"
        assert not {"b", "i", "u"} & {t for t, a in found.elements if "class" not in a}
        assert not any(name.startswith("on") for _, a in found.elements for name in a)
        rows = found.tables["Test AUC by site, worst first"]
        assert [row[0] for row in rows[1:]] == NASTY
        labels = found.figures["Sites by round"]["traces"][0]["y"]
        assert labels[1:4] == ["&lt;/script&gt;", "Zürich &amp; Söhne", '" onload="x']


def test_embedded_json_cannot_leave_its_element(record: RunRecord) -> None:
    text = render_report([replace(record, name="</script><!--<script>")] * 2)
    for embedded in re.findall(r'<script type="application/json">(.*?)</script>', text, re.S):
        assert not set(embedded) & set("<>&")


def test_nothing_is_fetched(record: RunRecord, whole_bundle: None) -> None:
    text = render_report([record])
    plain = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"https?://", plain)
    assert not re.search(r"url\(|@import", plain)
    assert not re.search(r"<script[^>]*\ssrc=", text)
    assert "default-src 'none'" in plain
    assert len(text) > 1_000_000, "plotly.js is inside"


def test_accessible(record: RunRecord) -> None:
    found = page(record)
    tags = [tag for tag, _ in found.elements]
    assert tags.count("h1") == 1
    assert tags.count("caption") == tags.count("table")
    boxes = [attrs for _, attrs in found.elements if attrs.get("class") == "chart"]
    assert len(boxes) == len(found.figures) == 6
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in boxes)
    assert all(attrs.get("scope") for tag, attrs in found.elements if tag == "th")


def test_problem_without_predictions() -> None:
    history = [{"round": r, "train/objective": 1.0 / (r + 1)} for r in range(5)]
    found = page(RunRecord("saddle", {"algorithm": {"name": "my.own:Method"}}, history=history))
    assert list(found.figures) == ["Training objective"]
    assert "for 4 rounds with my.own:Method." in found.text
    assert "AUC is the chance" not in found.text
    assert "there is none" in found.sections["discrimination-and-calibration"]
    assert "no list of sites" in found.sections["sites"]
    assert "No messages" in found.sections["communication"]
    assert not any(tag == "button" for tag, _ in found.elements), "there is no other axis"


def test_many_classes_have_accuracy_only(record: RunRecord) -> None:
    spread = {
        "test/loss": 2.0,
        "test/rows": 90,
        "test/std_accuracy": 0.1,
        "test/best10_accuracy": 1,
    }
    history = [
        {"round": r, "test/accuracy": 0.1 * r, "test/worst_accuracy": 0.05 * r} | spread
        for r in range(4)
    ]
    binary_only = dict.fromkeys(("auc", "auc_low", "auc_high", "n_positive", "n_negative"))
    sites = [
        {"name": "Bern", "rows": 60, "accuracy": 0.3, **binary_only},
        {"name": "Genf", "rows": 30, "accuracy": 0.15, **binary_only},
        {"name": "Uri", "rows": 0, **binary_only},
    ]
    summary = {"test/accuracy": 0.25, "test/worst_accuracy": 0.15}
    evaluation = {"round": 3, "summary": summary, "sites": sites}
    names = ("Bern", "Genf", "Uri")
    clients = [{"name": name, "train_rows": 9, "test_rows": 60} for name in names]
    data = record.data | {"clients": clients}
    many = replace(record, history=history, evaluation=evaluation, data=data)
    found = page(many)
    assert "; test accuracy 0.250; worst site Genf 0.150;" in sentence(many)
    header = " ".join(found.sections["header"].split())
    assert "Test accuracy 0.250 Worst site’s accuracy 0.150 Genf" in header
    assert "AUC" not in header
    drawn = {"Accuracy", "Loss", "Megabytes sent, cumulative", "Sites by round"}
    assert found.figures.keys() == drawn, "counts and spreads are no learning curves"
    lines = {trace["name"]: trace["y"] for trace in found.figures["Accuracy"]["traces"]}
    assert lines["Test"] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert lines["Worst site"] == pytest.approx([0, 0.05, 0.1, 0.15])
    head, *rows = found.tables["Test Accuracy by site, worst first"]
    assert head[:2] == ["Site", "Accuracy"]
    assert head[3:] == ["Test rows", "Training rows"]
    results = [["Genf", "0.150"], ["Bern", "0.300"], ["Uri", "no test rows"]]
    assert [row[:2] for row in rows] == results
    head, first, _ = page(many, many).tables["The runs on the test rows"]
    assert not any("AUC" in title for title in head)
    assert first[head.index("Worst site’s accuracy")] == "Genf 0.150"


def test_all_sites_of_one_class_have_an_undefined_auc(record: RunRecord) -> None:
    evaluation = {"round": 3, "sites": [site("Bern", None, 0, 9), site("Uri", None, 9, 0)]}
    rows = page(replace(record, evaluation=evaluation)).tables["Test AUC by site, worst first"]
    assert [row[1] for row in rows[1:3]] == ["undefined (one class)", "not evaluated"]


WHY = "the run diverged after round 3: test/auc fell from <0.9> to 0.5; kept the model of round 2."


def test_a_stopped_run_says_so_at_the_top(record: RunRecord) -> None:
    config = record.config | {"run": {"rounds": 50}}
    evaluation = record.evaluation | {"stopped": WHY, "round": 2}
    halted = replace(record, config=config, evaluation=evaluation)
    assert sentence(halted).startswith(
        "4 sites trained one model for 3 rounds with CODASCA, then the run was stopped "
        "(50 were planned); the model of round 2 was kept; pooled test AUC 0.912"
    )
    found = page(halted)
    places = [
        found.words.index(text) for text in ("alps", "This run was stopped early", "T" + WHY[1:])
    ]
    assert places == sorted(places)
    assert places[-1] < found.words.index(sentence(halted))
    assert "so far" not in found.text
    assert [a["role"] for _, a in found.elements if a.get("class") == "banner"] == ["alert"]

    both = page(record, halted)
    assert "alps (2) was stopped early" in both.text
    assert "alps was stopped early" not in both.text
    rows = both.tables["The runs on the test rows"][1:]
    assert [row[-1] for row in rows] == ["3", "3 (stopped)"]
    assert not any(a.get("class") == "banner" for _, a in page(record).elements)


def test_a_run_stopped_before_anything_else_was_written() -> None:
    found = page(RunRecord("early", {}, evaluation={"stopped": "why"}))
    assert "for 0 rounds, then the run was stopped." in found.text
    assert "Why" in found.words


def with_weights(record: RunRecord, *rows: dict[str, float]) -> RunRecord:
    """The record with weights in its evaluated rounds."""
    named = [{f"lambda/{name}": weight for name, weight in row.items()} for row in rows]
    history = [row | new for row, new in zip(record.history, named, strict=True)]
    return replace(record, history=history)


def test_weights_are_drawn_largest_first(record: RunRecord) -> None:
    weighed = with_weights(record, {"Bern": 0.5, "a/<b>": 0.5}, {"Bern": 0.2, "a/<b>": 0.8})
    found = page(weighed)
    assert list(found.sections)[1:4] == ["learning-curves", "weights", "sites"]
    assert "The weights add up to one." in found.sections["weights"]
    assert "Shown are" not in found.sections["weights"]
    first, second = found.figures["Sites by weight"]["traces"]
    assert (first["name"], first["x"], first["y"]) == ("a/&lt;b&gt;", [0, 3], [0.5, 0.8])
    assert (second["name"], second["y"]) == ("Bern", [0.5, 0.2])
    assert "sent" not in first, "the toggle is for the learning curves"
    assert "a/<b>" in found.words, "the key names the lines"

    assert "weights" not in page(record).sections
    both = page(record, weighed)
    assert [t for t in both.figures if "weight" in t] == ["Sites by weight: alps (2)"]


def test_weights_of_groups_and_of_many(record: RunRecord) -> None:
    amount = MOST_WEIGHTS + 5
    last = {f"g{i}": i / 300 for i in range(amount)}
    grouped = record.config | {"federation": {"groups": {name: ["Bern"] for name in last}}}
    weighed = with_weights(replace(record, config=grouped), dict.fromkeys(last, 1 / amount), last)
    found = page(weighed)
    traces = found.figures["Groups by weight"]["traces"]
    assert [t["name"] for t in traces] == [f"g{i}" for i in range(amount - 1, 4, -1)]
    assert len({(t["colour"], t["dash"]) for t in traces}) == MOST_WEIGHTS
    assert "the 20 largest weights at the end, of 25 groups." in found.sections["weights"]


@pytest.mark.parametrize(
    ("seconds", "title", "end"),
    [
        (90.0, "Simulated seconds", 90.0),
        (600.0, "Simulated minutes", 10.0),
        (9000.0, "Simulated hours", 2.5),
    ],
)
def test_simulated_time_is_an_axis(
    record: RunRecord, seconds: float, title: str, end: float
) -> None:
    history = [row | {"simulated_seconds": seconds * row["round"] / 3} for row in record.history]
    found = page(replace(record, history=history))
    buttons = [attrs for tag, attrs in found.elements if tag == "button"]
    assert [a["data-axis"] for a in buttons] == ["x", "sent", "time"]
    assert [a["data-title"] for a in buttons] == ["Round", "Megabytes sent", title]
    assert [a["aria-pressed"] for a in buttons] == ["true", "false", "false"]
    assert "By round By megabytes By simulated time" in found.sections["learning-curves"]
    for panel in ("AUC", "Training objective"):
        assert found.figures[panel]["traces"][0]["time"] == pytest.approx([0, end])
    assert "in the simulated federation" in found.sections["header"]

    plain = page(record)
    assert [a["data-axis"] for tag, a in plain.elements if tag == "button"] == ["x", "sent"]
    assert "time" not in plain.figures["AUC"]["traces"][0]
    both = page(record, replace(record, history=history))
    assert [t["time"] for t in both.figures["AUC, test"]["traces"]] == [
        [None, None],
        pytest.approx([0, end]),
    ]
    head, *rows = both.tables["The runs on the test rows"]
    assert rows[0][head.index("Simulated time")] == "–"


def test_methods_are_written_as_in_their_papers() -> None:
    names = ("codasca", "coda-plus", "fedavg", "local-sgda-plus", "drfa-prox", "cdma-ada", "afl")
    assert [method_name(name) for name in names] == [
        "CODASCA",
        "CODA+",
        "FedAvg",
        "Local-SGDA+",
        "DRFA-Prox",
        "CDMA-ADA",
        "AFL",
    ]


def test_one_phase_needs_no_total(record: RunRecord) -> None:
    rows = page(replace(record, ledger=record.ledger[:1])).tables["What was sent, by phase"]
    assert [row[0] for row in rows] == ["Phase", "steps"]


def test_a_run_still_going(record: RunRecord) -> None:
    config = record.config | {"run": {"rounds": 50}}
    found = page(replace(record, config=config, evaluation={}))
    assert "for 3 rounds with CODASCA so far (50 are planned)" in found.text
    assert "pooled test AUC 0.900" in found.text
    assert "not been evaluated" in found.sections["sites"]
    assert found.tables["The sites and their rows"][1] == ["Bern", "60", "1,000"]


def test_nothing_known_at_all() -> None:
    found = page(RunRecord("empty", {}), RunRecord("empty", {"run": None}))
    assert "The sites trained one model for 0 rounds." in found.text
    assert found.figures == {}


def test_values_that_are_no_numbers(record: RunRecord) -> None:
    odd = {"round": 1, "test/auc": float("nan"), "test/worst_auc": None, "bytes_up": None}
    history = [record.history[0], odd, record.history[1]]
    roc = {"fpr": [0, float("inf")], "tpr": [0, float("nan")]}
    evaluation = record.evaluation | {"roc": roc, "summary": {"auc": float("nan")}}
    found = page(replace(record, history=history, evaluation=evaluation))
    assert found.figures["AUC"]["traces"][0]["x"] == [0, 3]
    assert "nan" not in found.text


def test_long_tables_are_cut_and_say_so(record: RunRecord) -> None:
    sites = [site(f"s{i}", 0.5, 1, 1) for i in range(MOST_ROWS + 3)]
    ledger = [entry(r, [0, 1], [0, 1], refused={"0": "bad"}) for r in range(MOST_INCIDENTS + 1)]
    big = replace(record, ledger=ledger, evaluation={"sites": sites}, data={})
    found = page(big)
    assert len(found.tables["Test AUC by site, worst first"]) == MOST_ROWS + 1
    assert "3 further sites with higher or undefined values." in found.text
    assert "1 further incident not listed." in found.text


def test_no_run_is_refused() -> None:
    with pytest.raises(UserError, match="at least one run"):
        render_report([])


def test_written_whole_or_not_at_all(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    assert write_report([replace(record, name="Zürich")], path) == path
    before = path.read_text(encoding="utf-8")
    assert "Zürich" in before

    def full(self: Path, *_: Any, **__: Any) -> None:
        self.write_bytes(b"<!doctype")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        write_report([record], path)
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
