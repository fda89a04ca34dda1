"""Processes that share a run's work, one thread each.

They are forked: data, network and method are simply there, and a user's own classes need not be
importable. Whoever is free takes the next task, costly ones first, by a counter that all share: the
run itself is not asked, it has two messages for each worker to send and to get, whatever there is
to do.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedsaddle.errors import UserError

Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of the shared things and of these arguments."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As in malloc.h."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def keep_memory() -> None:
    """Memory that is given back is kept for the next step, not returned to the system.

    A stack's vectors are large enough for the C library to ask the system for each of them anew,
    and to be sent blank pages, which takes as long as the arithmetic of a small network.
    """
    with suppress(OSError, AttributeError):  # a system with another C library
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in ((M_MMAP_THRESHOLD, 2**25), (M_TRIM_THRESHOLD, 2**28)):
            mallopt(parameter, size)


class Workers:
    """`number` processes; `shared` are the first arguments of every task, as they are now."""

    def __init__(self, number: int, *shared: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._next = context.Value("l", 0)
        self._lines: list[Connection] = []
        self._processes = []
        for core in _cores(number):
            here, there = context.Pipe()
            ours = [*self._lines, here]
            process = context.Process(
                target=_serve, args=(there, ours, core, self._next, shared), daemon=True
            )
            process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)

    def run(self, tasks: Sequence[Task], costs: Sequence[float] | None = None) -> list[Any]:
        """Every task's result, in order; an error of a task is raised when all are done."""
        order = list(range(len(tasks)))
        if costs is not None:
            order.sort(key=lambda j: -costs[j])
        self._next.value = 0
        for line in self._lines:
            try:
                line.send([tasks[j] for j in order])
            except ConnectionError:
                raise UserError(self._obituary(line)) from None
        results: list[Any] = [None] * len(tasks)
        errors: dict[int, BaseException] = {}
        waiting = [*self._lines]
        while waiting:
            ready: list[Any] = wait(waiting)
            for line in ready:
                try:
                    answers = line.recv()
                except (EOFError, ConnectionError):
                    raise UserError(self._obituary(line)) from None
                for place, good, result in answers:
                    (results if good else errors)[order[place]] = result
                waiting.remove(line)
        if errors:
            raise errors[min(errors)]
        return results

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


def _cores(workers: int) -> list[int | None]:
    """A core for each worker where there are just enough, so that caches stay with them."""
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [*known] if len(known) == workers else [None] * workers


def _serve(
    line: Connection,
    ours: list[Connection],
    core: int | None,
    taken: Any,
    shared: tuple[Any, ...],
) -> None:
    """A worker's life. It ends when the run does: nobody else may hold the other ends open."""
    for other_end in ours:
        other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it stops
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    with suppress(OSError, AttributeError):  # who wakes it goes on, and wakes the next
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if core is not None:
        os.sched_setaffinity(0, {core})
    while True:
        try:
            tasks = line.recv()
        except (EOFError, ConnectionError):  # the run was killed
            os._exit(1)
        if tasks is None:
            return
        answers = [_answer(place, tasks[place], shared) for place in _places(len(tasks), taken)]
        try:
            line.send(answers)
        except (BrokenPipeError, ConnectionError):
            os._exit(1)
        except Exception as error:  # a result that cannot be sent
            sorry = RuntimeError(f"a task's result cannot be sent: {error}")
            line.send([(place, False, sorry) for place, *_ in answers])


def _places(number: int, taken: Any) -> Iterator[int]:
    """Those of so many tasks that this worker comes first to."""
    while True:
        with taken.get_lock():
            place = taken.value
            taken.value += 1
        if place >= number:
            return
        yield place


def _answer(place: int, task: Task, shared: tuple[Any, ...]) -> tuple[int, bool, Any]:
    function, arguments = task
    try:
        return place, True, function(*shared, *arguments)
    except Exception as error:
        return place, False, _sendable(error)


def _sendable(error: Exception) -> Exception:
    """The error itself where it would arrive whole, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
