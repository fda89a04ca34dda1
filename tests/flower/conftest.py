"""Real federations on this machine, and the simulations that they must agree with."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from fedsaddle.data import DataOptions
from fedsaddle.deploy.app import write_app
from fedsaddle.deploy.local import LINK, LocalFederation
from fedsaddle.deploy.sites import site_files
from fedsaddle.runs.api import train_config
from fedsaddle.runs.config import resolve, write_sections

FAULTY = """
from fedsaddle.flower import client
from fedsaddle.flower.wire import parcel

honest = client.ask_worker


def ask_worker(node, request):
    reply = honest(node, request)
    if request.header["kind"] != "phase" or node.site != {site!r}:
        return reply
    if request.header["round"] not in {rounds!r}:
        return reply
    return parcel(reply.header, {{name: {change} for name, v in reply.vectors().items()}})


client.ask_worker = ask_worker
app = client.app
"""


@dataclass
class Consortium:
    """Sites with a file each, running; every method of a run has a name of its own."""

    folder: Path
    options: DataOptions
    federation: LocalFederation

    @property
    def sites(self):
        return list(self.federation.sites)

    def state(self, site):
        return Path(self.federation.sites[site]["state"])

    def config(self, algorithm="codasca", problem="auc", rounds=3, options=None, **sections):
        run = {"rounds": rounds, "checkpoint_every": 2, **sections.pop("run", {})}
        engine = {"sites": self.sites, "grace_seconds": 60, **sections.pop("engine", {})}
        return resolve(
            {
                "data": self.options.model_dump(mode="json", exclude_none=True),
                "problem": {"name": problem},
                "algorithm": {"name": algorithm, **(options or {})},
                "evaluation": {"auc": "binned", "every": rounds},
                "run": run,
                "engine": engine,
                **sections,
            }
        )

    def simulate(self, config, name="simulated", **federation):
        federation = {**config.sections()["federation"], **federation}
        sections = {**config.sections(), "federation": federation}
        sections["engine"] = {**sections["engine"], "name": "simulation"}
        return train_config(resolve(sections), self.folder / name)

    def replay(self, config, run, name):
        """The run again in the simulator, with the participation that it had."""
        trace = str(self.folder / run / "ledger.jsonl")
        self.simulate(config, name, availability="trace", trace=trace)

    def submit(self, config, name, resume=False, faulty=None):
        app = self.folder / f"app-{name}-{int(resume)}"
        write_app(app, write_sections(config.sections()))
        if faulty is not None:
            (app / "faulty.py").write_text(FAULTY.format(**faulty))
            project = app / "pyproject.toml"
            project.write_text(project.read_text().replace("fedsaddle.flower.client:", "faulty:"))
        return self.federation.submit(app, {"out": str(self.folder / name), "resume": resume})

    def run(self, config, name, seconds=900, **options):
        state = self.federation.wait(self.submit(config, name, **options), seconds)
        assert state.completed, f"{state}\n{self.federation.log(LINK)[-5000:]}"

    def lines(self, name, file="ledger.jsonl"):
        path = self.folder / name / file
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def until(self, condition, seconds=600):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.federation.log(LINK)[-3000:]
            time.sleep(0.1)

    def model(self, name):
        return load_file(self.folder / name / "model" / "model.safetensors")

    def check_same_model(self, one, other):
        first, second = self.model(one), self.model(other)
        assert first.keys() == second.keys()
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-6, atol=1e-6)

    def check_same_ledger(self, one, other):
        for first, second in zip(self.lines(one), self.lines(other), strict=True):
            norms = first.pop("norms", {}), second.pop("norms", {})
            assert first == second
            assert norms[0] == pytest.approx(norms[1], rel=1e-3)  # they are written in four digits
        assert norms[0], "the last round is always measured"


def hospitals(folder):
    """Heart disease where it is at hand, else tumours dealt to three sites: a file per site."""
    root = Path(os.environ.get("FEDSADDLE_DATA") or "data")
    if (root / "heart-disease").is_dir():
        options, sites = DataOptions(source="heart-disease", root=root), None
    else:
        options, sites = DataOptions(source="breast-cancer"), 3
    return site_files(options, folder / "files", sites, seed=0, binary=True)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """A federation without TLS, for all tests of a file."""
    folder = tmp_path_factory.mktemp("federation")
    files, options = hospitals(folder)
    sites = {
        name: {"site": name, "data": str(path), "state": str(folder / "state" / name)}
        for name, path in files.items()
    }
    with LocalFederation(folder / "parties", sites, plaintext=True) as federation:
        yield Consortium(folder, options, federation)
