"""`fedsaddle compare` as a user types it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import tomllib

import pytest

QUICK = ("--set", "data.clients=3", "--jobs", "1")


def test_compare_train_and_resume(run, tmp_path):
    command = ("compare", "--algorithms", "codasca,fedavg:risk", "--seeds", "2", *QUICK)
    code, out, err = run(*command, "--budget-mb", "0.004", "--out", "c")
    assert code == 0, err
    assert "Mean of test/auc over 2 seeds, at most 0.004 MB each" in out
    assert "codasca − fedavg-risk" in out
    assert "n = 2 seeds is too few" in out
    assert "runs: 4/4" in err
    names = {"csv", "md", "tex", "json"}
    assert all((tmp_path / f"c/comparison.{name}").stat().st_size for name in names)
    assert (tmp_path / "c/report.html").stat().st_size > 10_000
    found = json.loads((tmp_path / "c/comparison.json").read_text())
    rounds = {line["label"]: line["rounds"] for line in found["lines"]}
    assert rounds["codasca"] < rounds["fedavg-risk"]
    assert all(0 < line["megabytes"] <= 0.004 for line in found["lines"])
    code, out, err = run(*command, "--rounds", "2", "--out", "c")
    assert (code, err.count("\n")) == (2, 1)
    assert "c: a comparison is here already; continue it with --resume" in err
    code, out, err = run("compare", "--resume", "--out", "c", "--json")
    assert code == 0, err
    again = json.loads(out)
    assert {key: again[key] for key in found} == found
    code, out, err = run("train", "c/best/fedavg-risk.toml", "--out", "t", "--json")
    assert code == 0, err
    alone = json.loads(out)["summary"]["test/auc"]
    assert alone == found["lines"][1]["values"]["0"]


def test_a_sweep_from_a_file(run, tmp_path):
    (tmp_path / "run.toml").write_text(
        """
        [data]
        clients = 3
        [run]
        rounds = 2
        [compare]
        seeds = [4]
        sweep = 2
        sampler = "grid"
        [compare.entrants.short.algorithm]
        name = "local-sgda"
        local_steps = 1
        [sweep.short]
        learning_rate = [0.00001, 0.1]
        """
    )
    code, out, err = run("compare", "run.toml", "--out", "c", "--jobs", "1")
    assert code == 0, err
    assert "sweep, trials 1 to 2 of 2: 2/2" in err
    assert "With one seed" not in out, "there is nothing to compare with"
    best = tomllib.loads((tmp_path / "c/best/short.toml").read_text())
    assert best["algorithm"]["learning_rate"] == 0.1
    assert best["algorithm"]["local_steps"] == 1
    assert best["data"]["seed"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--algorithms: say which methods"),
        (("--algorithms", "codsca"), "did you mean 'codasca'?"),
        (("--algorithms", "codasca,scaffold"), "'scaffold' does not solve 'auc'; these do:"),
        (("--algorithms", "codasca", "--budget-mb", "1", "--rounds", "3"), "one of them, not both"),
        (("--algorithms", "codasca", "--budget-mb", "1e-6"), "more than the budget of 1e-06 MB"),
        (("--algorithms", "codasca", "--budget-mb", "-1"), "compare.budget_mb: should be greater"),
        (("--algorithms", "codasca", "--metric", "test/acu"), "did you mean 'test/auc'?"),
        (("--algorithms", "codasca", "--seeds", "many"), "compare.seeds: how many seeds (5), or"),
        (("--algorithms", "codasca", "--seeds", "1,1"), "compare.seeds: how many seeds (5), or"),
        (("--algorithms", "codasca", "--seeds", "0"), "compare.seeds: how many seeds (5), or"),
        (("--algorithms", "codasca", "--sweep", "4", "--sampler", "cma"), "compare.sampler"),
        (("--algorithms", "codasca", "--set", "compare.sed=1"), "did you mean 'seeds'?"),
        (("--algorithms", "codasca", "--set", "sweep.lr=[1]", "--sweep", "2"), "sweep.lr: no met"),
        (("--algorithms", "codasca", "--sweep", "2", "--set", "data.validation=0.0"), "--sweep"),
        (("--resume",), "say which comparison with --out"),
        (("--algorithms", "codasca", "--data", "nothing.csv"), "nothing.csv"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(run, tmp_path, arguments, message):
    code, out, err = run("compare", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not list((tmp_path / "runs").glob("*"))


def test_a_folder_with_other_files_is_refused(run, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine.txt").touch()
    code, _, err = run("compare", "--algorithms", "codasca", "--out", "c")
    assert code == 2
    assert "c: the folder has other files in it" in err


def test_help_has_examples(run):
    code, out, _ = run("compare", "--help")
    assert code == 0
    assert "fedsaddle compare --data digits --algorithms" in out


def test_ctrl_c_on_a_terminal_says_how_to_resume(tmp_path):
    reader, terminal = pty.openpty()
    out = tmp_path / "c"
    command = [sys.executable, "-m", "fedsaddle", "compare", "--algorithms", "codasca", *QUICK]
    command += ["--seeds", "1", "--rounds", "100000", "--out", str(out)]  # for minutes
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run in background
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    os.close(terminal)
    limit = time.monotonic() + 300
    shown = b""
    while not list(out.glob("runs/*/*/checkpoints/*")):
        assert process.poll() is None
        assert time.monotonic() < limit
        shown += os.read(reader, 65536)
    process.send_signal(signal.SIGINT)
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # the other end was closed: it has ended
        pass
    assert process.wait(timeout=30) == 130
    text = shown.decode()
    assert "0/1" in text
    assert "codasca, seed 0" in text
    assert "stopped; continue with: fedsaddle compare --resume --out" in text
    assert "Traceback" not in text
