"""Which metrics a comparison's runs measure, and which way is better."""

from collections.abc import Mapping

from fedsaddle.data.facts import Facts, facts_of
from fedsaddle.errors import UserError
from fedsaddle.problems import Problem
from fedsaddle.runs.best import OBJECTIVE, best_metric
from fedsaddle.runs.compare.entrants import with_data
from fedsaddle.runs.config import Config, make_problem
from fedsaddle.runs.saved import starting_network

USUAL = ("test/auc", "test/mean_auc", "test/accuracy")

Outlook = dict[str, tuple[Facts, Problem]]
"""By label, what is known before a run of what it will measure."""


def outlook(configs: Mapping[str, Config]) -> Outlook:
    """Look at every entrant's data and problem, without training."""
    found = {}
    for label, config, data in with_data(configs):
        facts = facts_of(data)
        network = starting_network(config.model, data, config.run.seed)
        found[label] = (facts, make_problem(config.problem, network).prepare(facts))
    return found


def check_metric(metric: str, seen: Outlook, option: str = "--metric") -> bool:
    """Whether larger is better; a UserError where an entrant's runs do not measure it."""
    higher = True
    for label, (facts, problem) in seen.items():
        try:
            _, higher = best_metric(metric, facts, problem)
        except UserError as error:
            said = str(error).removeprefix("evaluation.best: ")
            raise UserError(f"{option}: {label}: {said}") from None
    return higher


def usual_metric(seen: Outlook) -> str:
    """AUC, else accuracy, else the objective: the first that all of the runs measure."""
    for metric in USUAL:
        try:
            check_metric(metric, seen)
        except UserError:
            continue
        return metric
    return OBJECTIVE
