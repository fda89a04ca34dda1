"""The process that stays at a site between messages."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from fedsaddle.errors import UserError
from fedsaddle.flower import supernode
from fedsaddle.flower.node import Node, secret
from fedsaddle.flower.wire import Parcel
from fedsaddle.flower.worker import ask_worker

HELLO = Parcel({"kind": "hello"})


def workers(node):
    """The processes that serve a state folder."""
    found = subprocess.run(
        ["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True
    )
    lines = [line.split(None, 1) for line in found.stdout.splitlines()]
    return [int(pid) for pid, args in lines if "flower.worker" in args and node.state in args]


@pytest.fixture
def node(tmp_path):
    node = Node("ulm", "nowhere.csv", str(tmp_path / "state"))
    yield node
    for pid in workers(node):
        os.kill(pid, signal.SIGKILL)


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_stays_is_replaced_when_it_dies_and_when_its_settings_change(node):
    first = ask_worker(node, HELLO).header
    assert (first["status"], first["site"]) == ("ok", "ulm")
    (pid,) = workers(node)
    started = time.monotonic()
    assert ask_worker(node, HELLO).header == first
    assert time.monotonic() - started < 2
    assert workers(node) == [pid]

    os.kill(pid, signal.SIGKILL)
    assert ask_worker(node, HELLO).header == first
    (second,) = workers(node)
    assert second != pid

    renamed = Node("jena", node.data, node.state)
    assert ask_worker(renamed, HELLO).header["site"] == "jena"
    until(lambda: len(workers(node)) == 1)

    wide = stat.S_IRWXG | stat.S_IRWXO
    for name in ("", "worker.sock", "token", "home", "worker.log", "egress.jsonl"):
        assert not (node.folder / name).stat().st_mode & wide, name
    with pytest.raises(AuthenticationError):
        Client(str(node.folder / "worker.sock"), "AF_UNIX", authkey=b"guessed")
    assert ask_worker(renamed, HELLO).header["status"] == "ok"


def test_a_worker_ends_with_its_node(node):
    code = (
        "import sys; from fedsaddle.flower.worker import *; from fedsaddle.flower.node import Node;"
        "print(ask_worker(Node(*sys.argv[1:]), Parcel({'kind': 'hello'})).header['status'])"
    )
    # The shell is the node: it starts a client process and is gone.
    command = [sys.executable, "-c", code, node.site, node.data, node.state]
    told = subprocess.run(
        ["sh", "-c", '"$@"; true', "sh", *command], capture_output=True, text=True
    )
    assert told.stdout.strip() == "ok", told.stderr
    until(lambda: workers(node) == [])


def test_the_state_folder_must_fit_a_socket(tmp_path):
    with pytest.raises(UserError, match="too long for a socket"):
        ask_worker(Node("ulm", "x.csv", str(tmp_path / ("s" * 120))), HELLO)


def test_a_client_process_does_not_wait_for_torch():
    code = "import sys, fedsaddle.flower.client; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"data": "x.csv", "state": "s"}, "the site's 'site' is missing"),
        ({"site": "a", "data": "x.csv", "state": "s", "polcy": "p"}, "did you mean 'policy'"),
    ],
)
def test_wrong_settings_are_named(config, reason):
    with pytest.raises(UserError, match=reason):
        Node.read(config)


def test_settings_of_a_site(tmp_path):
    node = Node.read({"site": "a", "data": "x.csv", "state": str(tmp_path), "resident": False})
    assert (node.site, node.policy, node.resident) == ("a", None, False)
    assert node.home == node.home
    assert len(secret(tmp_path / "home")) == 32
    assert json.loads(node.identity())["site"] == "a"


def test_a_supernode_is_impatient_only_while_a_run_is_on(monkeypatch):
    now, slept = [0.0], []
    monkeypatch.setattr(supernode.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(supernode.time, "sleep", slept.append)
    sleep = supernode.Impatience()
    for second, seconds in ((1, 3), (40, 3), (41, 0.5), (60, 3), (80, 3)):
        now[0] = second
        sleep(seconds)
    assert slept == [0.25, 3, 0.25, 0.25, 3]
