"""Verdicts: against scipy's paired test, and against what the words mean."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedsaddle.runs.reproduce.claims import (
    AtLeast,
    Beats,
    Close,
    Near,
    Sooner,
    Unchecked,
    Window,
)
from fedsaddle.runs.reproduce.outcomes import Outcomes

METRIC = "test/auc"
VALUES = st.lists(
    st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=1, max_size=6
)


def outcomes(stopped=None, **ends):
    """Runs that start at 0.5 and end at these values, one per seed; a list is a whole curve."""
    rows = {}
    for label, values in ends.items():
        curves = [v if isinstance(v, list) else [0.5, v] for v in values]
        rows[label.replace("_", " ")] = {
            seed: [{"round": 10 * k, METRIC: value} for k, value in enumerate(curve)]
            for seed, curve in enumerate(curves)
        }
    return Outcomes(rows, {label: frozenset(seeds) for label, seeds in (stopped or {}).items()})


def beats(better="A", worse="B", **settings):
    one = {"better": (better,), "worse": (worse,)} | settings
    return Beats(text="A is better than B.", rule="beats", metric=METRIC, **one)


@given(VALUES)
def test_a_difference_counts_as_in_a_paired_t_test(pairs):
    first, second = ([pair[k] for pair in pairs] for k in (0, 1))
    gaps = [a - b for a, b in pairs]
    found = beats().judge(outcomes(A=first, B=second), "cpu").word
    if len(pairs) < 3:
        assert found == "undecided"
        return
    assume(max(gaps) - min(gaps) > 1e-6)
    p = stats.ttest_rel(first, second).pvalue
    assume(math.isfinite(p) and abs(p - 0.05) > 1e-6)
    expected = "undecided" if p > 0.05 else "reproduced" if sum(gaps) > 0 else "not reproduced"
    assert found == expected


@given(VALUES)
def test_a_claim_and_its_opposite_are_not_both_reproduced(pairs):
    runs = outcomes(A=[a for a, _ in pairs], B=[b for _, b in pairs])
    one, other = beats().judge(runs, "cpu").word, beats("B", "A").judge(runs, "cpu").word
    opposite = {"reproduced": "not reproduced", "not reproduced": "reproduced"}
    assert other == opposite.get(one, one)
    assert beats(lower=True).judge(runs, "cpu").word == other


@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_seeds_does_not_matter(pairs, random):
    mixed = random.sample(pairs, len(pairs))
    words = [
        beats().judge(outcomes(A=[a for a, _ in p], B=[b for _, b in p]), "cpu").word
        for p in (pairs, mixed)
    ]
    assert words[0] == words[1]


def test_every_comparison_has_to_come_out_right():
    runs = outcomes(A=[0.9, 0.91, 0.92], B=[0.8, 0.81, 0.82], C=[0.95, 0.951, 0.96])
    assert beats(worse="B").judge(runs, "cpu").word == "reproduced"
    both = beats(worse=("B", "C")[0]).model_copy(update={"worse": ("B", "C")})
    found = both.judge(runs, "cpu")
    assert found.word == "not reproduced"
    assert "smallest lead: A over C by -0.044" in found.ours


def test_a_diverged_run_loses_to_any_other():
    good, bad = [0.9, 0.91, 0.92], [0.99, 0.99, 0.99]
    one = beats().judge(outcomes(A=good, B=bad, stopped={"B": [0, 1, 2]}), "cpu")
    assert one.word == "reproduced"
    assert "B diverged in 3 of 3 seeds" in one.ours
    other = beats().judge(outcomes(A=bad, B=good, stopped={"A": [1]}), "cpu")
    assert other.word == "not reproduced"


def test_best_is_the_best_of_a_run_and_end_its_last_value():
    runs = outcomes(A=[[0.5, 0.9, 0.1], [0.5, 0.92, 0.1], [0.5, 0.91, 0.2]], B=[0.8, 0.82, 0.81])
    assert beats(when="best").judge(runs, "cpu").word == "reproduced"
    assert beats(when="end").judge(runs, "cpu").word == "not reproduced"


@pytest.mark.parametrize(
    ("second", "word"),
    [
        ([0.900, 0.911, 0.920], "reproduced"),
        ([0.800, 0.811, 0.820], "not reproduced"),
        ([0.890, 0.921, 0.920], "undecided"),
    ],
)
def test_close_needs_the_whole_interval_within_the_margin(second, word):
    claim = Close(text="Alike.", rule="close", metric=METRIC, first="A", second="B", within=0.01)
    assert claim.judge(outcomes(A=[0.9, 0.91, 0.92], B=second), "cpu").word == word


def test_at_least_asks_every_seed():
    claim = AtLeast(text="It trains.", rule="at-least", metric=METRIC, label="A", value=0.9)
    assert claim.judge(outcomes(A=[0.9, 0.95]), "cpu").word == "reproduced"
    found = claim.judge(outcomes(A=[0.9, 0.5, 0.3]), "cpu")
    assert found.word == "not reproduced"
    assert found.ours == "1 of 3 seeds; they end at 0.900, 0.500, 0.300."
    assert claim.judge(outcomes(A=[0.95, 0.95], stopped={"A": [0]}), "cpu").word == "not reproduced"


def test_near_the_papers_number():
    claim = Near(text="Its AUC.", rule="near", metric=METRIC, label="A", value=0.98, within=0.01)
    assert claim.judge(outcomes(A=[0.97, 0.975]), "cpu").word == "reproduced"
    assert claim.judge(outcomes(A=[0.95, 0.96]), "cpu").word == "not reproduced"


def test_sooner_counts_rounds_to_where_the_slow_one_ends():
    slow = [[0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.71, 0.81], [0.5, 0.61, 0.7, 0.8]]
    fast = [[0.5, 0.82, 0.8, 0.8], [0.5, 0.6, 0.82, 0.8], [0.5, 0.9, 0.9, 0.9]]
    claim = Sooner(text="A is faster.", rule="sooner", metric=METRIC, better=("A",), worse=("B",))
    found = claim.judge(outcomes(A=fast, B=slow), "cpu")
    assert found.word == "reproduced"  # 20, 10 and 20 rounds saved
    assert "to B's 0.803: A 13 rounds, B 30, saved 17 (2 to 31)" in found.ours
    found = claim.judge(outcomes(A=slow, B=[[0.5, 0.9]] * 3), "cpu")
    assert found.word == "not reproduced"
    assert "A does not get to B's 0.900 in 3 of 3 seeds" in found.ours
    same = claim.judge(outcomes(A=slow, B=slow), "cpu")
    assert same.word == "undecided"
    lucky = [[0.99, *curve[1:]] for curve in slow]  # before any training
    assert claim.judge(outcomes(A=lucky, B=slow), "cpu") == same


def window(**update):
    given = {"better": "A", "worse": "B", "loss": 0.01, "factor": 4.0}
    claim = Window(text="Wider.", rule="window", metric=METRIC, **given)
    return claim.at({}, None, "I", (1, 8, 32)).model_copy(update=update)


def test_window_is_the_largest_value_without_loss():
    ends = {
        "A,_I_=_1": [0.9, 0.9, 0.9],
        "A,_I_=_8": [0.9, 0.895, 0.9],
        "A,_I_=_32": [0.895, 0.9, 0.91],
        "B,_I_=_1": [0.9, 0.9, 0.9],
        "B,_I_=_8": [0.9, 0.9, 0.91],
        "B,_I_=_32": [0.8, 0.8, 0.8],
    }
    found = window().judge(outcomes(**ends), "cpu")
    assert found.word == "reproduced"
    assert "A: 0.900, 0.898, 0.902; largest without loss, by seed: 32, 32, 32" in found.ours
    assert "B: 0.900, 0.903, 0.800; largest without loss, by seed: 8, 8, 8" in found.ours
    mixed = ends | {"B,_I_=_32": [0.9, 0.8, 0.8]}
    assert window().judge(outcomes(**mixed), "cpu").word == "undecided"
    wide = ends | {"B,_I_=_32": [0.9, 0.9, 0.9]}
    assert window().judge(outcomes(**wide), "cpu").word == "not reproduced"


def test_out_of_reach_says_why():
    why = {"cpu": "needs a GPU.", "paper": "needs another data set."}
    claim = beats(out_of_reach=why)
    runs = outcomes(A=[0.9] * 3, B=[0.8, 0.81, 0.82])
    assert claim.judge(runs, "cpu") == claim.judge(outcomes(), "cpu")
    assert claim.judge(runs, "cpu").ours == "needs a GPU."
    assert claim.judge(runs, "quick").word == "reproduced"
    never = Unchecked(text="Other data.", rule="unchecked", out_of_reach={"all": "no CelebA."})
    assert never.judge(runs, "quick").ours == "no CelebA."
    absent = beats(worse="Z").judge(runs, "quick")
    assert (absent.word, absent.ours) == ("out of reach", "not run at this scale: Z.")
