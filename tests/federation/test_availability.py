"""Who of the selected answers."""

from math import ceil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsaddle.errors import UserError
from fedsaddle.federation import FederationOptions, answering
from fedsaddle.federation.participation import check_options

NAMES = tuple(f"client-{number}" for number in range(200))


@pytest.mark.parametrize("availability", ["always", "cyclic"])
def test_all_of_the_selected_answer(round_at, availability):
    options = FederationOptions(availability=availability)
    selected = np.array([1, 4, 6])
    assert answering(options, selected, NAMES, round_at(), "steps").tolist() == [1, 4, 6]


@given(st.integers(1, 100), st.integers(1, 100))
@example(100, 55)  # 0.55 · 100 is a bit above 55 in floating point
def test_no_more_than_enough_are_used(round_at, n, percent):
    options = FederationOptions(enough=percent / 100)
    answered = answering(options, np.arange(n), NAMES, round_at(), "steps")
    assert len(answered) == -(-n * percent // 100)
    assert (np.diff(answered) > 0).all()


def test_the_first_to_answer_are_others_every_round(round_at):
    options = FederationOptions(enough=0.1)
    counts = np.zeros(20)
    for number in range(1000):
        counts[answering(options, np.arange(20), NAMES, round_at(20, number), "steps")] += 1
    assert np.abs(counts - 100).max() < 4.5 * np.sqrt(1000 * 0.1 * 0.9)


def test_uniform_response_takes_between_half_and_all(round_at):
    options = FederationOptions(availability="uniform-response")
    sizes = np.array(
        [
            len(answering(options, np.arange(100), NAMES, round_at(100, number), "steps"))
            for number in range(800)
        ]
    )
    assert sizes.min() >= 50
    assert sizes.max() <= 100
    # ⌈100 p⌉, p uniform on [0.5, 1]: mean 75.5, deviation 50/√12
    assert abs(sizes.mean() - 75.5) < 4.5 * 50 / np.sqrt(12 * 800)
    assert abs(np.quantile(sizes, 0.1) - 55) < 3


def test_dropout_loses_each_client_by_its_own_probability(round_at):
    table = {"client-0": 1.0, "client-1": 0.25}
    options = FederationOptions(availability="dropout", dropout=table)
    counts = np.zeros(3)
    for number in range(1000):
        counts[answering(options, np.arange(3), NAMES, round_at(3, number), "steps")] += 1
    assert counts[0] == 0
    assert abs(counts[1] - 750) < 4.5 * np.sqrt(1000 * 0.25 * 0.75)
    assert counts[2] == 1000


def test_dropout_of_everyone_leaves_nobody(round_at):
    options = FederationOptions(availability="dropout", dropout=1.0)
    assert len(answering(options, np.arange(9), NAMES, round_at(), "steps")) == 0


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.floats(0.05, 1))
def test_on_a_clock_the_fastest_are_used(round_at, seconds, enough):
    times = np.array(seconds)
    clients = 2 * np.arange(len(times)) + 1
    options = FederationOptions(availability="latency", enough=enough)
    used = answering(options, clients, NAMES, round_at(), "steps", 0, times)
    late = np.setdiff1d(clients, used)
    assert len(used) == ceil(round(enough * len(times), 9))
    assert (np.diff(used) > 0).all()
    if len(late):
        assert times[(used - 1) // 2].max() <= times[(late - 1) // 2].min()


@pytest.mark.parametrize("probability", [-0.1, 1.5])
def test_no_probability(probability):
    with pytest.raises(UserError, match="is no probability"):
        check_options(FederationOptions(dropout=probability), NAMES, 10)
    with pytest.raises(UserError, match="is no probability"):
        check_options(FederationOptions(dropout={"client-3": probability}), NAMES, 10)


def test_dropout_of_an_unknown_client_names_the_nearest():
    options = FederationOptions(dropout={"clent-7": 0.5})
    with pytest.raises(UserError, match=r"no client 'clent-7'; did you mean 'client-\d+'"):
        check_options(options, NAMES, 10)
    check_options(FederationOptions(dropout={"client-7": 0.5}), NAMES, 10)


@pytest.mark.parametrize(
    "bad",
    [
        {"availability": "sometimes"},
        {"enough": 0},
        {"cycle_share": 0},
        {"cycle_rounds": 0},
        {"bandwidth": 0},
        {"tail": 0},
        {"seconds_per_phase": -1},
        {"cycel_share": 0.5},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValidationError, match=next(iter(bad))):
        FederationOptions(**bad)
