"""Federations of real processes on loopback: who is let in, what is left behind."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from fedsaddle.data import DataOptions
from fedsaddle.deploy import processes
from fedsaddle.deploy.app import write_app
from fedsaddle.deploy.certificates import make_certificates, make_node_key
from fedsaddle.deploy.local import (
    LINK,
    FederationError,
    LocalFederation,
    RunState,
    settings_text,
)
from fedsaddle.deploy.sites import site_files
from fedsaddle.errors import UserError
from fedsaddle.runs.api import train_config
from fedsaddle.runs.config import resolve, write_sections

PYPROJECT = """
[project]
name = "roll-call"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedsaddle"
[tool.flwr.app.components]
serverapp = "roll_call:server"
clientapp = "roll_call:client"
[tool.flwr.app.config]
fail = false
"""
ROLL_CALL = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message, context):
    content = RecordDict({"who": ConfigRecord({"site": context.node_config["site"]})})
    return Message(content, reply_to=message)


@server.main()
def ask(grid, context):
    if context.run_config["fail"]:
        raise RuntimeError("told to fail")
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    waiting, heard = set(grid.push_messages(messages)), []
    while waiting:
        for reply in list(grid.pull_messages(waiting)):
            waiting.remove(reply.metadata.reply_to_message_id)
            heard.append(reply.content["who"]["site"])
        time.sleep(0.1)
    print("heard", *sorted(heard), flush=True)
"""


@pytest.fixture
def roll_call(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "roll_call.py").write_text(ROLL_CALL)
    return app


def nodes(*names):
    return {name: {"site": name} for name in names}


@pytest.mark.federation
def test_sites_with_keys_take_part_and_strangers_do_not(tmp_path, roll_call):
    with LocalFederation(tmp_path / "federation", nodes("a", "b")) as federation:
        run = federation.submit(roll_call)
        assert federation.wait(run, 300).completed
        assert "heard a b" in federation.run_log(run)

        failed = federation.wait(federation.submit(roll_call, {"fail": True}), 300)
        assert failed.finished
        assert not failed.completed
        assert "told to fail" in failed.details

        federation.kill("b")
        assert federation.pids("b") == []
        ours = ["--root-certificates", str(federation.certificates.authority)]
        theirs = make_certificates(tmp_path / "other", ["127.0.0.1"]).authority
        stranger = make_node_key(tmp_path / "stranger").private
        own_key = ["--auth-supernode-private-key", str(federation.key("b").private)]
        attempts = {
            "wrong key": [*ours, "--auth-supernode-private-key", str(stranger)],
            "no key": ours,
            "wrong authority": ["--root-certificates", str(theirs), *own_key],
            "plaintext": ["--insecure", "--max-retries", "1"],
        }
        reasons = {
            "wrong key": "Failed to activate SuperNode",
            "no key": "All SuperNodes must be registered",
            "wrong authority": "CERTIFICATE_VERIFY_FAILED",
            "plaintext": "Failed to initialize the connection",
        }
        command = federation.command("b")
        without_security = command[: command.index("--root-certificates")]
        for attempt, security in attempts.items():
            federation.launch("b", [*without_security, *security])
            with pytest.raises(FederationError, match="b ended with code") as refused:
                federation.wait_ready("b")
            assert reasons[attempt] in str(refused.value)
            federation.kill("b")
        assert federation.log(LINK).count("Activated node_id") == 2


@pytest.mark.federation
def test_methods_with_tls_and_keys_give_the_simulators_models(tmp_path):
    root = Path(os.environ.get("FEDSADDLE_DATA") or "data")
    source = DataOptions(source="breast-cancer")
    if (root / "heart-disease").is_dir():
        source = DataOptions(source="heart-disease", root=root)
    files, data = site_files(source, tmp_path / "files", None, seed=0, binary=True)
    short = Path(tempfile.mkdtemp(prefix="fedsaddle-"))
    sites = {
        name: {"site": name, "data": str(path), "state": str(short / name)}
        for name, path in files.items()
    }
    options = data.model_dump(mode="json", exclude_none=True)
    with LocalFederation(tmp_path / "federation", sites) as federation:
        for method, problem in (("codasca", "auc"), ("cdma-ada", "auc"), ("drfa", "agnostic")):
            sections = {
                "data": options,
                "algorithm": {"name": method},
                "problem": {"name": problem},
                "evaluation": {"auc": "binned"},
                "run": {"rounds": 2},
            }
            train_config(resolve(sections), tmp_path / f"{method}-simulated")
            app, engine = tmp_path / f"{method}-app", {"name": "flower", "sites": list(sites)}
            write_app(app, write_sections(resolve({**sections, "engine": engine}).sections()))
            run = federation.submit(app, {"out": str(tmp_path / method)})
            assert federation.wait(run, 900).completed, federation.run_log(run)
            here, there = (tmp_path / name for name in (method, f"{method}-simulated"))
            model, expected = (
                load_file(folder / "model" / "model.safetensors") for folder in (here, there)
            )
            for name, value in expected.items():
                torch.testing.assert_close(model[name], value, rtol=1e-6, atol=1e-6)
            ledger = [(folder / "ledger.jsonl").read_text() for folder in (here, there)]
            assert ledger[0] == ledger[1]
    shutil.rmtree(short)


@pytest.mark.federation
def test_a_killed_coordinator_and_a_killed_site_come_back(tmp_path, roll_call):
    with LocalFederation(tmp_path / "federation", nodes("a", "b")) as federation:
        federation.kill("a")
        federation.kill(LINK)
        federation.start(LINK)  # it still knows both keys
        federation.start("a")
        federation.stall("b")
        federation.resume("b")
        assert federation.wait(federation.submit(roll_call), 300).completed


@pytest.mark.federation
def test_nothing_is_left_behind(tmp_path, roll_call):
    folder = tmp_path / "federation"
    with LocalFederation(folder, nodes("a"), plaintext=True) as federation:
        assert federation.pids(LINK)
        with pytest.raises(FederationError, match="a is running already"):
            federation.launch("a")
        with pytest.raises(FederationError, match="flwr ls"):
            federation.state("1")
        federation.stall("a")  # a stalled process is ended, too
    assert processes.marked(str(folder)) == []


def test_a_coordinator_that_cannot_start_says_why(tmp_path, monkeypatch):
    federation = LocalFederation(tmp_path, nodes("a"), plaintext=True)
    monkeypatch.setattr(federation, "command", lambda name: ["/bin/sh", "-c", "echo no; exit 3"])
    with pytest.raises(FederationError, match=r"superlink ended with code 3\.\nno"), federation:
        pass
    assert processes.marked(str(tmp_path)) == []


def test_a_site_cannot_have_the_coordinators_name(tmp_path):
    with pytest.raises(UserError, match="cannot be called 'superlink'"):
        LocalFederation(tmp_path, nodes(LINK))


def test_settings_that_the_command_line_cannot_carry():
    assert settings_text({"data": "a b.csv", "resume": True}) == 'data="a b.csv" resume=true'
    with pytest.raises(UserError, match=r"data: .* has a quote"):
        settings_text({"data": 'a"b'})


def test_only_a_completed_run_is_completed():
    assert RunState("finished:completed", "").completed
    assert RunState("finished:failed", "").finished
    assert not RunState("finished:failed", "").completed
    assert not RunState("running", "").finished


def test_a_federation_knows_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    federation = LocalFederation(Path("here"), nodes("a"))
    assert federation.log("a") == ""
    assert federation.key("a").private == tmp_path / "here" / "keys" / "a" / "node.key"
