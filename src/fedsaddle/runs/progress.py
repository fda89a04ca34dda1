"""How a run shows itself: a live bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

from fedsaddle.runs.watching import Observer, Row, Silent


def watch(quiet: bool = False) -> Observer:
    """The observer that fits where standard error goes."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


def figures(row: Row | None, totals: dict[str, int]) -> str:
    """AUC or objective, worst site, megabytes."""
    parts = []
    if row is not None:
        if row.get("test/auc") is not None:
            parts.append(f"AUC {row['test/auc']:.4f}")
        elif row.get("test/accuracy") is not None:
            parts.append(f"accuracy {row['test/accuracy']:.4f}")
        elif row.get("train/objective") is not None:
            parts.append(f"objective {row['train/objective']:.4g}")
        if row.get("test/worst_auc") is not None:
            parts.append(f"worst {row['test/worst_site']} {row['test/worst_auc']:.4f}")
    parts.append(f"{(totals['bytes_up'] + totals['bytes_down']) / 1e6:.3g} MB")
    return "  ".join(parts)


class Bar:
    """A live line: round, AUC, worst site, megabytes sent, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeLeft(compact=True),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
        )
        self._task: Any = None
        self._last: Row | None = None

    def begin(self, rounds: int, done: int) -> None:
        text = "starting; a long run compiles its gradients first"
        self._task = self._progress.add_task(text, total=rounds, completed=done)
        self._progress.start()

    def round(self, number: int, row: Row | None, totals: dict[str, int]) -> None:
        self._last = row or self._last
        text = figures(self._last, totals)
        self._progress.update(self._task, completed=number, description=text)

    def end(self) -> None:
        self._progress.stop()


class Lines:
    """A plain line at most every ten seconds."""

    def __init__(self, every: float = 10.0) -> None:
        self._every, self._next, self._rounds = every, 0.0, 0
        self._last: Row | None = None

    def begin(self, rounds: int, done: int) -> None:
        self._rounds, self._next = rounds, time.monotonic() + self._every

    def round(self, number: int, row: Row | None, totals: dict[str, int]) -> None:
        self._last = row or self._last
        if time.monotonic() >= self._next:
            text = f"round {number}/{self._rounds}  {figures(self._last, totals)}"
            print(text, file=sys.stderr, flush=True)
            self._next = time.monotonic() + self._every

    def end(self) -> None:
        pass
