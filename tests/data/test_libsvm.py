"""LIBSVM files against scikit-learn's writer, and the real a9a."""

import numpy as np
import pytest
import torch
from sklearn.datasets import dump_svmlight_file

from fedsaddle.data import DataOptions, load
from fedsaddle.data.sources import storage
from fedsaddle.data.sources.libsvm import is_libsvm
from fedsaddle.errors import UserError


@pytest.fixture
def write(tmp_path):
    """Write a matrix in LIBSVM's format; the path."""

    def write(name, X, y):
        path = tmp_path / name
        dump_svmlight_file(X, y, str(path), zero_based=False)
        return str(path)

    return write


def rows(n=30, width=5, seed=0):
    random = np.random.default_rng(seed)
    X = random.integers(0, 3, (n, width)) * random.integers(0, 2, (n, width)) / 4
    X[0] = 1  # every index occurs
    return X, np.where(np.arange(n) % 3 == 0, 1, -1)


@pytest.mark.parametrize("name", ["train.libsvm", "train.SVM", "train", "train.t", "x.svm.t"])
def test_values_are_those_written(write, name):
    X, y = rows()
    data = load(DataOptions(source=write(name, X, y), clients=3))
    assert np.array_equal(data.inputs.numpy(), X.astype(np.float32))
    assert data.labels.tolist() == (y == 1).tolist()
    assert data.classes == ("-1", "1")
    assert data.preprocessing is None


def test_the_width_is_the_largest_of_all_files(write):
    X, y = rows()
    narrow = X.copy()
    narrow[:, 4] = 0
    paths = [write("a", X, y), write("a.t", narrow, y)]
    data = load(DataOptions(source=paths, clients=2, validation=0))
    assert data.input_shape == (5,)
    assert data.names == ("client-0", "client-1", "held-out")
    assert data.test.counts.tolist() == [0, 0, 30]
    alone = DataOptions(source=paths[1], clients=2)
    assert load(alone).input_shape == (4,)
    assert load(alone.model_copy(update={"width": 7})).input_shape == (7,)
    with pytest.raises(UserError, match=r"data.width: .*a.t has a feature 4, more than 3"):
        load(alone.model_copy(update={"width": 3}))


def test_several_files_are_sites(write):
    X, y = rows()
    paths = [write("north.svm", X, y), write("south.svm", X[:9], y[:9]), write("both.t", X, y)]
    data = load(DataOptions(source=paths, validation=0))
    assert data.names == ("north", "south", "held-out")
    assert data.train.counts.tolist() == [30, 9, 0]
    folder = load(DataOptions(source=str(paths[0]).rpartition("/")[0]))
    assert folder.names == ("north", "south")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.svm: has no rows"),
        ("1 1:2\n0 3:", "a.svm: cannot be read as LIBSVM"),
        ("1 1:2 x\n", "a.svm: cannot be read as LIBSVM"),
        ("age,label\n3,1\n", "a.svm: cannot be read as LIBSVM"),
        ("1 0:2\n", "a.svm: cannot be read as LIBSVM"),
        ("1 1:nan\n0 1:2\n", "must be finite"),
        ("1 4294967:1\n-1 1:1\n" * 200, "GB when dense"),
    ],
)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "a.svm"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load(DataOptions(source=str(path), clients=1))


def test_kinds_do_not_mix(write, tmp_path):
    (tmp_path / "b.csv").write_text("age,label\n3,1\n")
    source = [write("a.svm", *rows()), str(tmp_path / "b.csv")]
    with pytest.raises(UserError, match="mixes LIBSVM files with others"):
        load(DataOptions(source=source))
    with pytest.raises(UserError, match=r"data.label does not apply to LIBSVM"):
        load(DataOptions(source=source[0], label="y"))


def test_a_name_without_suffix_must_look_like_it(tmp_path):
    (tmp_path / "notes").write_text("to be or not to be\n")
    assert not is_libsvm(tmp_path / "notes")
    with pytest.raises(UserError, match="notes: not a CSV"):
        load(DataOptions(source=str(tmp_path / "notes")))
    with pytest.raises(UserError, match=r"a9a is missing; .*fedsaddle data fetch a9a"):
        load(DataOptions(source="a9a", root=tmp_path))


def test_large_matrices_are_memory_mapped(write, monkeypatch):
    source = write("a.svm", *rows(50))
    plain = load(DataOptions(source=source))
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 100)
    mapped = load(DataOptions(source=source))
    assert isinstance(mapped.inputs, storage.Mapped)
    assert torch.equal(mapped.inputs[torch.arange(50)], plain.inputs)


@pytest.mark.data
def test_the_real_a9a(data_root):
    data = load(DataOptions(source="a9a", root=data_root, validation=0))
    assert (len(data.train.indices), len(data.test.indices)) == (32561, 16281)
    assert data.input_shape == (123,)
    assert int(data.labels[data.train.indices].sum()) == 7841
    assert int(data.labels[data.test.indices].sum()) == 3846
    first = np.flatnonzero(data.inputs[0].numpy()) + 1
    assert first.tolist() == [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]
    assert set(np.unique(data.inputs.numpy()).tolist()) == {0, 1}
    alone = load(DataOptions(source=str(data_root / "libsvm/a9a.t")))
    assert alone.input_shape == (122,)
