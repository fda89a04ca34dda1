"""Starting weights from a file, and networks that are saved and read again."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

import fedsaddle
from fedsaddle.data import DataOptions, FederatedData, load
from fedsaddle.errors import UserError
from fedsaddle.models import ModelOptions
from fedsaddle.runs.saved import SavedModel, starting_network

MLP = {"hidden": [5]}


def pictures(side=8, clients=3, rows=12, seed=0):
    """Bright pictures are positive."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(clients):
        labels = random.integers(0, 2, rows)
        labels[:4] = [0, 1, 0, 1]
        noise = random.normal(size=(rows, side, side))
        parts.append((noise + labels[:, None, None], labels))
    return FederatedData.from_clients(parts, test=0.3)


@pytest.fixture(scope="module")
def digits():
    return DataOptions(source="digits", clients=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory, digits):
    """A run of cross-entropy on all ten digits, and one of 8 against the rest."""
    folder = tmp_path_factory.mktemp("base")
    options = ModelOptions(name="mlp", arguments=MLP)
    fedsaddle.train("risk", digits, model=options, rounds=2, out=folder / "ten")
    fedsaddle.train("auc", digits, model=options, rounds=2, out=folder / "two")
    return folder


def weights_of(run):
    return safetensors.torch.load_file(run / "model" / "model.safetensors")


def test_a_run_starts_where_another_ended(base, digits, tmp_path):
    init = base / "two" / "model" / "model.safetensors"
    options = ModelOptions(name="mlp", arguments=MLP, init=init)
    assert {"a", "b", "dual.alpha"} < set(weights_of(base / "two")), "left aside"
    result = fedsaddle.train("auc", digits, model=options, rounds=1, out=tmp_path / "run")
    ended = [json.loads(line) for line in (base / "two/metrics.jsonl").open()][-1]
    assert result.history[0]["round"] == 0
    assert result.history[0]["test/auc"] == ended["test/auc"]
    init.rename(init.with_name("moved"))  # the trained model needs it no more
    try:
        SavedModel.load(tmp_path / "run" / "model")
    finally:
        init.with_name("moved").rename(init)


def test_what_is_skipped_keeps_its_random_start(base, digits):
    plain = ModelOptions(name="mlp", arguments=MLP)
    init = base / "ten" / "model" / "model.safetensors"
    skipping = plain.model_copy(update={"init": init, "init_skip": ["3."]})
    data = load(digits, seed=0, binary=True)
    random, kept = (
        starting_network(options, data, 0).state_dict() for options in (plain, skipping)
    )
    saved = weights_of(base / "ten")
    assert torch.equal(kept["1.weight"], saved["1.weight"])
    assert torch.equal(kept["3.weight"], random["3.weight"])


def test_two_stages_on_the_command_line(run, tmp_path):
    """Cross-entropy on ten classes first, then AUC with a new last layer (CODASCA, CheXpert)."""
    quick = ["--data", "digits", "--model", "mlp", "--rounds", 2, "--set", "data.clients=3"]
    code, _, err = run("train", *quick, "--problem", "risk", "--out", "first")
    assert code == 0, err
    second = [*quick, "--problem", "auc", "--out", "second"]
    second += ["--set", "model.init=first/model/model.safetensors"]
    code, _, err = run("train", *second)
    assert code == 2
    assert "first/model/model.safetensors: '5.weight' has shape (10, 64)" in " ".join(err.split())
    assert "model.init_skip" in err
    assert not (tmp_path / "second").exists()
    code, _, err = run("train", *second, "--set", 'model.init_skip=["5."]')
    assert code == 0, err
    config = (tmp_path / "second/config.toml").read_text()
    assert 'init = "first/model/model.safetensors"' in config
    described = json.loads((tmp_path / "second/model/model.json").read_text())["model"]
    assert described == {"name": "mlp", "arguments": {}}
    code, _, err = run("train", "second/config.toml", "--rounds", 3, "--out", "second", "--resume")
    assert code == 0, err


def test_pictures_where_rows_are_flat_are_one_sentence(run):
    code, _, err = run("train", "--data", "digits", "--model", "lenet-5", "--rounds", 1)
    assert code == 2
    assert "'lenet-5' takes pictures" in err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"init": "nowhere.safetensors"}, "nowhere.safetensors: there is no such file"),
        ({"init": "noise.safetensors"}, "noise.safetensors: not a readable safetensors file"),
        ({"arguments": {"hidden": [6]}}, r"two.*model.safetensors: '1.weight' has shape \(5, 64\)"),
        ({"name": "lenet-5", "arguments": {}}, "takes pictures"),
        ({"arguments": {"hidden": [5, 5]}}, r"there is no '5.weight'.*init_skip"),
        ({"name": "logistic", "arguments": {}}, r"'1.weight' has shape \(5, 64\).*\(1, 64\)"),
        ({"init_skip": ["head."]}, "model.init_skip: no weight is called 'head.…'"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, says, base, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.safetensors").write_bytes(b"noise")
    options = {"name": "mlp", "arguments": MLP}
    options |= {"init": base / "two" / "model" / "model.safetensors"} | change
    with pytest.raises(UserError, match=says):
        fedsaddle.train("auc", digits, model=ModelOptions(**options), rounds=1)


def test_a_missing_tensor_is_named(digits, tmp_path):
    path = tmp_path / "part.safetensors"
    safetensors.torch.save_file({"1.weight": torch.zeros(5, 64)}, path)
    options = ModelOptions(name="mlp", arguments=MLP, init=path)
    with pytest.raises(UserError, match=r"part.safetensors: there is no '1.bias'"):
        fedsaddle.train("auc", digits, model=options, rounds=1)


def test_a_network_with_statistics_is_saved_and_read_again(tmp_path):
    data, out = pictures(), tmp_path / "run"
    result = fedsaddle.train("auc", data, model="resnet-20", rounds=2, out=out)
    saved = SavedModel.load(out / "model")
    rows = data.take(torch.arange(len(data.inputs)))
    with torch.no_grad():
        expected = result.model.eval()(rows).squeeze(-1).double()
    np.testing.assert_array_equal(saved.logits(rows), expected.numpy())
    statistics = dict(saved.network.named_buffers())
    assert float(statistics["stem_norm.num_batches_tracked"]) > 0
    assert bool((statistics["stem_norm.running_mean"] != 0).all())
    again = fedsaddle.train("auc", data, model="resnet-20", rounds=2)
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
