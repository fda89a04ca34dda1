"""Flower's SuperNode with shorter waits; the arguments are those of `flower-supernode`.

    python -m fedsaddle.flower.supernode --superlink ... --node-config ...

A SuperNode looks for messages every three seconds, and starts a Python process for each of them,
which spends more than a second of computing time on imports. Here it looks four times a second
while a run is on, and its helper, which has everything imported, makes the process of a message by
forking itself. What they do is Flower's own code, unchanged; with plain `flower-supernode` a run is
slower.
"""

import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

POLL_SECONDS = 0.25
BUSY_SECONDS = 30.0
"""So long after a message the next one is expected soon."""
IDLE_WAIT = 3.0
"""How long a SuperNode waits where there was no message; its shorter waits are for a reply."""
HELPER, CLIENT = "flower-superexec", "flwr-clientapp"


class Impatience:
    """A shorter sleep while messages come."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, seconds: float) -> None:
        if seconds < IDLE_WAIT:
            self._last = time.monotonic()
        busy = time.monotonic() - self._last < BUSY_SECONDS
        time.sleep(min(seconds, POLL_SECONDS) if busy else seconds)


def main() -> None:
    """Run a SuperNode."""
    from flwr.supernode import start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        if command[0] == HELPER:
            command = [sys.executable, "-m", __spec__.name, HELPER, *command[1:]]
        return subprocess.Popen(command, **options)

    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(POLL_SECONDS))
    vars(node)["time"] = SimpleNamespace(**{**vars(time), "sleep": Impatience()})
    vars(node)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": start})
    flower_supernode()


def helper() -> None:
    """Run its SuperExec, which forks where it would start a client process."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor as executor
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    import fedsaddle.flower.client  # noqa: F401 (imported once, for all client processes)

    def start(command: list[str], **options: Any) -> None:
        if command[0] != CLIENT:
            subprocess.Popen(command, **options)
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended since
                pass
        if os.fork() == 0:
            code = 1
            try:
                sys.argv = command
                flwr_clientapp()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    vars(executor)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": start})
    flower_superexec()


if __name__ == "__main__":
    if sys.argv[1:2] == [HELPER]:
        sys.argv = sys.argv[1:]
        helper()
    else:
        main()
