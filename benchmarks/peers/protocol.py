"""How a contestant and the driver talk, one line each way, so that contestants can take turns.

The driver starts every contestant as a process that stays. A contestant says that it is ready with
a JSON object of versions; the driver writes "round"; the contestant computes one round and answers
with {"seconds": ...}. In between it waits for its standard input and uses no processor.
"""

import json
import os
import sys
import time
from typing import Any


class Turns:
    """The contestant's side: `while turns.next(): one_round()`.

    What a library prints goes to standard error, so that it cannot spoil an answer.
    """

    def __init__(self, **versions: str) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._versions = versions
        self._begun: float | None = None

    def next(self) -> bool:
        """Answer for the round that ends here, and wait for the next; false when there is none."""
        if self._begun is None:
            self._answer({"versions": self._versions})
        else:
            self._answer({"seconds": time.perf_counter() - self._begun})
        wanted = sys.stdin.readline().strip() == "round"
        self._begun = time.perf_counter()
        return wanted

    def _answer(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)
