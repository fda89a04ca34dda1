"""Who answered in an earlier run, read from its ledger, so that the run can be played again."""

import json
from pathlib import Path

import numpy as np

from fedsaddle.errors import UserError


class Trace:
    """The good replies of every attempt at a phase, as a `ledger.jsonl` has them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            entries = [json.loads(line) for line in lines]
            self._good = {
                (entry["round"], entry["phase"], entry["attempt"]): np.array(
                    [c for c in entry["answered"] if str(c) not in entry["refused"]], np.int64
                )
                for entry in entries
            }
        except FileNotFoundError:
            raise UserError(f"federation.trace: {path}: there is no such file.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"federation.trace: {path}: not a ledger ({error}).") from None

    def answering(self, number: int, phase: str, attempt: int) -> np.ndarray:
        """The clients whose replies were good in this attempt; `number` counts rounds from 0."""
        key = (number + 1, phase, attempt)
        if key not in self._good:
            raise UserError(
                f"federation.trace: {self._path} has no attempt {attempt} at phase '{phase}' "
                f"of round {number + 1}; the runs must have the same settings."
            )
        return self._good[key]
