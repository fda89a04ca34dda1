"""Who is asked: uniform, weighted, cyclic."""

import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.algorithms import Members
from fedsaddle.errors import UserError
from fedsaddle.federation import FederationOptions, all_take_part, answering, select
from fedsaddle.federation.participation import check_options, reachable


def test_everyone_is_asked_by_default(round_at, phase_of):
    selected, draws = select(FederationOptions(), round_at([2, 5, 9]), phase_of(), {})
    assert selected.tolist() == [2, 5, 9]
    assert draws.tolist() == [1, 1, 1]


@given(n=st.integers(1, 60), data=st.data(), number=st.integers(0, 9), seed=st.integers(0, 9))
def test_a_selection_is_a_rising_subset_of_the_asked_size(
    round_at, phase_of, n, data, number, seed
):
    able = [3 * j + 1 for j in range(n)]
    size = data.draw(st.integers(1, n))
    options = FederationOptions(clients_per_round=size)
    selected, draws = select(options, round_at(able, number, seed), phase_of(), {})
    assert len(selected) == size == draws.sum()
    assert (np.diff(selected) > 0).all()
    assert set(selected.tolist()) <= set(able)


@given(
    n=st.integers(1, 6),
    per_round=st.integers(0, 6),
    everyone=st.booleans(),
    drawn=st.booleans(),
    enough=st.sampled_from([0.5, 1.0]),
    availability=st.sampled_from(["always", "uniform-response", "dropout", "cyclic"]),
    number=st.integers(0, 3),
)
def test_all_take_part_where_it_is_said(
    round_at, phase_of, n, per_round, everyone, drawn, enough, availability, number
):
    """All are selected, once, and answer: then and, for some round, only then."""
    options = FederationOptions(
        clients_per_round=min(per_round, n),
        enough=enough,
        availability=availability,
        cycle_rounds=4,
    )
    draw = (lambda state, members: torch.ones(len(members))) if drawn else None
    phase, at = phase_of(everyone=everyone, draw=draw), round_at(n, number)
    if all_take_part(options, phase, n):
        selected, draws = select(options, at, phase, {})
        answered = answering(options, selected, at.members.group_names, at, phase.draw_key)
        assert selected.tolist() == answered.tolist() == list(range(n))
        assert draws.tolist() == [1] * n
    else:
        some = per_round and per_round < n and not everyone
        assert drawn or some or enough < 1 or availability != "always"


def test_every_client_is_selected_equally_often(round_at, phase_of):
    options, rounds = FederationOptions(clients_per_round=3), 2000
    counts = np.zeros(10)
    for number in range(rounds):
        counts[select(options, round_at(10, number), phase_of(), {})[0]] += 1
    expected = rounds * 0.3
    assert np.abs(counts - expected).max() < 4.5 * np.sqrt(rounds * 0.3 * 0.7)


def test_the_draw_depends_on_round_phase_attempt_and_seed_alone(round_at, phase_of):
    options = FederationOptions(clients_per_round=10)

    def drawn(number=4, name="steps", attempt=0, seed=0, **fields):
        at = round_at(1000, number, seed)
        return select(options, at, phase_of(name, **fields), {}, attempt)[0].tolist()

    assert drawn() == drawn()
    others = [drawn(number=5), drawn(name="losses"), drawn(attempt=1), drawn(seed=1)]
    assert all(other != drawn() for other in others)
    assert drawn(name="second", drawn_as="steps") == drawn()


def test_more_clients_than_there_are_is_refused():
    options = FederationOptions(clients_per_round=11)
    with pytest.raises(UserError, match=r"clients_per_round: 11 asked for, but only 10"):
        check_options(options, tuple("abcdefghijkl"), n_able=10)
    check_options(options, tuple("abcdefghijkl"), n_able=11)


def test_a_phase_for_everyone_ignores_the_number_per_round(round_at, phase_of):
    options = FederationOptions(clients_per_round=2)
    selected, _ = select(options, round_at(10), phase_of(everyone=True), {})
    assert selected.tolist() == list(range(10))


def test_clients_drawn_by_weight_come_with_their_multiplicity(round_at, phase_of):
    chances = torch.tensor([0.0, 0.5, 0.2, 0.3])
    phase = phase_of(draw=lambda state, members: chances)
    options, rounds = FederationOptions(clients_per_round=4), 1500
    totals = np.zeros(4)
    for number in range(rounds):
        selected, draws = select(options, round_at(4, number), phase, {})
        assert draws.sum() == 4
        assert len(set(selected.tolist())) == len(selected)
        totals[selected] += draws
    expected = 4 * rounds * chances.numpy()
    assert totals[0] == 0
    assert np.abs(totals - expected).max() < 4.5 * np.sqrt(4 * rounds * 0.25)


def test_weights_are_drawn_with_the_servers_state(round_at, phase_of):
    phase = phase_of(draw=lambda state, members: state["lambda"])
    state = {"lambda": torch.tensor([0.0, 0.0, 1.0])}
    options = FederationOptions(clients_per_round=3)
    selected, draws = select(options, round_at([4, 6, 8]), phase, state)
    assert (selected.tolist(), draws.tolist()) == ([8], [3])


def cyclic(**fields):
    return FederationOptions(availability="cyclic", **fields)


@given(
    n=st.integers(1, 40),
    rounds=st.integers(1, 30),
    share=st.sampled_from([Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1)]),
    number=st.integers(0, 200),
)
def test_cyclic_clients_are_reachable_for_their_share_of_the_day(n, rounds, share, number):
    expected = []
    for j in range(n):
        hour = Fraction(number, rounds) - Fraction(j, n)  # days since the client's first morning
        if hour - (hour.numerator // hour.denominator) < share:
            expected.append(j)
    options = cyclic(cycle_rounds=rounds, cycle_share=float(share))
    found = reachable(options, n, number).tolist()
    assert found == expected if expected else len(found) == 1


def test_when_nobody_is_awake_the_next_one_is_asked():
    options = cyclic(cycle_rounds=10, cycle_share=0.05)  # clients' mornings: rounds 0 and 5
    found = [reachable(options, 2, number).tolist() for number in range(10)]
    assert found == [[0], *[[1]] * 5, *[[0]] * 4]


def test_only_reachable_clients_are_selected(round_at, phase_of):
    options = cyclic(cycle_rounds=4, cycle_share=0.5, clients_per_round=3)
    able = [10, 11, 12, 13, 14, 15, 16, 17]
    near = {10, 15, 16, 17}  # at midnight: who woke at most half a day ago
    selected, _ = select(options, round_at(able, 0), phase_of(), {})
    assert len(selected) == 3
    assert set(selected.tolist()) <= near
    everyone, _ = select(options, round_at(able, 0), phase_of(everyone=True), {})
    assert set(everyone.tolist()) == near
    many = cyclic(cycle_rounds=4, cycle_share=0.5, clients_per_round=6)
    selected, _ = select(many, round_at(able, 0), phase_of(), {})
    assert set(selected.tolist()) == near


def test_clients_are_drawn_by_what_is_left_of_the_weights(round_at, phase_of):
    options, days = cyclic(cycle_rounds=4, cycle_share=0.5, clients_per_round=8), 300
    weights = torch.tensor([0, 0.4, 0.4, 0, 0, 0.05, 0.15, 0])  # awake: 0, 5, 6, 7
    totals = np.zeros(8)
    for day in range(days):
        phase = phase_of(draw=lambda state, members: weights)
        selected, draws = select(options, round_at(8, 4 * day), phase, {})
        totals[selected] += draws
    assert np.flatnonzero(totals).tolist() == [5, 6]
    assert abs(totals[6] - 0.75 * 8 * days) < 4.5 * np.sqrt(8 * days * 0.75 * 0.25)


def test_without_any_weight_in_reach_the_draw_is_uniform(round_at, phase_of):
    options = cyclic(cycle_rounds=4, cycle_share=0.5, clients_per_round=8)
    phase = phase_of(draw=lambda state, members: torch.eye(8)[2])
    drawn = [select(options, round_at(8, 4 * day), phase, {})[0] for day in range(20)]
    assert np.unique(np.concatenate(drawn)).tolist() == [0, 5, 6, 7]


@pytest.mark.parametrize("availability", ["always", "cyclic"])
def test_a_million_clients_cost_little(round_at, phase_of, availability):
    million = torch.arange(10**6)
    at = round_at()._replace(members=Members(million, (), million))
    options = FederationOptions(clients_per_round=100, availability=availability)
    start = time.process_time()
    for attempt in range(10):
        select(options, at, phase_of(), {}, attempt)
    assert time.process_time() - start < 2  # a loop over them in Python takes longer for one
