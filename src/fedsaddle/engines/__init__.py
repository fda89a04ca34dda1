"""Who computes: given a phase, an engine gets replies from clients."""

from fedsaddle.engines.base import Engine
from fedsaddle.engines.options import EngineOptions
from fedsaddle.engines.simulation import Simulation
from fedsaddle.engines.workers import one_thread

__all__ = ["Engine", "EngineOptions", "Simulation", "one_thread"]
