"""Who watches a run, and who may stop it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

Row = dict[str, Any]


class Interrupted(Exception):
    """The run was stopped by Ctrl-C; its state is saved when it has a folder."""


class Observer(Protocol):
    """Who watches a run."""

    def begin(self, rounds: int, done: int) -> None: ...
    def round(self, number: int, row: Row | None, totals: dict[str, int]) -> None: ...
    def end(self) -> None: ...


class Silent:
    """Nobody watches."""

    def begin(self, rounds: int, done: int) -> None:
        pass

    def round(self, number: int, row: Row | None, totals: dict[str, int]) -> None:
        pass

    def end(self) -> None:
        pass


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C asks for a stop after the round; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(signum: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
