"""Runs: configuration, folder, checkpoints, reports."""

from fedsaddle.runs.api import train
from fedsaddle.runs.result import Result

__all__ = ["Result", "train"]
