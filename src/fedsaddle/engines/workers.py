"""Processes that share a run's work, one thread each.

They are forked: data, network and method are simply there, and a user's own classes need not be
importable. The run's own process is one of them: what it sends and gets is two messages for every
other one, whatever there is to do. Costly tasks come first. Each process begins with one of its
own; then whoever is free takes the next: a place in a file that all have open is how far they are,
and who moves it on holds a lock that the system takes back from a process that is killed.
"""

import ctypes
import fcntl
import multiprocessing
import os
import pickle
import signal
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from fedsaddle.engines.line import Line, packed
from fedsaddle.engines.shared import nameless_file
from fedsaddle.errors import UserError

Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of the shared things, of these arguments, and of what is new each time."""
Share = Callable[[int], tuple[Any, ...]]
"""The things that a worker's tasks share, by its number."""
Answer = tuple[int, bool, Any]
"""A task's place, whether all went well, and its result or its error."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MADV_HUGEPAGE = 14
"""As in malloc.h and mman.h."""
ROOM = 2**27
"""Bytes by which a process's memory grows when it has to; they are not used before they are."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def keep_memory() -> None:
    """Memory that is given back is kept for the next step, not returned to the system.

    A stack's vectors are large enough for the C library to ask the system for each of them anew,
    and to be sent blank pages, which takes as long as the arithmetic of a small network.
    """
    with suppress(OSError, AttributeError):  # a system with another C library
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**25)
        library.mallopt(M_TRIM_THRESHOLD, 2 * ROOM)
        library.mallopt(M_TOP_PAD, ROOM)
        _large_pages(library)


def _large_pages(library: ctypes.CDLL) -> None:
    """Memory to come is in large pages, where the system has them for who asks.

    A stack's vectors are thousands of small ones, and to find them takes time in every step.
    """
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    block = library.malloc(2**24)
    end = library.sbrk(0)
    if block and block < end:
        start = -(-block // 4096) * 4096
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_HUGEPAGE)
    library.free(ctypes.c_void_p(block))


class one_thread:  # noqa: N801
    """A context in which torch uses one thread: sums of floats depend on how they are cut."""

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != 1:
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        if self._before != 1:
            torch.set_num_threads(self._before)


class Workers:
    """`number` processes, this one, worker 0, among them.

    What `share` gives worker k, which asks for it once and in its own process, is told to each of
    its tasks. This process asks last: a device that is in use here is lost to who is forked off.
    A worker that cannot start is done without.
    """

    def __init__(self, number: int, share: Share) -> None:
        context = multiprocessing.get_context("fork" if number > 1 else None)
        self._taken = nameless_file()
        self._closing = weakref.finalize(self, os.close, self._taken)
        self.waited = 0.0
        """Seconds of all processes that had nothing left to do while another had."""
        self._known: Sequence[Task] = ()
        self._order: list[int] = []
        self._in_order: list[Task] = []
        self._core, *others = _cores(number)
        self._lines: list[Line] = []
        self._processes = []
        for worker, core in enumerate(others, start=1):
            here, there = Line.pair()
            ours = [*self._lines, here]
            own = partial(share, worker)
            process = context.Process(
                target=_serve, args=(there, ours, core, self._taken, own), daemon=True
            )
            process.start()
            there.close()
            self._lines.append(here)
            self._processes.append(process)
        self._shared = share(0)
        self._dismiss({line: reason for line in self._lines if (reason := self._told(line))})
        for place, line in enumerate(self._lines):
            line.send(packed((place, 1 + len(self._lines))))

    def _dismiss(self, reasons: dict[Line, str]) -> None:
        """Those who could not start."""
        if not reasons:
            return
        warnings.warn(
            f"{len(reasons)} of {1 + len(self._lines)} worker processes could not start and are "
            f"done without ({next(iter(reasons.values()))})",
            stacklevel=3,
        )
        for line in reasons:
            place = self._lines.index(line)
            self._processes.pop(place).join(5)
            self._lines.pop(place).close()

    def _told(self, line: Line) -> Any:
        """A worker's next message."""
        try:
            return line.receive(awake=self._core is not None)
        except EOFError:
            raise UserError(self._obituary(line)) from None

    def run(
        self,
        tasks: Sequence[Task],
        costs: Sequence[float] | None = None,
        new: tuple[Any, ...] = (),
    ) -> list[Any]:
        """Every task's result, in order; an error of a task is raised when all are done.

        The very tasks of the last time, the same object, are not sent again: only what is new.
        """
        known = tasks is self._known
        if not known:
            self._known, self._order = (), [*range(len(tasks))]
            if costs is not None:
                self._order.sort(key=lambda j: -costs[j])
            self._in_order = [tasks[j] for j in self._order]
        in_order, order = self._in_order, self._order
        others = self._lines[: max(0, len(tasks) - 1)]
        crew = 1 + len(self._lines)
        if len(tasks) > crew:
            os.lseek(self._taken, crew, os.SEEK_SET)
        message = packed((None if known else in_order, new)) if others else b""
        for line in others:
            try:
                line.send(message)
            except ConnectionError:
                raise UserError(self._obituary(line)) from None
        self._known = tasks
        with one_thread():
            answers = [*_answers(in_order, len(others), crew, self._taken, self._shared, new)]
        ends = [time.perf_counter()]
        for line in others:
            theirs, end = self._told(line)
            answers += theirs
            ends.append(end)
        self.waited += len(ends) * max(ends) - sum(ends)
        results: list[Any] = [None] * len(tasks)
        errors: dict[int, BaseException] = {}
        for place, good, result in answers:
            (results if good else errors)[order[place]] = result
        if errors:
            raise errors[min(errors)]
        return results

    def _obituary(self, line: Line) -> str:
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
                line.send(packed(None))
            line.close()
        self._closing()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.terminate()


def _cores(workers: int) -> list[int | None]:
    """A core for each worker where there are just enough, so that caches stay with them.

    Worker 0 is not held to its own: no other one is left to it, and it is the user's process.
    """
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [*known] if len(known) == workers else [None] * workers


def _serve(
    line: Line,
    ours: list[Line],
    core: int | None,
    taken: int,
    share: Callable[[], tuple[Any, ...]],
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
    try:
        shared = share()
        # which torch refuses to a fork of a process where it has threads for a device
        torch.zeros(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        _tell(line, packed(str(error).partition("\n")[0] or type(error).__name__))
        return
    _tell(line, packed(None))
    first, crew = _heard(line)
    tasks: list[Task] = []
    while True:
        message = _heard(line, awake=core is not None)
        if message is None:
            return
        others, new = message
        tasks = tasks if others is None else others
        answers = [
            (place, good, result if good else _sendable(result))
            for place, good, result in _answers(tasks, first, crew, taken, shared, new)
        ]
        end = time.perf_counter()  # which all processes of a machine read alike
        try:
            message = packed((answers, end))
        except Exception as error:  # a result that cannot be sent
            sorry = RuntimeError(f"a task's result cannot be sent: {error}")
            message = packed(([(place, False, sorry) for place, *_ in answers], end))
        _tell(line, message)


def _heard(line: Line, awake: bool = False) -> Any:
    """The run's next message; a worker ends with a run that was killed."""
    try:
        return line.receive(awake)
    except EOFError:
        os._exit(1)


def _tell(line: Line, message: bytes) -> None:
    """The same for what is sent to the run."""
    try:
        line.send(message)
    except ConnectionError:
        os._exit(1)


def _answers(
    tasks: Sequence[Task],
    first: int,
    crew: int,
    taken: int,
    shared: tuple[Any, ...],
    new: tuple[Any, ...],
) -> Iterator[Answer]:
    """Of the task that is a worker's own, one for each of the crew, and of those it comes to."""
    place = first
    while place < len(tasks):
        function, arguments = tasks[place]
        try:
            yield place, True, function(*shared, *arguments, *new)
        except Exception as error:
            yield place, False, error
        place = _next_place(taken) if len(tasks) > crew else len(tasks)


def _next_place(taken: int) -> int:
    fcntl.lockf(taken, fcntl.LOCK_EX)  # of a file in memory, two may move the place on to the same
    try:
        return os.lseek(taken, 1, os.SEEK_CUR) - 1
    finally:
        fcntl.lockf(taken, fcntl.LOCK_UN)


def _sendable(error: Exception) -> Exception:
    """The error itself where it would arrive whole, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
