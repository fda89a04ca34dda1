"""How a comparison shows itself: a live bar on a terminal, a line per run elsewhere."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from fedsaddle.runs.compare.execution import Unwatched, Watcher


def watch(quiet: bool = False) -> Watcher:
    """The watcher that fits where standard error goes."""
    if quiet:
        return Unwatched()
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """A live line: how many runs are done, how much of all rounds, time left, what goes on."""

    def begin(self, what: str, names: Sequence[str], rounds: Sequence[int]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._names, self._rounds = names, rounds
        self._done: dict[int, int] = {}
        self._ended = 0
        self._progress = Progress(
            TextColumn(what, markup=False),
            TextColumn("{task.fields[ended]}" + f"/{len(names)}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
        )
        self._task: Any = self._progress.add_task("", total=sum(rounds), ended=0)
        self._progress.start()

    def round(self, place: int, number: int) -> None:
        self._done[place] = number
        going = [
            f"{self._names[p]} {n}/{self._rounds[p]}"
            for p, n in self._done.items()
            if n < self._rounds[p]
        ]
        self._progress.update(
            self._task, completed=sum(self._done.values()), description="  ".join(going)
        )

    def finished(self, place: int) -> None:
        self._ended += 1
        self._progress.update(self._task, ended=self._ended)
        self.round(place, self._rounds[place])

    def end(self) -> None:
        self._progress.stop()


class Lines:
    """A plain line for every run that ends."""

    def begin(self, what: str, names: Sequence[str], rounds: Sequence[int]) -> None:
        self._what, self._names, self._ended = what, names, 0
        self._began = time.monotonic()

    def round(self, place: int, number: int) -> None:
        pass

    def finished(self, place: int) -> None:
        self._ended += 1
        seconds = time.monotonic() - self._began
        text = f"{self._what}: {self._ended}/{len(self._names)}  {self._names[place]}"
        print(f"{text}  ({seconds:.0f} s)", file=sys.stderr, flush=True)

    def end(self) -> None:
        pass
