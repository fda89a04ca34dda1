"""Several runs at once, each in a process of its own that does not outlive this one.

A worker is a fresh interpreter at the other end of a pipe. It reads tasks from the pipe in a
thread; when the pipe ends, because this process closed it or was killed, the worker ends at once.
Workers are not in the terminal's foreground group: Ctrl-C reaches this process only, which then
asks every worker to stop after its round.
"""

import fcntl
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import joblib

from fedsaddle.errors import UserError
from fedsaddle.runs.watching import Interrupted

GRACE = 10.0
"""Seconds that a worker has to save its state and end."""
PATIENCE = 15.0
"""Seconds that a folder's former workers have to end."""
LOCK = ".lock"

News = Callable[[Any], None]


@dataclass(frozen=True)
class Task:
    """`function(*arguments, news)`, where `news` tells the waiting process how it goes.

    The function is found by its module and name, and all that is passed can be pickled.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def cores(jobs: int) -> int:
    """How many processes `jobs` asks for: 0 is one for every core that this process may use."""
    if jobs < 0:
        raise UserError(f"--jobs {jobs}: a number of processes is wanted; 0 takes all cores.")
    return jobs or joblib.cpu_count()


@contextmanager
def in_use(out: Path) -> Iterator[int]:
    """A folder that belongs to this process and to all who keep the yielded lock open.

    Workers of a killed process may live on for a moment: they are waited for.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as file:
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise UserError(
                        f"{out}: another process is at work in this folder; wait for its end."
                    ) from None
                time.sleep(0.1)
        yield file.fileno()


class Pool:
    """Up to `jobs` workers, started when there is work for them; a context manager.

    Workers keep the file `lock` open, too (see `in_use`).
    """

    def __init__(self, jobs: int, lock: int | None = None) -> None:
        self._jobs, self._lock, self._workers = cores(jobs), lock, list[Worker]()

    def run(
        self, tasks: Sequence[Task], news: Callable[[int, Any], None]
    ) -> Iterator[tuple[int, Any]]:
        """Results in the order in which they come, each with its task's place.

        `news(place, what)` is called with what a running task tells.
        """
        while len(self._workers) < min(self._jobs, len(tasks)):
            self._workers.append(Worker(self._lock))
        waiting = deque(enumerate(tasks))
        busy: dict[Any, tuple[int, Worker]] = {}
        idle = list(self._workers)
        while waiting or busy:
            while waiting and idle:
                place, task = waiting.popleft()
                worker = idle.pop()
                worker.give(task)
                busy[worker.pipe] = (place, worker)
            for pipe in wait(list(busy)):
                place, worker = busy[pipe]
                kind, what = worker.hear(tasks[place].name)
                if kind == "news":
                    news(place, what)
                else:
                    del busy[pipe]
                    idle.append(worker)
                    yield place, what

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """End the workers: idle ones leave, those of an interrupted run save it, others are cut."""
        patient = kind is None or kind is KeyboardInterrupt
        for worker in self._workers if patient else ():
            if kind is KeyboardInterrupt:
                worker.interrupt()
            worker.dismiss()
        until = time.monotonic() + (GRACE if patient else 0.0)
        for worker in self._workers:
            worker.end(until)


class Worker:
    """This process's end of one worker."""

    def __init__(self, lock: int | None) -> None:
        self.pipe, other = Pipe()
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({other.fileno()})"],
            pass_fds=[other.fileno()] if lock is None else [other.fileno(), lock],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | one_thread,
            process_group=0,
        )
        other.close()
        self.pipe.send(sys.path)

    def give(self, task: Task) -> None:
        self.pipe.send((task.function, task.arguments))

    def hear(self, name: str) -> tuple[str, Any]:
        """What the worker says next; what went wrong in it is raised here."""
        try:
            kind, what = self.pipe.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            how = f"ended with code {code}"
            if code < 0:
                how = f"was killed by signal {-code}, perhaps for want of memory"
            raise UserError(f"{name}: its process {how}; continue with --resume.") from None
        if kind == "refused":
            raise UserError(f"{name}: {what}")
        if kind == "failed":
            raise RuntimeError(f"{name} failed in its process:\n{what}")
        return kind, what

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def dismiss(self) -> None:
        with suppress(BrokenPipeError):  # it has ended already
            self.pipe.send_bytes(b"")

    def end(self, until: float) -> None:
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.pipe.close()


def serve(handle: int) -> None:
    """A worker's life: tasks from the pipe, one after the other, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # outside a run there is nothing to save
    pipe, tasks = Connection(handle), queue.SimpleQueue[bytes]()

    def read() -> None:
        try:
            sys.path[:] = pipe.recv()
            while True:
                tasks.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while message := tasks.get():
        try:
            function, arguments = pickle.loads(message)
            result = function(*arguments, lambda what: pipe.send(("news", what)))
        except Interrupted:
            os._exit(130)
        except UserError as error:
            pipe.send(("refused", str(error)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
        else:
            pipe.send(("done", result))
