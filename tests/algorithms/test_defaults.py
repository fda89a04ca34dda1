"""Every method trains with its defaults."""

import pytest

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import DataOptions
from fedsaddle.problems import PROBLEMS

DATA = DataOptions(source="breast-cancer", clients=4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_its_natural_problem_from_the_defaults(name):
    solves = ALGORITHMS[name].solves
    problem = "auc" if "auc" in solves else next(p for p, c in PROBLEMS.items() if c.kind in solves)
    result = fedsaddle.train(problem, DATA, name, rounds=12, evaluation={"every": 12})
    assert result.stopped is None
    assert result.evaluation["summary"]["test/auc"] > 0.9
    assert result.history[-1]["test/auc"] > result.history[0]["test/auc"]
