"""The commands as people type them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from fedsaddle.deploy import processes


def test_certificates_say_what_goes_where(run, tmp_path):
    code, out, _ = run("deploy", "certificates", "certificates", "--host", "fl.example.org")
    assert code == 0
    assert "for every site:           certificates/ca.crt" in out
    names = {path.name for path in (tmp_path / "certificates").iterdir()}
    assert names == {"ca.crt", "ca.key", "server.crt", "server.key"}
    code, _, error = run("deploy", "certificates", "certificates", "--host", "fl.example.org")
    assert code == 2
    assert "the file exists and is not overwritten" in error
    code, out, _ = run("deploy", "certificates", "certificates", "--host", "b", "--renew", "--json")
    assert code == 0
    assert json.loads(out)["server"] == "certificates/server.crt"


def test_a_key_has_a_fingerprint(run):
    code, out, _ = run("deploy", "key", "site", "--json")
    assert code == 0
    assert json.loads(out)["fingerprint"].startswith("SHA256:")
    code, _, error = run("deploy", "key", "site")
    assert code == 2
    assert "node.key: the file exists" in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--resume"], "say which run with --out"),
        (["--out", "taken"], "taken: the folder is there already"),
        (["--set", "run.ronds=3"], "did you mean 'rounds'"),
        (["--data", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--set", "data.partition=disjoint-classes"], "is for simulations"),
        (["--set", "data.positive_ratio=0.1"], "is for simulations"),
    ],
)
def test_mistakes_are_found_before_anything_starts(run, tmp_path, arguments, sentence):
    (tmp_path / "taken").mkdir()
    code, _, error = run("deploy", "local", *arguments)
    assert code == 2
    assert sentence in error
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_without_flower_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [name for name in sys.modules if name.startswith("fedsaddle.deploy.")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, error = run("deploy", "key", "site")
    assert code == 2
    assert "pip install 'fedsaddle[flower]'" in error


@pytest.mark.federation
def test_a_rehearsal_gives_the_simulators_model(run, tmp_path):
    settings = ["--set", "run.rounds=2", "--set", "evaluation.auc=binned"]
    code, out, error = run("deploy", "local", "--sites", 3, *settings, "--out", "real", "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["status"] == "finished:completed"
    assert [site["name"] for site in found["sites"]] == ["site-0", "site-1", "site-2"]
    assert (tmp_path / "real" / "report.html").exists()
    assert run("audit", Path(found["site_files"]) / "site-0")[0] == 0
    again = ["real/config.toml", "--set", "engine.name=simulation", "--out", "simulated"]
    assert run("train", *again)[0] == 0
    model, expected = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("real", "simulated")
    )
    for name, value in expected.items():
        torch.testing.assert_close(model[name], value, rtol=1e-6, atol=1e-6)
    more = ["--set", "run.rounds=3", "--set", "evaluation.auc=binned"]
    assert run("deploy", "local", "--sites", 3, *more, "--out", "real", "--resume")[0] == 0


@pytest.mark.federation
def test_a_run_that_fails_exits_with_one_and_keeps_its_logs(run, tmp_path):
    labels = [0, 1] * 20
    pd.DataFrame({"age": range(40), "label": labels}).to_csv(tmp_path / "north.csv", index=False)
    pd.DataFrame({"size": range(40), "label": labels}).to_csv(tmp_path / "south.csv", index=False)
    files = ["--data", "north.csv", "--data", "south.csv"]
    code, out, error = run("deploy", "local", *files, "--plaintext", "--out", "broken", "--json")
    assert code == 1
    assert json.loads(out)["status"] == "finished:failed"
    assert "south" in error
    logs = Path(error.split("logs: ")[1].strip())
    said = {path.name for path in logs.iterdir()}
    shutil.rmtree(logs.parents[1])
    assert {"superlink.log", "north.log", "south.log", "run.log"} <= said


@pytest.mark.federation
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_rehearsal_leaves_no_process(tmp_path, number):
    command = [sys.executable, "-m", "fedsaddle", "deploy", "local", "--plaintext", "--sites", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("fedsaddle-*/federation/logs/site-1.log")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in error
    assert processes.marked(str(tmp_path)) == []
    assert not list(tmp_path.glob("fedsaddle-*"))
