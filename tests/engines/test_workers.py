"""Worker processes: order, errors, and how they end. Real processes, real signals."""

import fcntl
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from fedsaddle.engines.shared import SharedNumbers
from fedsaddle.engines.workers import Workers, can_fork
from fedsaddle.errors import UserError

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork processes")


def shared(worker: int) -> tuple[str, int]:
    return "shared", 10


@pytest.fixture
def workers(request):
    made = Workers(2, shared)
    yield made
    made.close()


def pids(workers) -> list[int]:
    return [process.pid for process in workers._processes]


def alive(pid: int) -> bool:
    """Whether it runs; what has ended and is not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def soon(condition, seconds: float = 30) -> bool:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def told(name, ten, x):
    return name, ten * x


def wait_for_file(name, ten, path, result):
    assert soon(lambda: Path(path).exists())
    return result


def write_file(name, ten, path, result):
    Path(path).touch()
    return result


def test_every_task_is_told_what_is_shared(workers):
    assert workers.run([(told, (k,)) for k in range(7)]) == [("shared", 10 * k) for k in range(7)]
    assert workers.run([]) == []
    assert workers.run([(told, (3,))], [1.0]) == [("shared", 30)]


def product(name, ten, x, y):
    return ten * x * y


def test_the_same_tasks_are_sent_once_and_what_is_new_each_time(workers, monkeypatch):
    sent = []
    dumps = pickle.dumps
    monkeypatch.setattr(pickle, "dumps", lambda *what: sent.append(dumps(*what)) or sent[-1])
    tasks, others = ([(product, (k,)) for k in range(start, 40)] for start in (0, 20))
    for what, y in ((tasks, 1), (tasks, 2), (others, 3), (tasks, 4), (tasks, 5)):
        costs = [float(k % 3) for k in range(len(what))]
        assert workers.run(what, costs, (y,)) == [10 * k * y for _, (k,) in what]
    again = [len(message) < 50 for message in sent]
    assert again == [False, True, False, False, True]


def test_tasks_that_could_not_be_sent_are_not_taken_for_known(workers):
    tasks = [(told, (lambda: None,))] * 2
    for _ in range(2):
        with pytest.raises(Exception, match="pickle"):
            workers.run(tasks)
    assert workers.run([(told, (1,))] * 2) == [("shared", 10)] * 2


def test_results_are_in_the_tasks_order_whatever_was_done_first(workers, tmp_path):
    """The first task waits for what the last one does."""
    path = str(tmp_path / "done")
    tasks = [(wait_for_file, (path, 0)), (told, (1,)), (told, (2,)), (write_file, (path, 3))]
    assert workers.run(tasks) == [0, ("shared", 10), ("shared", 20), 3]


def given(k, pid):
    return k, os.getpid() == pid


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MemoryError("no room\nfor it"), "no room"), (MemoryError(), "MemoryError")],
)
def test_each_worker_is_given_its_own_and_one_that_cannot_start_is_done_without(error, reason):
    def share(worker: int) -> tuple[int, int]:
        if worker == 1:
            raise error
        return worker, os.getpid()

    with pytest.warns(
        UserWarning, match=rf"^1 of 3 worker processes .* done without \({reason}\)$"
    ):
        made = Workers(3, share)
    try:
        assert len(pids(made)) == 1
        results = made.run([(given, ())] * 200)
        assert {own for _, own in results} == {True}, "asked for in the worker's own process"
        assert {worker for worker, _ in results} <= {0, 2}
    finally:
        made.close()


def test_where_the_run_itself_cannot_start_workers_end_without_a_word(capfd):
    def share(worker: int) -> tuple[int]:
        if worker == 0:
            raise UserError("engine.device: there is no room.")
        return (worker,)

    with pytest.raises(UserError, match="no room"):
        Workers(3, share)
    gc.collect()
    assert soon(lambda: not multiprocessing.active_children())
    assert capfd.readouterr().err == ""


def note(name, ten, path, k):
    with open(path, "a") as file:
        file.write(f"{k}\n")
    return k


def count(done, k):
    done[k] += 1
    return k


def test_each_task_is_done_once_whoever_comes_first_to_it():
    """Tasks that take no time, so that all processes ask for the next one at once."""
    done = SharedNumbers(torch.int64)
    done.make_room(20_000)
    three = Workers(3, lambda worker: (done[:20_000].numpy(),))
    try:
        for turn in range(1, 4):  # the next tasks are counted from the start
            assert three.run([(count, (k,)) for k in range(20_000)]) == list(range(20_000))
            assert (done[:20_000] == turn).all()
    finally:
        three.close()
        done.close()


def sleep(name, ten, seconds):
    time.sleep(seconds)


def test_who_has_nothing_left_to_do_waits_for_the_others(workers):
    workers.run([(sleep, (0,))])
    assert workers.waited == 0, "a task alone needs nobody else"
    workers.run([(sleep, (0,)), (sleep, (0.5,))])
    assert 0.1 < workers.waited < 30


def test_the_largest_are_begun_first(tmp_path):
    one = Workers(1, shared)
    try:
        path = tmp_path / "order"
        tasks = [(note, (str(path), k)) for k in range(5)]
        assert one.run(tasks, [1.0, 5.0, 3.0, 5.0, 4.0]) == [0, 1, 2, 3, 4]
        assert path.read_text().split() == ["1", "3", "4", "2", "0"]  # of equal ones the first
    finally:
        one.close()


def who(name, ten, path):
    """This process's number, when another one has begun, too."""
    Path(path, str(os.getpid())).touch()
    assert soon(lambda: len(list(Path(path).iterdir())) == 2)
    return os.getpid(), torch.get_num_threads()


def test_all_processes_take_part_with_one_thread_each(workers, tmp_path):
    found = workers.run([(who, (str(tmp_path),))] * 2)
    assert sorted(pid for pid, _ in found) == sorted([os.getpid(), *pids(workers)])
    assert [threads for _, threads in found] == [1, 1]


def fail(name, ten, error):
    raise error


class Odd(Exception):
    """It cannot be made from what it shows: sent as it is, it could not be read."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Locked(Exception):
    """It cannot be sent."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def fail_oddly(name, ten, path, run, kind):
    """Fails where the error has to be sent."""
    who(name, ten, path)
    if os.getpid() != run:
        raise Odd("this", "that") if kind == "odd" else Locked("held")


def give_a_lock(name, ten, path, run):
    """Something that only the run's own process could give, for it need not send it."""
    who(name, ten, path)
    return None if os.getpid() == run else threading.Lock()


def test_a_tasks_error_arrives_as_itself_when_all_are_done(workers, tmp_path):
    path = tmp_path / "order"
    tasks = [
        (fail, (UserError("data.source: the file is gone."),)),
        *[(note, (str(path), k)) for k in range(4)],
    ]
    with pytest.raises(UserError, match=r"^data\.source: the file is gone\.$"):
        workers.run(tasks)
    assert sorted(path.read_text().split()) == ["0", "1", "2", "3"]
    with pytest.raises(KeyError, match="missing"):
        workers.run([(fail, (KeyError("missing"),))])
    assert workers.run([(told, (1,))]) == [("shared", 10)], "they go on working"


@pytest.mark.parametrize(
    ("kind", "text"), [("odd", "this and that"), ("locked", "held")], ids=["odd", "locked"]
)
def test_an_error_that_cannot_be_sent_is_told_in_words(workers, kind, text, tmp_path):
    task = (fail_oddly, (str(tmp_path), os.getpid(), kind))
    with pytest.raises(RuntimeError, match=text):
        workers.run([task, task, (told, (2,))])
    assert workers.run([(told, (k,)) for k in range(4)]) == [("shared", 10 * k) for k in range(4)]


def test_the_odd_error_is_one_that_pickle_cannot_bring_back():
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(Odd("this", "that")))


def test_a_result_that_cannot_be_sent_is_an_error(workers, tmp_path):
    task = (give_a_lock, (str(tmp_path), os.getpid()))
    with pytest.raises(RuntimeError, match="lock"):
        workers.run([task, task])
    assert workers.run([(told, (1,))]) == [("shared", 10)]


def end(name, ten, path, run, way, taken):
    """Ends this process, unless it is the run's own, when both are at work."""
    who(name, ten, path)
    if os.getpid() == run:
        return
    if way == "killed as it takes a task":
        fcntl.lockf(taken, fcntl.LOCK_EX)
    if way != "left":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


@pytest.mark.parametrize(
    ("way", "how"),
    [("killed", "SIGKILL"), ("killed as it takes a task", "SIGKILL"), ("left", r"\(7\)")],
)
def test_a_worker_that_is_ended_is_a_sentence_that_names_the_setting(workers, way, how, tmp_path):
    task = (end, (str(tmp_path), os.getpid(), way, workers._taken))
    with pytest.raises(UserError, match=rf"^engine\.workers: .*{how}.*fewer engine\.workers"):
        workers.run([task, task, (told, (2,))])


def test_a_worker_that_was_ended_between_two_rounds_is_noticed(workers):
    workers.run([(told, (1,))] * 3)
    os.kill(pids(workers)[0], signal.SIGKILL)
    assert soon(lambda: not alive(pids(workers)[0]))
    with pytest.raises(UserError, match=r"engine\.workers: .*SIGKILL"):
        workers.run([(told, (1,))] * 3)


def test_after_close_all_have_ended():
    made = Workers(3, shared)
    begun = pids(made)
    made.run([(told, (k,)) for k in range(5)])
    assert all(map(alive, begun))
    made.close()
    assert not any(map(alive, begun))
    assert [process.exitcode for process in made._processes] == [0, 0]


def test_an_interrupt_is_the_parents_affair(workers):
    """Ctrl-C reaches all processes of a terminal: the run decides, workers finish their work."""
    workers.run([(told, (1,))] * 2)
    for pid in pids(workers):
        os.kill(pid, signal.SIGINT)
    time.sleep(0.05)
    assert workers.run([(told, (k,)) for k in range(4)]) == [("shared", 10 * k) for k in range(4)]


PARENT = """
import os, sys, time
from fedsaddle.engines.workers import Workers

def pid(*shared):
    time.sleep(0.05)
    return os.getpid()

def busy(*shared):
    print("busy", os.getpid(), flush=True)
    time.sleep(1)

workers = Workers(3, lambda worker: ())
workers.run([(pid, ())] * 3)
print(*[p.pid for p in workers._processes], flush=True)
if sys.argv[1] == "busy":
    workers.run([(busy, ())] * 2)
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_end_with_a_parent_that_is_killed(state, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), state], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    begun: list[int] = []
    try:
        begun = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(begun) == 2, parent.stderr.read()
        if state == "busy":
            assert parent.stdout.readline().startswith(b"busy")
        assert all(map(alive, begun))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert soon(lambda: not any(map(alive, begun)))
    finally:
        parent.kill()
        parent.wait()
        for pid in filter(alive, begun):
            os.kill(pid, signal.SIGKILL)
