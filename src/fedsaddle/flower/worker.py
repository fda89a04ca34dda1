"""A process that stays at a site between messages, with torch, the network and the data in memory.

Flower starts a new client process for every message. That process hands the request to the worker
over a Unix socket in the state folder (0700), after both have shown that they know the secret in
it; it starts the worker when there is none. The worker ends when its node does, or when it had
nothing to do for an hour. What it is sent is JSON and safetensors; nothing is unpickled.
"""

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from fedsaddle.errors import UserError
from fedsaddle.flower.node import Node, secret
from fedsaddle.flower.wire import Parcel

IDLE_SECONDS = 3600.0
START_SECONDS = 120.0
WATCH_SECONDS = 1.0
LONGEST_PATH = 100
"""Of a Unix socket, in bytes; the limit is 107 on Linux and 103 elsewhere."""


def _send(connection: Connection, parcel: Parcel) -> None:
    connection.send_bytes(json.dumps(parcel.header).encode())
    connection.send_bytes(parcel.payload)


def _receive(connection: Connection) -> Parcel:
    header = json.loads(connection.recv_bytes())
    return Parcel(header, connection.recv_bytes())


def _address(folder: Path) -> str:
    path = str(folder / "worker.sock")
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise UserError(f"--node-config: the path of 'state' is too long for a socket: {folder}")
    return path


# In a client process.


def ask_worker(node: Node, request: Parcel) -> Parcel:
    """The worker's reply; a worker that is not there, or died, is started."""
    folder = node.folder
    for last in (False, True):
        connection = _connected(node, folder)
        try:
            connection.send_bytes(f"{os.getppid()} {node.identity()}".encode())
            if connection.recv_bytes() == b"ready":
                _send(connection, request)
                return _receive(connection)
        except (EOFError, OSError):
            if last:
                raise UserError("its worker died twice over one request; see worker.log") from None
        finally:
            connection.close()
    raise UserError("its worker is of other settings and does not end; see worker.log")


def _connected(node: Node, folder: Path) -> Connection:
    address, token = _address(folder), secret(folder / "token")
    deadline = time.monotonic() + START_SECONDS
    worker: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline:
        try:
            return Client(address, "AF_UNIX", authkey=token)
        except (FileNotFoundError, ConnectionError, EOFError):
            if worker is None or worker.poll() is not None:
                worker = _start(node, folder)
            time.sleep(0.02)
    raise UserError("its worker does not start; see worker.log in its state folder")


def _start(node: Node, folder: Path) -> subprocess.Popen[bytes]:
    handle = os.open(folder / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, node.identity()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives the client process that starts it
        )


# In the worker.


class Watch:
    """Ends the process when its node is gone, or when nothing was asked for a long time."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "worker.sock"
        self._last, self._busy, self.node = time.monotonic(), False, 0
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, *error: object) -> None:
        self._last, self._busy = time.monotonic(), False

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            idle = not self._busy and time.monotonic() - self._last > IDLE_SECONDS
            if idle or (self.node and not _lives(self.node)):
                self._socket.unlink(missing_ok=True)
                os._exit(0)  # also out of a computation: nobody waits for it any more


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def serve(identity: str) -> None:
    """Answer requests for a node until the watch ends the process."""
    settings = json.loads(identity)
    settings.pop("fedsaddle")
    node = Node(**settings)
    folder = node.folder
    lock = (folder / "worker.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another one was a little faster
    os.umask(0o077)
    address = _address(folder)
    Path(address).unlink(missing_ok=True)
    watch = Watch(folder)
    with Listener(address, "AF_UNIX", authkey=secret(folder / "token")) as listener:
        from fedsaddle.flower.site import Site  # takes seconds; whoever connects waits for it

        site = Site(node)
        while True:
            try:
                with listener.accept() as connection:
                    parent, _, wanted = connection.recv_bytes().decode().partition(" ")
                    if wanted != identity:
                        return  # started anew with other settings, or another version
                    watch.node = int(parent)
                    with watch:
                        connection.send_bytes(b"ready")
                        _send(connection, site.answer(_receive(connection)))
            except (EOFError, OSError, ValueError):
                logging.exception("a connection broke off")
            except Exception:  # a wrong secret
                logging.exception("a connection was refused")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve(sys.argv[1])
