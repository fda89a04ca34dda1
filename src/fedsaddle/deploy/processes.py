"""Processes with all that they start, found again by a mark in their environment.

Flower's programs start helpers in sessions of their own, and a site's worker outlives the process
that started it: neither a process group nor the tree of parents knows them all. The environment is
inherited by every one of them.

Run as a program, this file is the guardian: it waits until its standard input is closed, that is
until whoever started it is gone, however that happened, and then ends the marked processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

MARK = "FEDSADDLE_PROCESS"
"""The environment variable: the name of the processes' common root, a path of nobody else."""


def marked(mark: str) -> list[int]:
    """The processes whose mark is this one or begins with it and a slash."""
    exact, below = f"{MARK}={mark}".encode(), f"{MARK}={mark}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(part == exact or part.startswith(below) for part in variables):
                found.append(int(entry.name))
    return found


def command_line(pid: int) -> bytes:
    """A process's arguments, or nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def send(mark: str, number: signal.Signals) -> None:
    """Send a signal to all marked processes."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(mark: str) -> None:
    """SIGKILL the marked processes, again until none is left: one may just be starting another."""
    while marked(mark):
        send(mark, signal.SIGKILL)
        time.sleep(0.02)


def stop(mark: str, grace: float = 3.0) -> None:
    """SIGTERM the marked processes, and SIGKILL those that are there after the grace time."""
    send(mark, signal.SIGCONT)
    send(mark, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(mark)


def start(
    command: list[str], mark: str, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a program with a mark; what it says is added to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C at the terminal is ours to handle, not theirs
        )


def guard(mark: str) -> subprocess.Popen[bytes]:
    """A guardian of the marked processes: closing its standard input, or our death, ends them."""
    return subprocess.Popen(
        [sys.executable, "-I", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    )


if __name__ == "__main__":
    sys.stdin.read()
    kill(sys.argv[1])
