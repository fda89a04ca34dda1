"""The papers' deeper networks on a few real pictures, from the command line: the loss falls."""

import json
import pickle
import shutil
from pathlib import Path

import pytest

from fedsaddle.data.sources.unpickle import unpickle


@pytest.fixture
def few_pictures(data_root, tmp_path):
    """A folder with the first pictures of CIFAR-10, in its own format: all would be slow."""
    folder = tmp_path / "few" / "cifar-10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    published = data_root.resolve() / "cifar-10" / folder.name
    shutil.copy(published / "batches.meta", folder)
    for name, n in (("data_batch_1", 240), ("test_batch", 60)):
        found = unpickle(published / name)
        few = {"data": found["data"][:n].copy(), "labels": found["labels"][:n]}
        (folder / name).write_bytes(pickle.dumps(few, protocol=2))
    return tmp_path / "few"


@pytest.mark.data
@pytest.mark.parametrize(
    ("network", "arguments", "rounds"),
    [("cifar-cnn", "{}", 10), ("resnet-20", "{}", 8), ("resnet-20", "{norm='group'}", 4)],
    ids=["cifar-cnn", "resnet-20", "resnet-20-group"],
)
def test_vehicles_against_animals(few_pictures, run, network, arguments, rounds):
    """Measured in evaluation mode: by the averaged statistics of BatchNorm, where there are any."""
    settings = {
        "data.root": few_pictures,
        "data.positive": '"airplane,automobile,ship,truck"',
        "data.partition": "iid",
        "data.clients": 4,
        "data.validation": 0,
        "model.arguments": arguments,
        "algorithm.learning_rate": 0.02,
        "algorithm.local_steps": 5,
        "algorithm.batch_size": 20,
        "evaluation.every": 1000,
    }
    code, _, err = run(
        *("train", "--data", "cifar-10", "--problem", "risk", "--algorithm", "local-sgdm"),
        *("--model", network, "--rounds", rounds, "--out", "run"),
        *(f"--set={name}={value}" for name, value in settings.items()),
    )
    assert code == 0, err
    first, last = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    assert last["train/objective"] < first["train/objective"] - 0.03
    assert last["test/loss"] < first["test/loss"]
    assert last["test/auc"] > 0.7
