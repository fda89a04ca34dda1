"""The SVG chart: well-formed, every line drawn once, axes that hold the points."""

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import assume, given
from hypothesis import strategies as st

from fedsaddle.runs.reproduce.figure import Chart, Point, draw, ticks

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, NUMBERS)
def test_ticks_are_round_few_and_hold_the_range(one, other):
    low, high = sorted((one, other))
    assume(high - low > 1e-6 * max(1.0, abs(low), abs(high)))
    found = ticks(low, high)
    step = found[1] - found[0]
    assert found[0] <= low + 1e-9 * step
    assert high - 1e-9 * step <= found[-1]
    assert 3 <= len(found) <= 8
    assert all(abs(b - a - step) < 1e-6 * step for a, b in pairwise(found))


def line(*means):
    return [Point(10 * k, mean, mean - 0.01, mean + 0.01) for k, mean in enumerate(means)]


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_line_and_a_band_for_each_name():
    lines = {"A & B": line(0.5, 0.7, 0.8), "C": line(0.5, 0.6, 0.65)}
    svg = draw([Chart("test AUC", "rounds", lines), Chart("other", "rounds", lines)], [*lines], "T")
    tree = ElementTree.fromstring(svg)
    paths = list(tree.iter(f"{SVG}path"))
    assert len(paths) == 2 * 2 * 2
    assert len({path.get("stroke") for path in paths if path.get("stroke")}) == 2
    assert {"A & B", "C", "test AUC", "rounds"} <= set(texts(svg))


def test_categories_stand_below_their_points():
    chart = Chart(
        "AUC", "I", {"A": [Point(0, 0.9, 0.9, 0.9), Point(1, 0.8, 0.8, 0.8)]}, ("1", "32")
    )
    svg = draw([chart], ["A"], "T")
    marks = {
        e.text: float(e.get("x")) for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.text
    }
    dots = [float(e.get("cx")) for e in ElementTree.fromstring(svg).iter(f"{SVG}circle")]
    assert dots == [marks["1"], marks["32"]]


def test_nothing_to_draw_is_said():
    assert "no values" in texts(draw([Chart("AUC", "rounds", {"A": []})], ["A"], "T"))
    assert "no values" not in texts(draw([Chart("AUC", "rounds", {"A": line(0.5)})], ["A"], "T"))
