"""Processes are found by their mark, whatever session or parent they have by then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsaddle.deploy import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

# A parent that starts a child in a session of its own and ends: the child has no ties left.
ORPHANING = (
    "import subprocess, sys; subprocess.Popen("
    "[sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
)
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(60)"
)


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def mark(tmp_path):
    yield str(tmp_path)
    processes.kill(str(tmp_path))


def start(program, mark, tmp_path):
    log = tmp_path / "log"
    return processes.start([sys.executable, "-c", program], mark, dict(os.environ), log)


def test_an_orphan_is_found_and_killed(mark, tmp_path):
    start(ORPHANING, f"{mark}/a", tmp_path).wait()
    assert len(processes.marked(f"{mark}/a")) == 1
    assert processes.marked(mark) == processes.marked(f"{mark}/a")
    assert processes.marked(f"{mark}/") == []
    processes.kill(mark)
    until(lambda: not processes.marked(mark))


def test_names_that_begin_alike_are_different(mark, tmp_path):
    start("import time; time.sleep(60)", f"{mark}/site-1", tmp_path)
    until(lambda: processes.marked(f"{mark}/site-1"))
    assert processes.marked(f"{mark}/site-10") == []
    assert processes.marked(f"{mark}/site") == []


def test_a_stalled_or_stubborn_process_is_stopped(mark, tmp_path):
    process = start(STUBBORN, mark, tmp_path)
    until(lambda: (tmp_path / "log").read_text() == "ready\n")
    processes.send(mark, signal.SIGSTOP)
    processes.stop(mark, grace=0.2)
    assert process.wait() == -signal.SIGKILL


def test_the_guardian_ends_what_a_killed_owner_leaves(mark, tmp_path):
    owner = (
        "import os, sys, time; from pathlib import Path; from fedsaddle.deploy import processes\n"
        "mark = sys.argv[1]; guardian = processes.guard(mark)\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "processes.start(sleep, mark, dict(os.environ), Path(mark) / 'log')\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", owner, mark], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert len(processes.marked(mark)) == 1
    process.kill()
    process.wait()
    until(lambda: not processes.marked(mark))
