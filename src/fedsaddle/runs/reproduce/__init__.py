"""The papers' figures and tables, rerun, with a verdict on each claim.

The modules build on one another in this order:

    outcomes       a metric's values by entrant and seed
    claims         what a paper says, as rules, and the verdicts
    experiment     one figure or table as a TOML file
    planning       an experiment at one of three scales
    figure         an SVG chart
    page           one result as HTML, all stored ones as docs/results.md
    reproduction   run, judge, write
"""

from fedsaddle.runs.reproduce.experiment import (
    SCALES,
    Experiment,
    experiment_names,
    read_experiment,
)
from fedsaddle.runs.reproduce.planning import Plan, plan
from fedsaddle.runs.reproduce.reproduction import reproduce, store

__all__ = [
    "SCALES",
    "Experiment",
    "Plan",
    "experiment_names",
    "plan",
    "read_experiment",
    "reproduce",
    "store",
]
