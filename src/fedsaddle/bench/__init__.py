"""How fast a round is: the simulator against a plain loop, taking turns on one machine."""

from fedsaddle.bench.cases import METHODS, NETWORKS, Case, Size, cases
from fedsaddle.bench.measure import Measured, measure
from fedsaddle.bench.record import describe_machine, record

__all__ = [
    "METHODS",
    "NETWORKS",
    "Case",
    "Measured",
    "Size",
    "cases",
    "describe_machine",
    "measure",
    "record",
]
