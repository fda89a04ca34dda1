"""MNIST, Fashion-MNIST and QMNIST: idx files, and the publisher's test rows."""

import gzip
import struct
import time
from functools import partial

import numpy as np
import pytest
import torch

from fedsaddle import train
from fedsaddle.data import DataOptions, load
from fedsaddle.data.labels import encode
from fedsaddle.data.sources import storage
from fedsaddle.errors import UserError
from fedsaddle.runs.api import make_algorithm

zipped = partial(gzip.compress, mtime=0)  # the same bytes, and so the same test names, always


def idx(values, kind=0x08):
    """The idx bytes of an array."""
    values = np.asarray(values)
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    return struct.pack(">HBB", 0, kind, values.ndim) + sizes + values.tobytes()


def digits(n, seed=0):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (n, 28, 28)).astype(np.uint8)
    return images, (np.arange(n) % 10).astype(np.uint8)


def write_digits(root, folder="mnist", n_train=40, n_test=20):
    """A small MNIST in the publisher's layout; its images and labels."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    found = []
    for prefix, n, seed in (("train", n_train, 0), ("t10k", n_test, 1)):
        images, labels = digits(n, seed)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            (root / folder / f"{prefix}-{name}-ubyte.gz").write_bytes(zipped(idx(values)))
        found += [images, labels]
    return found


def write_writers(root, labels, name):
    table = np.zeros((len(labels), 8), dtype=">i4")
    table[:, 0] = labels
    table[:, 2] = 100 + np.arange(len(labels)) // 15
    path = root / "qmnist-writers" / f"qmnist-{name}-labels-idx2-int.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zipped(idx(table, kind=0x0C)))


def small(root, **options):
    return load(
        DataOptions(**{"source": "mnist", "root": root, "clients": 3} | options), binary=False
    )


# small files


def test_training_rows_go_to_clients_and_the_publishers_test_rows_to_one_more_site(tmp_path):
    images, labels, test_images, test_labels = write_digits(tmp_path)
    data = small(tmp_path, partition="iid")
    assert data.names == ("client-0", "client-1", "client-2", "held-out")
    assert data.inputs.dtype == torch.uint8
    assert data.input_shape == (1, 28, 28)
    assert data.classes == tuple("0123456789")
    own = np.concatenate([data.train.indices, data.validation.indices])
    assert sorted(own.tolist()) == list(range(40))
    assert len(data.train[3]) == len(data.validation[3]) == 0
    assert data.test.counts.tolist() == [0, 0, 0, 20]
    test = torch.from_numpy(data.test[3])
    assert torch.equal(data.inputs[test][:, 0], torch.from_numpy(test_images))
    assert data.labels[test].tolist() == test_labels.tolist()
    assert torch.equal(data.inputs[:40, 0], torch.from_numpy(images))
    assert data.labels[:40].tolist() == labels.tolist()


def test_clients_hold_out_rows_too_if_asked(tmp_path):
    write_digits(tmp_path, n_train=120)
    data = small(tmp_path, partition="iid", test=0.25, validation=0)
    assert data.test.counts.tolist() == [10, 10, 10, 20]
    assert len(data.validation.indices) == 0


def test_positive_ratio_thins_training_rows_only(tmp_path):
    write_digits(tmp_path, n_train=100)
    data = load(
        DataOptions(source="mnist", root=tmp_path, clients=2, positive="3", positive_ratio=0.05)
    )
    own = torch.from_numpy(np.concatenate([data.train.indices, data.validation.indices]))
    assert data.labels[own].float().mean() == pytest.approx(0.05, abs=0.01)
    assert len(data.test[2]) == 20


def test_files_may_be_unpacked(tmp_path):
    write_digits(tmp_path)
    before = small(tmp_path)
    for path in (tmp_path / "mnist").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert torch.equal(small(tmp_path).inputs, before.inputs)


def test_fashion_classes_have_names_in_the_publishers_order(tmp_path):
    write_digits(tmp_path, "fashion-mnist")
    data = small(tmp_path, source="fashion-mnist")
    assert data.classes[0] == "T-shirt/top"
    assert data.classes[9] == "Ankle boot"
    assert data.labels[:10].tolist() == list(range(10))
    named, numbered = (small(tmp_path, source="fashion-mnist", positive=p) for p in ("Bag", "8"))
    assert named.classes == numbered.classes == ("not Bag", "Bag")
    assert torch.equal(named.labels, numbered.labels)


def test_writers_are_clients(tmp_path):
    _, labels, _, test_labels = write_digits(tmp_path)
    write_writers(tmp_path, labels, "train")
    write_writers(tmp_path, np.append(test_labels, 3), "test")  # QMNIST has more test rows
    data = small(tmp_path, source="qmnist")
    assert data.names == ("writer-100", "writer-101", "writer-102", "held-out")
    own = (data.train.counts + data.validation.counts).tolist()
    assert own == [15, 15, 10, 0]
    assert data.test.counts.tolist() == [0, 0, 0, 20]


def test_writers_of_other_digits_are_refused(tmp_path):
    _, labels, _, test_labels = write_digits(tmp_path)
    write_writers(tmp_path, labels, "train")
    write_writers(tmp_path, test_labels[::-1], "test")
    with pytest.raises(UserError, match=r"qmnist-test-labels.*not those of .*t10k-images"):
        small(tmp_path, source="qmnist")
    write_writers(tmp_path, labels[:5], "train")
    with pytest.raises(UserError, match="at least 40 rows"):
        small(tmp_path, source="qmnist")


# which classes are positive


@pytest.mark.parametrize(
    ("positive", "members", "name"),
    [
        ("0", [0], "0"),
        ("0,2, 1", [0, 1, 2], "{0,1,2}"),
        ("first-half", [0, 1, 2, 3, 4], "{0,1,2,3,4}"),
        ("7,", None, None),
        ("0,1,12", None, None),
        ("0,1,2,3,4,5,6,7,8,9", None, None),
    ],
)
def test_positive_may_be_several_classes(tmp_path, positive, members, name):
    _, labels, *_ = write_digits(tmp_path)
    options = DataOptions(source="mnist", root=tmp_path, positive=positive)
    if members is None:
        with pytest.raises(UserError, match=r"data\.positive"):
            load(options)
        return
    data = load(options)
    assert data.classes == (f"not {name}", name)
    assert data.labels[:40].tolist() == np.isin(labels, members).astype(int).tolist()


def test_half_of_two_classes_is_one_and_commas_are_refused():
    assert encode(np.array(["a", "b"]), "first-half", True, "x")[1] == ("b", "a")
    assert encode(np.array(["a", "b", "c"]), "first-half", True, "x")[1] == ("not a", "a")
    known = np.array(["a, or b", "c", "d", "e"])
    assert encode(known, "a, or b", True, "x")[0].tolist() == [1, 0, 0, 0]
    with pytest.raises(UserError, match="has a comma, so only one value can be positive"):
        encode(known, "first-half", True, "x")


# broken files

IMAGES = "mnist/train-images-idx3-ubyte.gz"
LABELS = "mnist/train-labels-idx1-ubyte.gz"
good_images, good_labels = digits(40)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, zipped(idx(good_labels)), "begins with 00000801 and must .* 00000803"),
        (IMAGES, zipped(b""), "begins with nothing"),
        (IMAGES, zipped(idx(good_images)[:9]), "ends within its header"),
        (IMAGES, zipped(idx(good_images)[:-1]), "ends after 31359 of 31360 bytes"),
        (IMAGES, zipped(idx(good_images) + b"x"), "more data than its header says"),
        (IMAGES, zipped(idx(good_images))[:-2000], "cannot be read as idx"),
        (IMAGES, zipped(idx(good_images))[:-8] + bytes(8), "cannot be read as idx"),
        (IMAGES, b"not gzip at all", "cannot be read as idx"),
        (IMAGES, zipped(idx(good_images[:, :27])), "27x28 and must be 28x28"),
        (IMAGES, zipped(idx(good_images[:0])), "has no rows|0 images"),
        (IMAGES, zipped(struct.pack(">IIII", 0x803, 2**32 - 1, 28, 28)), "too small for"),
        (LABELS, zipped(idx(good_labels[:39])), "39 labels, but .* has 40 images"),
        (LABELS, zipped(idx(good_labels + 1)), "labels must lie in 0..9"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, name, content, message):
    write_digits(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        small(tmp_path)
    assert str(tmp_path / "mnist") in str(error.value)


@pytest.mark.parametrize("source", ["mnist", "fashion-mnist", "qmnist", "cifar-10", "cifar-100"])
def test_missing_files_say_what_to_do(tmp_path, source):
    with pytest.raises(UserError, match="is missing; get it with 'fedsaddle data fetch") as error:
        small(tmp_path, source=source)
    assert str(tmp_path) in str(error.value)


def test_image_options_are_for_image_files(tmp_path):
    write_digits(tmp_path)
    with pytest.raises(UserError, match="image_size is for image files, and mnist has none"):
        small(tmp_path, image_size=16)


# larger than memory


def test_large_sets_are_memory_mapped_and_equal(tmp_path, monkeypatch):
    write_digits(tmp_path)
    plain = small(tmp_path)
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    mapped = small(tmp_path)
    assert isinstance(mapped.inputs, storage.Mapped)
    rows = torch.tensor([59, 0, 7])
    assert torch.equal(mapped.take(rows), plain.take(rows))
    assert mapped.train.indices.tolist() == plain.train.indices.tolist()
    (file,) = (tmp_path / "mnist" / storage.CACHE).iterdir()
    written = file.stat().st_mtime_ns
    small(tmp_path)
    assert file.stat().st_mtime_ns == written  # once
    write_digits(tmp_path, n_train=50)
    assert len(small(tmp_path).inputs) == 70  # a changed file is read again
    (anew,) = (tmp_path / "mnist" / storage.CACHE).iterdir()
    assert anew != file


def test_a_damaged_cache_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    write_digits(tmp_path)
    small(tmp_path)
    (file,) = (tmp_path / "mnist" / storage.CACHE).iterdir()
    file.write_bytes(b"short")
    everything = torch.arange(60)
    mapped = small(tmp_path).inputs[everything]
    monkeypatch.undo()
    assert torch.equal(mapped, small(tmp_path).inputs)


def test_a_broken_file_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    write_digits(tmp_path)
    (tmp_path / IMAGES).write_bytes(zipped(idx(good_images)[:-1]))
    with pytest.raises(UserError, match="ends after"):
        small(tmp_path)
    assert list((tmp_path / "mnist" / storage.CACHE).iterdir()) == []


def test_a_full_disk_is_said_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    write_digits(tmp_path)
    with pytest.raises(UserError, match="do not fit on the disk"):
        small(tmp_path)


def test_the_cache_goes_elsewhere_when_the_data_are_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    monkeypatch.setattr(storage.os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_digits(tmp_path)
    assert small(tmp_path).inputs.path.is_relative_to(tmp_path / "cache" / "fedsaddle")


# the real ones


@pytest.mark.data
def test_mnist(data_root):
    started = time.perf_counter()
    data = load(DataOptions(source="mnist", root=data_root, positive="0", partition="iid"))
    assert time.perf_counter() - started < 6  # well below 2 s on an idle machine
    assert tuple(data.inputs.shape) == (70000, 1, 28, 28)
    assert int(data.labels[:60000].sum()) == 5923
    assert int(data.labels[60000:].sum()) == 980
    assert data.inputs[0, 0, 5, 12:16].tolist() == [3, 18, 18, 18]
    assert len(data.test[8]) == 10000
    digits = load(DataOptions(source="mnist", root=data_root), binary=False).labels
    assert digits[:5].tolist() == [5, 0, 4, 1, 9]
    assert digits[60000:60005].tolist() == [7, 2, 1, 0, 4]


@pytest.mark.data
def test_digits_of_many_clients_train(data_root):
    options = DataOptions(
        source="mnist",
        root=data_root,
        partition="sorted",
        clients=500,
        similarity=0.5,
        positive="0",
    )
    # The usual step of 0.3 is for a few scaled columns; 784 pixels need a smaller one.
    method = make_algorithm({"name": "cdma-one", "learning_rate": 0.03})
    result = train("auc", options, method, rounds=10, federation={"clients_per_round": 8})
    assert result.metrics["test/auc"][-1] > 0.97


@pytest.mark.data
def test_fashion_mnist(data_root):
    data = load(DataOptions(source="fashion-mnist", root=data_root), binary=False)
    assert torch.bincount(data.labels[:60000]).tolist() == [6000] * 10
    assert torch.bincount(data.labels[60000:]).tolist() == [1000] * 10
    assert data.classes[data.labels[0]] == "Ankle boot"


@pytest.mark.data
def test_qmnist(data_root):
    data = load(DataOptions(source="qmnist", root=data_root, validation=0), binary=False)
    assert data.n_clients == 540
    counts = data.train.counts[:-1]
    assert (counts.min(), counts.max(), counts.sum()) == (19, 131, 60000)
    assert data.names[-1] == "held-out"
    assert 0 in data.train[data.names.index("writer-2154")]
