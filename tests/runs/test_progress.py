from fedsaddle.runs.progress import Lines, figures, watch
from fedsaddle.runs.watching import Silent

TOTALS = {"bytes_up": 1_500_000, "bytes_down": 500_000}


def test_what_is_shown_of_a_round():
    row = {"test/auc": 0.91, "test/worst_auc": 0.7, "test/worst_site": "Ulm"}
    assert figures(row, TOTALS) == "AUC 0.9100  worst Ulm 0.7000  2 MB"
    assert figures({"test/accuracy": 0.5, "test/auc": None}, TOTALS) == "accuracy 0.5000  2 MB"
    assert figures({"train/objective": -0.25}, TOTALS) == "objective -0.25  2 MB"
    assert figures(None, TOTALS) == "2 MB"


def test_plain_lines_now_and_then(capsys):
    always, never = Lines(every=0.0), Lines(every=1000.0)
    for lines in (always, never):
        lines.begin(10, 0)
        lines.round(1, {"train/objective": 1.0}, TOTALS)
        lines.round(2, None, TOTALS)
        lines.end()
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["round 1/10  objective 1  2 MB", "round 2/10  objective 1  2 MB"]


def test_nothing_when_asked_to_be_quiet():
    assert isinstance(watch(quiet=True), Silent)
