"""The driver of the peers, with contestants made up here."""

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from fedsaddle.bench.cases import NETWORKS
from fedsaddle.models import build

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

GOOD = """
import time
from protocol import Turns
turns = Turns(good="1.0")
print("libraries print what they like")
while turns.next():
    begun = time.process_time()
    while time.process_time() - begun < 0.03:  # the system counts hundredths of seconds
        pass
"""
BAD = """
from protocol import Turns
turns = Turns(bad="0.1")
turns.next()
raise RuntimeError("no such operator")
"""
SILENT = "import time; time.sleep(60)"


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """The modules beside the peers' scripts; contestants find the protocol there too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS / "peers"))
    yield import_module
    for name in ("contestant", "environment", "plot", "protocol", "run", "workload"):
        sys.modules.pop(name, None)


def script(folder, text):
    path = folder / "made_up_rounds.py"
    path.write_text(text)
    return path


def test_a_round_when_told(peers, tmp_path):
    with peers("contestant").Contestant(script(tmp_path, GOOD)) as contestant:
        assert contestant.versions == {"good": "1.0"}
        assert all(0 <= contestant.round() < 1 for _ in range(3))
        assert 0 < contestant.processor_seconds() < 60


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc tells of processes")
def test_a_contestant_is_held_while_others_take_their_turns(peers, tmp_path):
    module = peers("contestant")
    with module.Contestant(script(tmp_path, GOOD)) as contestant:
        (process,) = module.family_of(contestant._process.pid)
        contestant.rest()
        assert state_of(process) == "T"
        contestant.wake()
        assert state_of(process) in "RS"
        assert contestant.round() < 1
        contestant.rest()
    assert contestant._process.poll() == 0, "it ends, though it was held"


def state_of(process):
    """Stopped (T), sleeping (S), ...; a signal takes a moment."""
    time.sleep(0.2)
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_contestant_that_fails_says_why(peers, tmp_path):
    module, unavailable = peers("contestant"), peers("environment").Unavailable
    with (
        module.Contestant(script(tmp_path, BAD)) as contestant,
        pytest.raises(unavailable, match="RuntimeError: no such operator"),
    ):
        contestant.round()
    with pytest.raises(unavailable, match="no answer within"):
        module.Contestant(script(tmp_path, SILENT), patience=0.5)


def test_a_failed_peer_is_listed_with_its_reason(peers, tmp_path, monkeypatch, capsys):
    run = peers("run")
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    monkeypatch.setattr(run, "HERE", tmp_path)
    contestants = {"Good": ("good.py",), "Bad": ("bad.py",), "plain loop": ("good.py",)}
    monkeypatch.setattr(run, "CONTESTANTS", contestants)
    monkeypatch.setattr(run, "peak_flops", lambda: 1e11)
    arguments = ("run.py", "--rounds", "2", "--networks", "mlp", "--out", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", list(arguments))
    run.main()
    assert "no such operator" in capsys.readouterr().out
    (stored,) = (tmp_path / "out").glob("peers-*.json")
    result = json.loads(stored.read_text())
    good, bad, plain = result["results"]
    assert good["over_best_peer"] == 1
    assert len(good["rounds_ms"]) == 2
    assert "no such operator" in bad["reason"]
    assert plain["over_limit"] == plain["median_ms"] / result["limit_ms"]["mlp"]
    ElementTree.fromstring(stored.with_suffix(".svg").read_text())


def test_what_a_script_asks_for(peers, tmp_path):
    dependencies = peers("environment").dependencies
    asked = dependencies(script(tmp_path, '# /// script\n# dependencies = ["a==1", "b"]\n# ///\n'))
    assert asked == ["a==1", "b"]
    assert dependencies(script(tmp_path, "pass")) == []


@pytest.mark.parametrize("name", ["lenet-5", "mlp"])
def test_peers_get_our_networks(peers, name):
    theirs = peers("workload").torch_network(name)
    ours = build(NETWORKS[name].model, (28, 28), 10)
    shapes = [[tuple(p.shape) for p in network.parameters()] for network in (theirs, ours)]
    assert shapes[0] == shapes[1]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        other.data.copy_(mine.data)
    pictures = torch.randn(3, 28, 28)
    torch.testing.assert_close(ours(pictures), theirs(pictures.unsqueeze(1)))


def test_the_page_is_what_the_newest_results_say(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    page = import_module("page")
    for name in page.PARTS:
        text = (page.DOCS / name).read_text()
        assert page.page(name, text) == text, "run: make docs"


def test_the_page_has_the_newest_results_of_every_processor(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    page = import_module("page")
    for day, cpu in ((1, "small"), (2, "large"), (3, "small")):
        (tmp_path / f"bench-2000-01-0{day}.json").write_text(json.dumps({"cpu": cpu}))
    found = [path.stem for path in page.newest("bench", tmp_path)]
    assert found == ["bench-2000-01-03", "bench-2000-01-02"]
    assert page.newest("peers", tmp_path) == []
