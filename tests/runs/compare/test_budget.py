"""The bill that is drawn up ahead, against the ledger of real runs."""

from itertools import islice

import pytest

from fedsaddle.errors import UserError
from fedsaddle.runs.api import train_config
from fedsaddle.runs.compare import named_entrants
from fedsaddle.runs.compare.budget import bill, rounds_within
from fedsaddle.runs.compare.entrants import data_of, settle

ROUNDS = 6
METHODS = (
    *("codasca", "cdma-ada", "coda", "catalyst-scaffold-s", "local-sgda-plus"),
    *("local-scgdam:compositional-auc", "drfa:risk", "drfa-ga:risk"),
)
FEDERATIONS = {
    "some answer": {"clients_per_round": 5, "availability": "uniform-response"},
    "the first on a clock": {"clients_per_round": 5, "availability": "latency", "enough": 0.6},
    "tried again": {"clients_per_round": 4, "availability": "dropout", "dropout": 0.5},
    "around the globe": {"clients_per_round": 3, "availability": "cyclic", "cycle_rounds": 4},
}


def configs_of(methods, federation):
    base = {
        "data": {"clients": 8, "partition": "iid"},
        "algorithm": {"local_steps": 1},
        "federation": {**federation, "retries": 30},
        "evaluation": {"every": ROUNDS},
        "run": {"rounds": ROUNDS},
    }
    return settle(base, named_entrants(base, methods), 0)


def sent(row):
    return row["bytes_up"] + row["bytes_down"]


def test_the_bill_is_what_each_method_sends(tmp_path):
    check_bill(METHODS, {}, tmp_path)


@pytest.mark.parametrize("federation", FEDERATIONS.values(), ids=FEDERATIONS)
def test_the_bill_knows_who_answers(federation, tmp_path):
    check_bill(("codasca", "cdma-ada", "drfa:risk"), federation, tmp_path)


def check_bill(methods, federation, tmp_path):
    for label, config in configs_of(methods, federation).items():
        history = train_config(config, tmp_path / label).history
        (expected,) = islice(bill(config, data_of(config)), ROUNDS - 1, ROUNDS)
        if label.startswith("drfa"):  # draws by its weights: never more than foreseen
            assert 0.5 * expected < sent(history[-1]) <= expected, label
        else:
            assert sent(history[-1]) == expected, label


def test_a_closed_form_problem_pays_for_its_extra_phase(tmp_path):
    base = {"problem": {"name": "auc", "closed_form": True}, "run": {"rounds": ROUNDS}}
    (config,) = settle(base, named_entrants(base, ["fedavg"]), 0).values()
    history = train_config(config, tmp_path / "run").history
    assert list(islice(bill(config, data_of(config)), ROUNDS))[-1] == sent(history[-1])


def test_as_many_rounds_as_the_budget_pays_for():
    configs = configs_of(("fedavg", "cdma-one"), FEDERATIONS["some answer"])
    totals = {
        label: list(islice(bill(config, data_of(config)), 40)) for label, config in configs.items()
    }
    budget = totals["cdma-one"][9] / 1e6
    paid = rounds_within(budget, configs, [0])
    assert paid["cdma-one"] == 10
    assert totals["fedavg"][paid["fedavg"] - 1] <= budget * 1e6 < totals["fedavg"][paid["fedavg"]]
    less = rounds_within(budget - 1e-6, configs, [0])
    assert less["cdma-one"] == 9
    several = rounds_within(budget, configs, [0, 1, 2])
    assert all(several[label] <= paid[label] for label in configs)


def test_a_replayed_federation_has_no_budget(tmp_path):
    replayed = {"availability": "trace", "trace": str(tmp_path / "ledger.jsonl")}
    with pytest.raises(UserError, match="--budget-mb: with federation"):
        rounds_within(1, configs_of(("fedavg",), replayed), [0])


def test_a_budget_below_one_round_is_refused():
    configs = configs_of(("fedavg",), {})
    with pytest.raises(UserError, match=r"fedavg: one round sends 0\.00\d+ MB, which is more than"):
        rounds_within(1e-5, configs, [0])
