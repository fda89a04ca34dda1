"""Real processes, real signals."""

import os
import pty
import random
import re
import signal
import subprocess
import sys
import time

import pytest

RUN = ["train", "--rounds", "60", "--set", "data.clients=4", "--set", "run.checkpoint_every=3"]

# long enough that the run is still going when its signal arrives, also on a fast machine
LONG = [*RUN, "--rounds", "240", "--set", "evaluation.every=1"]


def fedsaddle(*arguments, **options):
    command = [sys.executable, "-m", "fedsaddle", *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def rounds_written(run):
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(condition, process, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit, "the run did not get there in time"
        time.sleep(0.005)


def test_killed_again_and_again_then_resumed_ends_with_the_same_bytes(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, _, err = finish(fedsaddle(*LONG, "--out", whole))
    assert code == 0, err
    delays = random.Random(7)
    process = fedsaddle(*LONG, "--out", killed)
    for rounds in (1, 40, 100):
        wait_for(lambda rounds=rounds: rounds_written(killed) > rounds, process)
        time.sleep(delays.random() / 20)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (killed / "model/model.safetensors").exists()
        process = fedsaddle("train", "--resume", "--out", killed)
    code, _, err = finish(process)
    assert code == 0, err
    for name in ("model/model.safetensors", "model/best.safetensors", "ledger.jsonl"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    assert not list(killed.rglob(".*")), "a temporary file was left behind"


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert finish(fedsaddle(*LONG, "--out", whole))[0] == 0
    process = fedsaddle(*LONG, "--out", stopped)
    wait_for(lambda: rounds_written(stopped) > 5, process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert f"fedsaddle train --resume --out {stopped}" in err
    assert "Traceback" not in err
    assert finish(fedsaddle("train", "--resume", "--out", stopped))[0] == 0
    model = "model/model.safetensors"
    assert (whole / model).read_bytes() == (stopped / model).read_bytes()


def test_on_a_terminal_there_is_a_live_line_and_elsewhere_there_is_none(tmp_path):
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "fedsaddle", *RUN, "--out", str(tmp_path / "seen")]
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.DEVNULL)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # the other end was closed: the run has ended
        pass
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "60/60" in text
    assert re.search(r"AUC 0\.\d{4}  worst client-\d [01]\.\d{4}  0\.\d+ MB", text)
    assert re.search(r"\d\d:\d\d", text), "no time left was shown"
    code, _, err = finish(fedsaddle(*RUN, "--out", tmp_path / "unseen"))
    assert (code, err) == (0, "")


def test_a_full_disk_is_one_sentence_and_leaves_no_half_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        code, out, err = finish(fedsaddle(*RUN, "--out", disk / "run"))
        assert code == 2
        assert err.startswith(f"fedsaddle: {disk / 'run'}: cannot be written: No space left")
        assert err.count("\n") == 1
        assert out == ""
        assert not list(disk.rglob(".*")), "a temporary file was left behind"
    finally:
        subprocess.run(["umount", str(disk)], check=True)
