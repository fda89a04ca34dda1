"""Many runs in many processes: the same numbers, however they came about."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsaddle.errors import UserError
from fedsaddle.runs.api import train_config
from fedsaddle.runs.compare import Comparison, Entrant, compare, named_entrants, processes
from fedsaddle.runs.compare.entrants import settle
from fedsaddle.runs.compare.execution import train_one
from fedsaddle.runs.compare.processes import Pool, Task, cores, in_use
from fedsaddle.runs.record import RunRecord

BASE = {
    "data": {"clients": 6},
    "federation": {"clients_per_round": 3},
    "run": {"rounds": 4, "checkpoint_every": 1},
}
ENTRANTS = [
    Entrant("codasca", {"algorithm": {"name": "codasca"}}),
    Entrant("cross-entropy", {"algorithm": {"name": "fedavg"}, "problem": {"name": "risk"}}),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "out"
    return compare(BASE, ENTRANTS, [0, 5], out, jobs=2)


def test_every_run_is_the_ordinary_one(finished, tmp_path):
    config = settle(BASE, ENTRANTS, 5)["codasca"]
    alone = train_config(config, tmp_path / "alone")
    folder = finished.out / "runs/codasca/5"
    model = "model/model.safetensors"
    assert (folder / model).read_bytes() == (tmp_path / "alone" / model).read_bytes()
    assert finished.final("test/auc")["codasca"][1] == alone.history[-1]["test/auc"]
    assert [row["round"] for row in finished.rows("codasca", 5)] == [0, 1, 2, 3, 4]


def test_entrants_share_draws_and_data_within_a_seed(finished):
    def chosen(label, seed):
        ledger = RunRecord.load(finished.out / "runs" / label / str(seed)).ledger
        return [entry["selected"] for entry in ledger]

    assert chosen("codasca", 0) == chosen("cross-entropy", 0) != chosen("codasca", 5)
    first = [finished.rows(label, 0)[0] for label in finished.labels]
    assert first[0]["test/auc"] == first[1]["test/auc"], "the same initial network"


def test_a_finished_run_is_left_alone_and_seeds_may_be_added(finished):
    files = {path: path.stat().st_mtime_ns for path in finished.out.glob("runs/*/*/*.json*")}
    more = compare(BASE, ENTRANTS, [0, 5, 6], finished.out, jobs=1)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert more.seeds == (0, 5, 6)
    assert more.summary("test/auc")["codasca"].n == 3


def test_a_run_of_other_settings_is_refused(finished):
    longer = BASE | {"run": BASE["run"] | {"rounds": 9}}
    with pytest.raises(UserError, match=r"codasca/0: this folder holds a run of other settings"):
        compare(longer, ENTRANTS, [0], finished.out)
    patient = BASE | {"run": BASE["run"] | {"checkpoint_every": 7}}
    assert compare(patient, ENTRANTS, [0, 5], finished.out).seeds == (0, 5)


def test_a_run_that_diverges_at_once_is_a_result(tmp_path):
    wild = {"name": "local-sgda", "learning_rate": 1e30}
    base = BASE | {"evaluation": {"guard": False}}
    config = settle(base, [Entrant("wild", {"algorithm": wild})], 0)["wild"]
    told = []
    train_one(config.sections(), tmp_path / "runs/wild/0", told.append)
    plan = {"seeds": [0], "budget_mb": None, "base": {}, "entrants": {"wild": {}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    found = Comparison.load(tmp_path)
    assert "finite" in found.stopped("wild")[0]
    assert found.final("test/auc") == {"wild": [None]}
    assert found.summary("test/auc")["wild"].n == 0
    assert told[0] == 0


def test_a_stopped_run_counts_on_with_the_model_it_kept(tmp_path):
    folders = [tmp_path / "runs/a" / seed for seed in "01"]
    histories = [(0.5, 0.6, 0.7, 0.8), (0.5, 0.9, 0.3)]
    evaluations = [{"round": 3}, {"round": 1, "stopped": "it fell"}]
    for folder, values, evaluation in zip(folders, histories, evaluations, strict=True):
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("[run]\nrounds = 3\n")
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        rows = (
            {"round": n, "test/auc": value, "site/x/auc": 1.0, "bytes_up": n, "bytes_down": n}
            for n, value in enumerate(values)
        )
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = {"seeds": [0, 1], "budget_mb": None, "base": {}, "entrants": {"a": {}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    found = Comparison.load(tmp_path)
    assert found.final("test/auc") == {"a": [0.8, 0.9]}
    curve = found.over_seeds("a")
    assert [row["test/auc"] for row in curve] == pytest.approx([0.5, 0.75, 0.5, 0.85])
    assert [row["bytes_up"] for row in curve] == [0, 1, 2, 2.5]
    assert curve[0]["test/auc_low"] == curve[0]["test/auc_high"] == 0.5
    assert not any(name.startswith("site/") for name in curve[0])


def test_no_comparison_and_no_seeds(tmp_path):
    with pytest.raises(UserError, match="there is no comparison here"):
        Comparison.load(tmp_path)
    for seeds in ([], [1, 1]):
        with pytest.raises(UserError, match="at least one seed, and each of them once"):
            compare(BASE, ENTRANTS, seeds, tmp_path)
    with pytest.raises(UserError, match="--jobs -1"):
        cores(-1)


TASKS = """
import os, signal
from fedsaddle.errors import UserError

def behave(how, news):
    news("half")
    if how == "refuse":
        raise UserError("no such file.")
    if how == "fail":
        raise ZeroDivisionError("here")
    if how == "end":
        os.kill(os.getpid(), signal.SIGKILL)
    return "all"
"""


def test_what_goes_wrong_in_a_process_is_told_with_its_name(tmp_path, monkeypatch):
    (tmp_path / "tasks_of_this_test.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    behave = importlib.import_module("tasks_of_this_test").behave
    told = []
    with Pool(1) as pool:
        good = [Task("good", behave, ("well",))] * 2
        results = pool.run(good, lambda *news: told.append(news))
        assert list(results) == [(0, "all"), (1, "all")]
        assert told == [(0, "half"), (1, "half")]
        for how, kind, message in (
            ("refuse", UserError, "run 7: no such file."),
            ("fail", RuntimeError, "run 7 failed in its process:\n.*ZeroDivisionError: here"),
            ("end", UserError, "run 7: its process was killed by signal 9"),
        ):
            with pytest.raises(kind, match=f"(?s){message}"):
                list(pool.run([Task("run 7", behave, (how,))], lambda *news: None))


def test_two_at_once_in_one_folder_are_one_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    with in_use(tmp_path), pytest.raises(UserError, match="another process is at work"):
        compare(BASE, ENTRANTS, [0], tmp_path)
    with in_use(tmp_path) as lock:  # a worker that outlives its parent keeps the folder
        sleeper = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    with pytest.raises(UserError, match="another process is at work"), in_use(tmp_path):
        pass
    sleeper.kill()
    sleeper.wait()
    with in_use(tmp_path):
        pass


# Real processes, real signals

KILLED = BASE | {"run": {"rounds": 60, "checkpoint_every": 3}, "evaluation": {"every": 2}}
PROGRAM = """
import json, sys
from pathlib import Path
from fedsaddle.runs.compare import compare, named_entrants
base = json.loads(sys.argv[2])
compare(base, named_entrants(base, ["codasca", "local-sgda"]), [1], Path(sys.argv[1]), jobs=2)
"""


def start(out):
    command = [sys.executable, "-c", PROGRAM, str(out), json.dumps(KILLED)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0)


def children(process):
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds=300):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come about in time"
        time.sleep(0.01)


def test_killed_with_or_without_its_group_then_resumed_it_gives_the_same(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for label, config in settle(
        KILLED, named_entrants(KILLED, ["codasca", "local-sgda"]), 1
    ).items():
        train_config(config, whole / "runs" / label / "1")
    for kill in (os.kill, os.killpg):
        process = start(killed)
        before = {path: path.stat().st_mtime_ns for path in killed.rglob("round-*")}

        def saved(before=before):
            found = {path: path.stat().st_mtime_ns for path in killed.rglob("round-*.safetensors")}
            return len({path.parent for path in found.keys() - before.keys()}) == 2

        wait_for(saved)
        workers = children(process)
        assert len(workers) == 2
        kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda workers=workers: not any(map(alive, workers)), seconds=60)
    assert not list(killed.glob("runs/*/*/evaluation.json")), "it was over before it was killed"
    process = start(killed)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found = Comparison.load(killed)
    for label in found.labels:
        once = RunRecord.load(whole / "runs" / label / "1")
        for row, expected in zip(found.rows(label, 1), once.history, strict=True):
            assert row | {"seconds": 0} == expected | {"seconds": 0}
        assert found.final("test/auc")[label] == [once.evaluation["summary"]["test/auc"]]
    for model in whole.rglob("model.safetensors"):
        assert (killed / model.relative_to(whole)).read_bytes() == model.read_bytes()


def test_a_run_killed_as_it_began_starts_anew(tmp_path):
    folder = tmp_path / "runs/codasca/0"
    folder.mkdir(parents=True)
    (folder / ".config.toml.x1").write_text("[run")
    found = compare(BASE, ENTRANTS[:1], [0], tmp_path)
    assert found.final("test/auc")["codasca"][0] is not None
