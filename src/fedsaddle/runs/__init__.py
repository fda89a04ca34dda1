"""Runs: configuration, folder, checkpoints, reports."""

from fedsaddle.runs.api import train
from fedsaddle.runs.training import Result

__all__ = ["Result", "train"]
