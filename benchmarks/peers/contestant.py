"""The driver's side of the protocol: a contestant is a process that computes a round when told."""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from environment import Unavailable, python_for

PATIENCE = 600.0
"""Seconds to wait for an answer; the first round of a contestant may compile for minutes."""


def family_of(process: int) -> dict[int, float]:
    """A process and its living descendants, and the processor's seconds that each has used so far.

    Nobody where no /proc tells.
    """
    used, children = {}, defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        number = int(path.parent.name)
        children[int(fields[1])].append(number)
        used[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = [process] if process in used else []
    for member in family:  # grows as it goes
        family += children[member]
    return {member: used[member] for member in family}


class Contestant:
    """A contestant's process; it ends when the `with` block does."""

    def __init__(self, script: Path, *arguments: str, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [python_for(script), script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.versions: dict[str, str] = self._answer()["versions"]

    def round(self) -> float:
        """Let it compute a round; the seconds that it took."""
        assert self._process.stdin is not None
        try:
            print("round", file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._gone() from None
        return float(self._answer()["seconds"])

    def processor_seconds(self) -> float | None:
        """What it has used so far: unlike the time of a round, hardly touched by other work."""
        family = family_of(self._process.pid)
        return sum(family.values()) if family else None

    def rest(self) -> None:
        """Hold it, while others take their turns: some are busy even when they only wait."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for member in family_of(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(member, number)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self._patience)
        if not ready:
            self._process.kill()
            raise Unavailable(f"no answer within {self._patience:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        return dict(json.loads(line))

    def _gone(self) -> Unavailable:
        self._process.wait()
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        return Unavailable(f"stopped: {(said or ['without a word'])[-1]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wake()
        try:
            self._process.communicate(timeout=60)  # the end of its input is the end of its work
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._errors.close()
