"""STL-10's binary files and MedMNIST's NPZ files."""

import io
import zipfile

import numpy as np
import pytest
import torch

from fedsaddle.data import DataOptions, load
from fedsaddle.data.sources import storage
from fedsaddle.errors import UserError

random = np.random.default_rng(0)


def read(source, root=None, binary=False, **options):
    chosen = DataOptions(source=source, root=root, clients=2, partition="iid", **options)
    return load(chosen, binary=binary)


# STL-10


def write_stl(root):
    folder = root / "stl-10" / "stl10_binary"
    folder.mkdir(parents=True)
    images = random.integers(0, 256, (18, 3, 96, 96)).astype(np.uint8)
    labels = (np.arange(18) % 10 + 1).astype(np.uint8)
    for name, rows in (("train", slice(0, 12)), ("test", slice(12, 18))):
        # The publisher's order: an image's columns first.
        images[rows].transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")
        labels[rows].tofile(folder / f"{name}_y.bin")
    return folder, images, labels


def test_stl_images_are_upright_and_labels_start_at_one(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK", 5 * 3 * 96 * 96)  # several blocks
    _, images, labels = write_stl(tmp_path)
    data = read("stl-10", tmp_path)
    assert np.array_equal(data.inputs.numpy(), images)
    assert data.labels.tolist() == (labels - 1).tolist()
    assert data.classes[:3] == ("airplane", "bird", "car")
    assert data.test.counts.tolist() == [0, 0, 6]
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1)
    assert np.array_equal(read("stl-10", tmp_path).inputs[torch.arange(18)].numpy(), images)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train_X.bin", b"abc", r"train_X.bin: has 3 bytes, but 331776 are needed"),
        ("train_y.bin", bytes(12), "labels must lie in 1..10, but one is 0"),
        ("train_y.bin", bytes([11] * 12), "labels must lie in 0..9"),
        ("train_y.bin", b"", "train_X.bin: has 331776 bytes, but 0"),
        ("test_X.bin", None, "test_X.bin is missing; get it with 'fedsaddle data fetch stl-10'"),
    ],
)
def test_broken_stl_files_are_refused_by_name(tmp_path, name, content, message):
    folder, *_ = write_stl(tmp_path)
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read("stl-10", tmp_path)


# MedMNIST


def splits(shape=(28, 28), columns=1, n_classes=2):
    found = {}
    for split, n in (("train", 20), ("val", 6), ("test", 8)):
        found[f"{split}_images"] = random.integers(0, 256, (n, *shape)).astype(np.uint8)
        labels = (np.arange(n * columns) % n_classes).reshape(n, columns)
        found[f"{split}_labels"] = labels.astype(np.uint8)
    return found


@pytest.fixture
def save(tmp_path):
    def save(arrays, name="breastmnist"):
        (tmp_path / "medmnist").mkdir(exist_ok=True)
        path = tmp_path / "medmnist" / f"{name}.npz"
        np.savez_compressed(path, **arrays)
        return path

    return save


def test_the_publishers_three_parts_are_kept(tmp_path, save):
    arrays = splits()
    save(arrays)
    data = read("breastmnist", tmp_path, binary=True)
    assert data.classes == ("normal, benign", "malignant")  # the illness is positive
    assert data.train.counts.sum() == 20
    assert data.validation.counts.tolist() == [0, 0, 6]
    assert data.test.counts.tolist() == [0, 0, 8]
    assert np.array_equal(data.inputs[-8:, 0].numpy(), arrays["test_images"])
    assert data.labels[-8:].tolist() == (1 - arrays["test_labels"][:, 0]).tolist()
    more = read("breastmnist", tmp_path, validation=0.2)
    assert more.validation.counts.tolist() == [2, 2, 6]


def test_colours_come_first_and_a_path_will_do(tmp_path, save):
    arrays = splits((28, 28, 3), n_classes=4)
    path = save(arrays, "mine")
    data = read(str(path))
    assert data.input_shape == (3, 28, 28)
    assert data.classes == ("0", "1", "2", "3")
    assert np.array_equal(data.inputs[3].numpy(), arrays["train_images"][3].transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3)])
def test_arrays_in_fortrans_order_are_the_same(save, shape):
    arrays = splits(shape)
    plain = read(str(save(arrays)))
    found = read(str(save({name: np.asfortranarray(a) for name, a in arrays.items()})))
    assert torch.equal(found.inputs, plain.inputs)
    assert torch.equal(found.labels, plain.labels)


def test_without_validation_the_publishers_rows_train(tmp_path, save):
    save(splits())
    data = read("breastmnist", tmp_path, validation=0)
    assert data.train.counts.sum() == 26
    assert data.validation.counts.sum() == 0
    assert data.test.counts.tolist() == [0, 0, 8]


def test_a_file_without_validation_rows_leaves_them_to_the_clients(save):
    arrays = {name: array for name, array in splits().items() if "val" not in name}
    data = read(str(save(arrays)))
    assert data.validation.counts.tolist() == [1, 1, 0]


def test_one_of_several_findings_is_chosen_by_number(tmp_path, save):
    arrays = splits(columns=3)
    save(arrays, "chestmnist")
    data = read("chestmnist", tmp_path, binary=True, positive="2")
    assert data.classes == ("not 2", "2")
    assert data.labels[:20].tolist() == arrays["train_labels"][:, 2].tolist()
    for positive in (None, "3", "x"):
        with pytest.raises(UserError, match="has 3 findings; choose one by its number, 0 to 2"):
            read("chestmnist", tmp_path, binary=True, positive=positive)


def test_all_findings_together(tmp_path, save):
    arrays = splits(columns=14, n_classes=3)
    arrays = {k: a.astype(np.int8) - 1 if "labels" in k else a for k, a in arrays.items()}
    path = save(arrays, "chestmnist")
    data = read("chestmnist", tmp_path)
    assert data.task == "multilabel"
    assert data.classes[:2] == ("atelectasis", "cardiomegaly")
    assert len(data.classes) == 14
    labels = [arrays[f"{split}_labels"] for split in ("train", "val", "test")]
    assert np.array_equal(data.labels.numpy(), np.concatenate(labels))
    assert data.names[-1] == "held-out"
    with pytest.raises(UserError, match=r"finding 2 is unknown \(-1\) in some rows"):
        read("chestmnist", tmp_path, positive="2")
    assert read(str(save(splits(columns=2), "mine"))).classes == ("0", "1")
    with pytest.raises(UserError, match=r"data\.label does not apply to"):
        read(str(path), label=["a", "b"])


def test_large_npz_files_are_memory_mapped(save, monkeypatch):
    path = str(save(splits((28, 28, 3))))
    plain = read(path)
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 1000)
    mapped = read(path)
    assert isinstance(mapped.inputs, storage.Mapped)
    assert torch.equal(mapped.inputs[torch.arange(34)], plain.inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": None}, "has no array 'train_labels'"),
        ({"train_labels": np.zeros((19, 1), int)}, "one per image"),
        ({"train_labels": np.zeros((20, 1))}, "must be whole numbers"),
        ({"train_labels": np.full((20, 1), -1)}, "must lie in 0..999"),
        ({"train_labels": np.full((20, 1), 2)}, "labels must lie in 0..1"),
        ({"train_labels": np.zeros((20, 2), int)}, "differ in their number of columns"),
        ({"train_images": np.zeros((20, 28, 28))}, "must be bytes of shape"),
        ({"train_images": np.zeros((20, 28), np.uint8)}, "must be bytes of shape"),
        ({"train_images": np.zeros((0, 28, 28), np.uint8)}, "must be bytes of shape"),
        ({"val_images": np.zeros((6, 14, 14), np.uint8)}, "but training's"),
        ({"train_images": np.full((20, 28, 28), None)}, "holds Python objects"),
        ({"train_images": None}, "has no array 'train_images'"),
    ],
)
def test_wrong_arrays_are_refused_by_name(tmp_path, save, change, message):
    arrays = {name: a for name, a in (splits() | change).items() if a is not None}
    path = save(arrays)
    with pytest.raises(UserError, match=message) as error:
        read("breastmnist", tmp_path)
    assert str(path) in str(error.value)


def test_a_member_larger_than_its_shape_is_refused_before_it_is_unpacked(tmp_path, save):
    path = save(splits())
    file = io.BytesIO()
    np.save(file, splits()["train_images"])
    arrays = {name: array for name, array in splits().items() if name != "train_images"}
    np.savez_compressed(path, **arrays)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_images.npy", file.getvalue() + bytes(50_000_000))
    assert path.stat().st_size < 200_000
    with pytest.raises(UserError, match=r"unpacks to 500158.* bytes, but its shape"):
        read("breastmnist", tmp_path)


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_other_versions_of_arrays(tmp_path, save, version):
    arrays = splits()
    path = save({name: a for name, a in arrays.items() if name != "train_images"})
    file = io.BytesIO()
    np.lib.format.write_array(file, arrays["train_images"], version=version)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("train_images.npy", file.getvalue())
    if version == (2, 0):
        found = read("breastmnist", tmp_path).inputs[:20, 0].numpy()
        assert np.array_equal(found, arrays["train_images"])
    else:
        with pytest.raises(UserError, match=r"NPY version \(3, 0\)"):
            read("breastmnist", tmp_path)


def test_damaged_archives_are_refused_by_name(tmp_path, save):
    path = save(splits())
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"breastmnist.npz: cannot be read as NPZ"):
        read("breastmnist", tmp_path)
    middle = 5000  # inside the training images
    path.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(UserError, match=r"breastmnist.npz: cannot be read as NPZ"):
        read("breastmnist", tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "positives"),
    [("pneumoniamnist", (4708, 524, 624), 3494), ("breastmnist", (546, 78, 156), 147)],
)
def test_medmnist(data_root, name, rows, positives):
    data = read(name, data_root, binary=True)
    parts = (data.train, data.validation, data.test)
    assert tuple(len(part.indices) for part in parts) == rows
    assert data.positive_ratio == positives / rows[0]
    with np.load(data_root / "medmnist" / f"{name}.npz") as arrays:
        assert np.array_equal(data.inputs[: rows[0], 0].numpy(), arrays["train_images"])
        test = torch.from_numpy(data.test[2])
        assert np.array_equal(data.inputs[test][:, 0].numpy(), arrays["test_images"])
