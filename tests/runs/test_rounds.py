"""Who is asked: what is found out for several rounds at a time, against what is for one."""

from dataclasses import replace

import pytest

from fedsaddle.algorithms import Round
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.bench.cases import Case, Size, taking_part
from fedsaddle.federation import FederationOptions, Ledger
from fedsaddle.runs import rounds
from fedsaddle.runs.rounds import AHEAD, _asked

SELECTED = 5
BY_THE_ROUND = [
    {"availability": "always"},
    {"availability": "uniform-response"},
    {"availability": "dropout", "dropout": 0.3},
]


def plan_with(**options):
    case = Case("logistic", "cdma-mnist", Size(12, 2, 4, SELECTED))
    data = case.data()
    plan = case.plan(data, case.problem(data))
    return replace(plan, federation=FederationOptions(clients_per_round=SELECTED, **options))


def asked(plan, number, attempt=0):
    at = Round(number, plan.seed, plan.layout, plan.problem, plan.members)
    phases = phases_of_round(plan.algorithm, plan.problem, number)
    ledger = Ledger(plan.layout)
    return [_asked(plan, ledger, at, phase, {}, attempt).clients.tolist() for phase in phases]


@pytest.mark.parametrize("options", BY_THE_ROUND)
def test_foreseen_or_not_the_same_clients_take_part(options):
    """From the first round on, from a later one, and when a round is asked about again."""
    some = range(3 * AHEAD // SELECTED)
    plan = plan_with(**options)
    expected = [taking_part(plan, number) for number in some]
    assert len({str(clients) for clients in expected}) > 9
    assert [asked(plan, number) for number in some] == expected
    later = plan_with(**options)
    for number in (70, 3, 3, 71, 4):
        assert asked(later, number) == expected[number]
        assert asked(later, number, attempt=1) != expected[number]


def test_several_rounds_are_foreseen_and_not_remembered(monkeypatch):
    counted = []
    select = rounds.select
    monkeypatch.setattr(rounds, "select", lambda *what: counted.append(what) or select(*what))
    plan, at_once = plan_with(), AHEAD // SELECTED
    asked(plan, 0)
    assert len(counted) == 2 * at_once  # of both phases
    for number in range(1, at_once):
        asked(plan, number)
    assert len(counted) == 2 * at_once
    assert not plan.ahead
    asked(plan, at_once)
    assert len(counted) == 4 * at_once


def test_clients_by_the_clock_are_found_out_when_they_are_asked(monkeypatch):
    """What they are sent depends on who has had it before."""
    plan = plan_with(availability="latency")
    asked(plan, 0)
    assert not plan.ahead
