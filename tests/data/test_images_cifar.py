"""CIFAR, and pickles that want to run code."""

import codecs
import os
import pickle

import numpy as np
import pytest
import torch

from fedsaddle.data import DataOptions, load
from fedsaddle.data.sources import storage
from fedsaddle.data.sources.unpickle import unpickle
from fedsaddle.errors import UserError

NAMES = ["airplane", "bird", "cat"]


def batch(n, seed=0, key="labels", **more):
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, (n, 3072)).astype(np.uint8)
    return {b"data": data, key.encode(): [i % 3 for i in range(n)], b"filenames": [b"a.png"]} | more


def dump(path, content, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    path.write_bytes(pickle.dumps(text, protocol=protocol))


def write_10(root):
    folder = root / "cifar-10" / "cifar-10-batches-py"
    dump(folder / "batches.meta", {"label_names": NAMES})
    dump(folder / "data_batch_2", batch(6, 2))
    dump(folder / "data_batch_1", batch(9, 1))
    dump(folder / "test_batch", batch(6, 3))
    return folder


def read(root, source="cifar-10"):
    return load(DataOptions(source=source, root=root, clients=2, partition="iid"), binary=False)


def test_batches_in_order_then_the_test_batch(tmp_path):
    write_10(tmp_path)
    data = read(tmp_path)
    assert tuple(data.inputs.shape) == (21, 3, 32, 32)
    assert data.inputs.dtype == torch.uint8
    assert data.classes == tuple(NAMES)
    expected = batch(9, 1)[b"data"][4].reshape(3, 32, 32)
    assert np.array_equal(data.inputs[4].numpy(), expected)
    assert data.labels[:9].tolist() == [0, 1, 2] * 3
    assert data.test.counts.tolist() == [0, 0, 6]


def test_large_sets_are_memory_mapped(tmp_path, monkeypatch):
    write_10(tmp_path)
    plain = read(tmp_path)
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    mapped = read(tmp_path)
    assert isinstance(mapped.inputs, storage.Mapped)
    assert torch.equal(mapped.inputs[torch.arange(21)], plain.inputs)


def test_fine_labels_of_a_hundred(tmp_path):
    folder = tmp_path / "cifar-100" / "cifar-100-python"
    dump(folder / "meta", {"fine_label_names": NAMES, "coarse_label_names": ["x"]})
    for name in ("train", "test"):
        dump(folder / name, batch(6, key="fine_labels", coarse_labels=[0] * 6))
    data = read(tmp_path, "cifar-100")
    assert data.classes == tuple(NAMES)
    assert len(data.test[2]) == 6


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_of_either_order_survive(tmp_path, protocol):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    dump(tmp_path / "a", {"c": array, "f": np.asfortranarray(array)}, protocol)
    found = unpickle(tmp_path / "a")
    assert np.array_equal(found["c"], array)
    assert np.array_equal(found["f"], array)


class Exploit:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path, protocol):
    folder = write_10(tmp_path)
    mark = tmp_path / "was-here"
    for call, arguments in (
        (os.system, (f"touch {mark}",)),
        (eval, (f"open({str(mark)!r}, 'w')",)),
        (open, (str(mark), "w")),
        (getattr, ("", "join")),
        (np.save, (str(mark), [1])),
    ):
        dump(folder / "data_batch_1", batch(3, evil=Exploit(call, *arguments)), protocol)
        with pytest.raises(UserError, match=r"data_batch_1: refused .*it asks for") as error:
            read(tmp_path)
        assert "nothing in it was run" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10"]


def test_only_arrays_of_bytes_and_plain_bytes_are_rebuilt(tmp_path):
    class Untyped:
        def __reduce__(self):
            return (*np.zeros(1, np.uint8).__reduce__()[:2], (1, (1,), "u1", False, b"x"))

    (tmp_path / "a").write_bytes(pickle.dumps({"a": Untyped()}, 2))
    with pytest.raises(UserError, match="an array of unknown type"):
        unpickle(tmp_path / "a")
    (tmp_path / "a").write_bytes(pickle.dumps({"a": Exploit(codecs.encode, "x", "rot13")}, 2))
    with pytest.raises(UserError, match="bytes encoded as 'rot13'"):
        unpickle(tmp_path / "a")
    (tmp_path / "a").write_bytes(pickle.dumps({"a": b"\xff"}, 2))
    assert unpickle(tmp_path / "a") == {"a": b"\xff"}


def test_a_pickle_cannot_change_what_the_reader_uses(tmp_path):
    # GLOBAL numpy dtype, then BUILD with attributes for it.
    payload = b"\x80\x02cnumpy\ndtype\n}X\x03\x00\x00\x00newX\x01\x00\x00\x001sb."
    (tmp_path / "a").write_bytes(payload)
    with pytest.raises(UserError):
        unpickle(tmp_path / "a")
    from fedsaddle.data.sources.unpickle import _Dtype

    assert not hasattr(_Dtype, "new")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1", b"\x80\x02}", "refused"),
        ("data_batch_1", b"", "refused"),
        ("data_batch_1", pickle.dumps([1]), "must hold a dictionary"),
        ("data_batch_1", pickle.dumps({"labels": [1]}), "'data' must be an array of bytes"),
        ("data_batch_1", pickle.dumps({"data": np.zeros((1, 3072))}, 2), "not of bytes"),
        ("data_batch_1", pickle.dumps({"data": np.zeros((1, 9), np.uint8)}, 2), "3072 columns"),
        ("test_batch", pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}, 2), "whole numbers"),
        (
            "test_batch",
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0, 1]}, 2),
            "1 images but 2 labels",
        ),
        (
            "test_batch",
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [3]}, 2),
            "labels must lie in 0..2",
        ),
        ("batches.meta", pickle.dumps({"label_names": 3}), "list of class names"),
    ],
)
def test_broken_batches_are_refused_by_name(tmp_path, name, content, message):
    path = write_10(tmp_path) / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["data_batch_?", "test_batch", "batches.meta"])
def test_missing_batches_are_named(tmp_path, name):
    folder = write_10(tmp_path)
    for path in folder.glob(name):
        path.unlink()
    with pytest.raises(UserError, match="is missing; get it with 'fedsaddle data fetch cifar-10'"):
        read(tmp_path)


@pytest.mark.data
def test_cifar_10(data_root):
    data = load(DataOptions(source="cifar-10", root=data_root), binary=False)
    assert torch.bincount(data.labels[-10000:]).tolist() == [1000] * 10
    assert data.classes[data.labels[0]] == "frog"
    assert data.inputs[0, :, 0, 0].tolist() == [59, 62, 63]
    assert data.classes[data.labels[-10000]] == "cat"
    assert data.inputs[-10000, :, 0, 0].tolist() == [158, 112, 49]
    assert len(data.test[8]) == 10000


@pytest.mark.data
def test_cifar_100(data_root):
    data = load(DataOptions(source="cifar-100", root=data_root, positive="first-half", clients=100))
    assert len(data.classes[1].split(",")) == 50
    assert len(data.labels) == 10000
    assert int(data.labels[:8000].sum()) == 4000
    assert data.test.counts[-1] == 2000
