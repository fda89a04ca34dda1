"""Files cut for sites hold the same rows as a simulation of the uncut data."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedsaddle.data import DataOptions, load
from fedsaddle.deploy.sites import site_files
from fedsaddle.errors import UserError


def cut(options, folder, sites=None):
    return site_files(options, folder, sites, seed=0, binary=True)


def test_a_client_column_becomes_files_with_the_same_data(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.normal(60, 10, 90).round(1),
            "stage": rng.choice(["I", "II", ""], 90),
            "died": rng.choice(["yes", "no"], 90),
            "hospital": rng.choice(["north", "south", "west"], 90),
        }
    )
    table.to_csv(tmp_path / "all.csv", index=False)
    options = DataOptions(source=str(tmp_path / "all.csv"), label="died", client="hospital")
    files, fitting = cut(options, tmp_path / "sites")
    assert list(files) == ["north", "south", "west"]
    whole, parts = load(options), load(fitting)
    assert parts.names == whole.names
    assert parts.classes == whole.classes
    assert parts.preprocessing == whole.preprocessing
    for client in range(3):
        ours, theirs = (data.inputs[data.train[client]] for data in (parts, whole))
        assert torch.equal(ours, theirs)


@pytest.mark.data
def test_hospitals_of_heart_disease(tmp_path, data_root):
    options = DataOptions(source="heart-disease", root=data_root)
    _, fitting = cut(options, tmp_path / "sites")
    whole, parts = load(options), load(fitting)
    assert parts.names == whole.names
    assert torch.equal(parts.inputs, whole.inputs)
    assert torch.equal(parts.labels, whole.labels)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "sorted", "quantity"])
def test_rows_of_one_file_are_dealt_to_sites(tmp_path, partition):
    options = DataOptions(source="breast-cancer", partition=partition, alpha=5.0)
    files, fitting = cut(options, tmp_path, sites=4)
    rows = [pd.read_csv(path) for path in files.values()]
    assert sum(map(len, rows)) == 569
    assert sum((table["label"] == "malignant").sum() for table in rows) == 212
    assert load(fitting).names == ("site-0", "site-1", "site-2", "site-3")


def test_arrays_stay_arrays(tmp_path):
    images = np.arange(40 * 12, dtype=np.uint8).reshape(40, 3, 2, 2)
    np.savez(tmp_path / "all.npz", X=images, y=np.arange(40) % 2)
    options = DataOptions(source=str(tmp_path / "all.npz"), partition="iid")
    files, fitting = cut(options, tmp_path / "sites", sites=2)
    back = np.concatenate([np.load(path)["X"] for path in files.values()])
    assert sorted(map(bytes, back)) == sorted(map(bytes, images))
    assert load(fitting).input_shape == (3, 2, 2)


def test_findings_keep_what_is_unknown(tmp_path):
    table = pd.DataFrame({"x": range(30), "edema": [1, 0, None] * 10, "mass": [0, 0, 1] * 10})
    table.to_csv(tmp_path / "all.csv", index=False)
    options = DataOptions(
        source=str(tmp_path / "all.csv"), label=["edema", "mass"], partition="iid"
    )
    _, fitting = cut(options, tmp_path / "sites", sites=2)
    data = load(fitting)
    assert data.classes == ("edema", "mass")
    assert int((data.labels == -1).sum()) == 10


def test_files_of_the_sites_are_used_as_they_are(tmp_path):
    for name in ("north", "south"):
        table = pd.DataFrame({"x": range(20), "label": [0, 1] * 10})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    options = DataOptions(source=[str(tmp_path / "north.csv"), str(tmp_path / "south.csv")])
    files, fitting = cut(options, tmp_path / "unused")
    assert files == {name: tmp_path / f"{name}.csv" for name in ("north", "south")}
    assert fitting == options
    assert not (tmp_path / "unused").exists()
    with pytest.raises(UserError, match="--sites 3: the data are 2 files"):
        cut(options, tmp_path / "unused", sites=3)


def test_what_cannot_be_cut(tmp_path):
    own = tmp_path / "own.csv"
    pd.DataFrame({"x": range(4), "label": [0, 1] * 2, "who": list("aabb")}).to_csv(own, index=False)
    options = DataOptions(source=str(own), client="who")
    with pytest.raises(UserError, match="has 2 of its own"):
        cut(options, tmp_path / "sites", sites=3)
    with pytest.raises(UserError, match="has no clients of its own"):
        cut(DataOptions(partition="column"), tmp_path / "sites")
    with pytest.raises(UserError, match="'disjoint-classes' is for simulations"):
        cut(DataOptions(partition="disjoint-classes"), tmp_path / "sites")
    with pytest.raises(UserError, match="gets no row"):
        cut(DataOptions(source=str(own), drop=["who"], alpha=1e-3), tmp_path / "sites", sites=4)


def test_a_site_named_like_a_path(tmp_path):
    path = tmp_path / "all.csv"
    pd.DataFrame({"x": range(4), "label": [0, 1] * 2, "who": ["../a", "b"] * 2}).to_csv(path)
    with pytest.raises(UserError, match="cannot be the name of a file"):
        cut(DataOptions(source=str(path), client="who"), tmp_path / "sites")
    assert not (tmp_path / "sites").exists()
