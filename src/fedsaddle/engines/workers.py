"""Processes that share a run's work, one thread each.

They are forked: data, network and method are simply there, and a user's own classes need not be
importable. Tasks go to whoever is free, largest first; results come back in the tasks' order.
"""

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedsaddle.errors import UserError

Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of the shared things and of these arguments."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


class Workers:
    """`number` processes; `shared` are the first arguments of every task, as they are now."""

    def __init__(self, number: int, *shared: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._lines: list[Connection] = []
        self._processes = []
        for _ in range(number):
            here, there = context.Pipe()
            ours = [*self._lines, here]
            process = context.Process(target=_serve, args=(there, ours, shared), daemon=True)
            process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)

    def run(self, tasks: Sequence[Task], costs: Sequence[float] | None = None) -> list[Any]:
        """Every task's result; the first error of a task is raised when all are done.

        Whoever is free gets the next task; with many tasks, one is always on its way to a worker
        that is still busy, so that it need not wait for it.
        """
        order = list(range(len(tasks)))
        if costs is not None:
            order.sort(key=lambda j: -costs[j])
        waiting = iter(order)
        given: dict[Any, deque[int]] = {line: deque() for line in self._lines}
        results: list[Any] = [None] * len(tasks)
        error: BaseException | None = None
        for _ in range(2 if len(tasks) >= 4 * len(self._lines) else 1):
            for line in self._lines:
                self._give(line, waiting, tasks, given[line])
        while busy := [line for line in self._lines if given[line]]:
            ready: list[Any] = wait(busy)
            for line in ready:
                try:
                    good, result = line.recv()
                except (EOFError, ConnectionError):
                    raise UserError(self._obituary(line)) from None
                j = given[line].popleft()
                if good:
                    results[j] = result
                else:
                    error = error or result
                self._give(line, waiting, tasks, given[line])
        if error is not None:
            raise error
        return results

    def _give(
        self, line: Connection, waiting: Any, tasks: Sequence[Task], given: deque[int]
    ) -> None:
        j = next(waiting, None)
        if j is None:
            return
        try:
            line.send(tasks[j])
        except ConnectionError:
            raise UserError(self._obituary(line)) from None
        given.append(j)

    def _obituary(self, line: Connection) -> str:
        process = self._processes[self._lines.index(line)]
        process.join(5)
        code = process.exitcode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"({code})"
        return (
            f"engine.workers: a worker process was ended {how}, perhaps for want of memory; "
            "fewer engine.workers need less."
        )

    def close(self) -> None:
        for line in self._lines:
            with suppress(OSError):
                line.send(None)
            line.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.terminate()


def _serve(line: Connection, ours: list[Connection], shared: tuple[Any, ...]) -> None:
    """A worker's life. It ends when the run does: nobody else may hold the other ends open."""
    for other_end in ours:
        other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it stops
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            task = line.recv()
        except (EOFError, ConnectionError):  # the run was killed
            os._exit(1)
        if task is None:
            return
        function, arguments = task
        try:
            answer = (True, function(*shared, *arguments))
        except Exception as error:
            answer = (False, _sendable(error))
        try:
            line.send(answer)
        except (BrokenPipeError, ConnectionError):
            os._exit(1)
        except Exception:  # a result that cannot be sent
            line.send((False, RuntimeError(f"this cannot be sent: {answer[1]!r}")))


def _sendable(error: Exception) -> Exception:
    """The error itself where it would arrive whole, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
