"""Image files: lists of them, HAM10000, and training from files."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedsaddle import train
from fedsaddle.data import DataOptions, load
from fedsaddle.data.sources import images, storage
from fedsaddle.errors import UserError

random = np.random.default_rng(0)


def picture(path, size=(40, 30), mode="RGB", value=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    if value is None:
        shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
        image = Image.fromarray(random.integers(0, 256, shape).astype(np.uint8))
    else:
        image = Image.new(mode, size, value)
    image.save(path)
    return path


@pytest.fixture
def listed(tmp_path):
    """Twelve bright or dark images of two sites, and their list."""
    rows = []
    for i in range(24):
        name = f"{'north' if i % 3 else 'south'}/{i}.png"
        bright = i % 2
        picture(tmp_path / name, value=(200 * bright + 10 * (i % 5), 100, 50))
        rows.append((name, "ill" if bright else "well", name.split("/")[0], 30 + i))
    path = tmp_path / "images.csv"
    pd.DataFrame(rows, columns=["path", "label", "site", "age"]).to_csv(path, index=False)
    return path


def read(path, **options):
    return load(DataOptions(source=str(path), **options))


# lists


def test_listed_images_are_decoded_when_taken(listed):
    data = read(listed, client="site", positive="ill")
    assert data.names == ("north", "south")
    assert data.classes == ("well", "ill")
    assert data.input_shape == (3, 32, 32)
    assert data.labels.tolist() == [i % 2 for i in range(24)]
    taken = data.inputs[torch.tensor([7, 0])]
    assert taken.dtype == torch.uint8
    assert taken[0, :, 3, 3].tolist() == [220, 100, 50]
    assert taken[1, :, 3, 3].tolist() == [0, 100, 50]
    assert float(data.take(torch.tensor([0])).min()) == -1


def test_size_and_mode_are_options(listed):
    data = read(listed, client="site", image_size=8, image_mode="grey")
    assert data.input_shape == (1, 8, 8)
    expected = Image.new("RGB", (1, 1), (220, 100, 50)).convert("L").getpixel((0, 0))
    assert set(data.inputs[torch.tensor([7])].flatten().tolist()) == {expected}


def test_grey_images_stay_grey_also_with_sixteen_bits(tmp_path):
    Image.fromarray(np.full((4, 4), 0x8000, np.uint16)).save(tmp_path / "deep.png")
    picture(tmp_path / "plain.png", mode="L", value=128)
    assert images.mode_of(tmp_path / "deep.png") == "grey"
    for name in ("deep.png", "plain.png"):
        assert images.decode(tmp_path / name, 2, "grey").tolist() == [[[128, 128], [128, 128]]]
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(UserError, match=r"float.tif: has 32 bits per pixel"):
        images.decode(tmp_path / "float.tif", 2, "grey")


def test_one_list_per_site(listed):
    table = pd.read_csv(listed)
    for site, rows in table.groupby("site"):
        rows[["path", "label"]].to_csv(listed.parent / f"{site}.csv", index=False)
    listed.unlink()
    data = read(listed.parent, positive="ill")
    assert data.names == ("north", "south")
    assert len(data.labels) == 24


def test_a_path_column_without_images_is_a_feature(tmp_path):
    table = pd.DataFrame({"path": ["left", "right"] * 8, "label": [0, 1] * 8})
    table.to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path / "a.csv", clients=2).preprocessing is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "gone.png"}, "the image '.*gone.png' of row 6 is missing"),
        ({"path": ""}, "the path 'path' is missing in row 6"),
        ({"label": ""}, "the label 'label' is missing in row 6"),
        ({"site": ""}, "the client 'site' is missing in row 6"),
    ],
)
def test_wrong_lists_are_refused_at_once(listed, change, message):
    table = pd.read_csv(listed)
    for column, value in change.items():
        table.loc[5, column] = value
    table.to_csv(listed, index=False)
    with pytest.raises(UserError, match=message):
        read(listed, client="site")


def test_a_list_without_labels_says_so(listed):
    pd.read_csv(listed).drop(columns="label").to_csv(listed, index=False)
    with pytest.raises(UserError, match=r"data\.label; columns: path, site, age"):
        read(listed, client="site")
    unlabelled = load(DataOptions(source=str(listed), client="site"), binary=False)
    assert unlabelled.task == "none"
    with pytest.raises(UserError, match=r"data\.drop names columns"):
        load(DataOptions(source=str(listed), client="site", drop=["age"]), binary=False)


def test_lists_of_sites_agree_on_labels(listed):
    table = pd.read_csv(listed)
    a, b = listed.parent / "a.csv", listed.parent / "b.csv"
    table[["path", "label"]].to_csv(a, index=False)
    table[["path"]].to_csv(b, index=False)
    for sources in ([str(a), str(b)], [str(b), str(a)]):
        with pytest.raises(UserError, match=r"b\.csv: no column 'label', which .*a\.csv has"):
            load(DataOptions(source=sources), binary=False)
    b.write_text("file,label\nx,1\n")
    with pytest.raises(UserError, match=r"b\.csv: no column 'path' of image files"):
        load(DataOptions(source=[str(a), str(b)]), binary=False)


@pytest.mark.parametrize("content", [b"", b"no image", b"half"])
def test_a_corrupt_image_is_named_when_it_is_decoded(listed, content):
    victim = listed.parent / "north" / "7.png"
    if content == b"half":
        whole = picture(victim, (300, 300)).read_bytes()
        content = whole[: len(whole) // 2]
    victim.write_bytes(content)
    data = read(listed, client="site")
    with pytest.raises(UserError, match=r"7.png: cannot be read as an image"):
        data.take(torch.tensor([1, 7]))
    victim.unlink()
    with pytest.raises(UserError, match=r"7.png: no such file"):
        data.take(torch.tensor([7]))


def test_an_image_of_unreasonable_size_is_not_decoded(tmp_path, monkeypatch):
    # A few kilobytes that would unpack to 400 million pixels, and one between the limits.
    Image.new("1", (20000, 20000)).save(tmp_path / "bomb.png")
    Image.new("1", (10000, 10000)).save(tmp_path / "large.png")
    for name in ("bomb.png", "large.png"):
        with pytest.raises(UserError, match=f"{name}: is larger than 64000000 pixels"):
            images.decode(tmp_path / name, 32, "grey")
    monkeypatch.setattr(images, "MOST_PIXELS", 1000)
    with pytest.raises(UserError, match="40x30 is larger than 1000 pixels"):
        images.decode(picture(tmp_path / "a.png"), 32, "grey")


def test_other_kinds_of_files_are_not_opened(tmp_path):
    (tmp_path / "a.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    with pytest.raises(UserError, match=r"a.eps: not an image"):
        images.decode(tmp_path / "a.eps", 8, "grey")
    (tmp_path / "b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(UserError, match=r"b.png: cannot be read as an image"):
        images.decode(tmp_path / "b.png", 8, "grey")


def test_photographs_are_turned_upright(tmp_path):
    image = Image.new("L", (10, 10), 0)
    image.paste(255, (0, 0, 10, 5))  # bright above
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    decoded = images.decode(tmp_path / "a.jpg", 10, "grey")[0]
    assert decoded[-2].min() > 200
    assert decoded[1].max() < 50


def test_the_images_used_last_are_kept(listed, monkeypatch):
    data = read(listed, client="site")
    decoded = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda path, *a: decoded.append(path) or decode(path, *a))
    monkeypatch.setattr(images, "CACHE_BYTES", 2 * 3 * 32 * 32)
    for row in (1, 2, 1, 3, 1, 2):  # 3 displaces 2, the least recently used
        data.inputs[torch.tensor([row])]
    assert [path.stem for path in decoded] == ["1", "2", "3", "2"]
    assert len(pickle.dumps(data.inputs)) < 10000  # a worker gets names, not images


# HAM10000


def write_ham(root):
    folder = root / "ham10000"
    rows = []
    for i in range(60):
        image = f"ISIC_{i:07d}"
        dx = ("mel", "nv", "bkl")[i // 2 % 3]
        rows.append((f"HAM_{i // 2}", image, dx, ("rosendahl", "vienna_dias")[i // 30]))
        if i % 10:
            picture(folder / "images" / f"{image}.jpg", (20, 15))
    columns = ["lesion_id", "image_id", "dx", "dataset"]
    table = pd.DataFrame(rows, columns=columns)
    table.to_csv(folder / "HAM10000_metadata", index=False)
    return folder, table


def test_collections_are_clients_and_lesions_are_not_cut(tmp_path):
    _, table = write_ham(tmp_path)
    data = load(DataOptions(source="ham10000", root=tmp_path, image_size=8))
    assert data.names == ("rosendahl", "vienna_dias")
    assert data.classes == ("not mel", "mel")
    assert data.input_shape == (3, 8, 8)
    there = table[np.arange(60) % 10 != 0].reset_index()
    assert data.labels.tolist() == (there.dx == "mel").astype(int).tolist()
    parts = [set(there.lesion_id[p.indices]) for p in (data.train, data.validation, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert all(parts)
    assert sum(len(p.indices) for p in (data.train, data.validation, data.test)) == 54


def test_metadata_must_say_the_collection(tmp_path):
    folder, table = write_ham(tmp_path)
    table.drop(columns="dataset").to_csv(folder / "HAM10000_metadata", index=False)
    with pytest.raises(UserError, match="has no column 'dataset'"):
        load(DataOptions(source="ham10000", root=tmp_path))
    table.to_csv(folder / "HAM10000_metadata", index=False)
    for path in folder.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(UserError, match=r"ISIC_\*.jpg is missing; get it from https:.* by hand"):
        load(DataOptions(source="ham10000", root=tmp_path))


def write_grey(folder, table):
    codes = {"mel": 6, "nv": 4, "bkl": 2}
    grey = pd.DataFrame(
        random.integers(0, 256, (len(table), 64)), columns=[f"pixel{i:04d}" for i in range(64)]
    )
    grey["label"] = [codes[dx] for dx in table.dx]
    grey.to_csv(folder / "hmnist_8_8_L.csv", index=False)
    return grey


def test_small_grey_images_follow_the_metadata(tmp_path):
    folder, table = write_ham(tmp_path)
    grey = write_grey(folder, table)
    data = load(DataOptions(source="ham10000-8x8", root=tmp_path))
    assert data.inputs[3, 0, 1, 2] == grey.loc[3, "pixel0010"]
    assert len(data.labels) == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda grey: grey.assign(label=grey.label[::-1].to_numpy()),
            "do not follow the diagnoses",
        ),
        (lambda grey: grey.iloc[:-1], "do not follow the diagnoses"),
        (lambda grey: grey.assign(pixel0003=256), "pixels must lie in 0..255"),
        (lambda grey: grey.drop(columns="pixel0003"), "must have the columns"),
        (lambda grey: grey.assign(pixel0003="x"), "CSV of whole numbers"),
    ],
)
def test_wrong_grey_images_are_refused(tmp_path, change, message):
    folder, table = write_ham(tmp_path)
    change(write_grey(folder, table)).to_csv(folder / "hmnist_8_8_L.csv", index=False)
    with pytest.raises(UserError, match=rf"hmnist_8_8_L\.csv.*{message}"):
        load(DataOptions(source="ham10000-8x8", root=tmp_path))


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "melanomas"),
    [("ham10000", [179, 341, 13, 29]), ("ham10000-8x8", [342, 680, 24, 67])],
)
def test_ham10000(data_root, source, melanomas):
    data = load(DataOptions(source=source, root=data_root, test=0, validation=0))
    assert data.names == ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")
    assert [int(data.labels[torch.from_numpy(r)].sum()) for r in data.train] == melanomas
    assert len(data.labels) == (5012 if source == "ham10000" else 10015)
    split = load(DataOptions(source=source, root=data_root))
    shares = split.test.counts / (split.train.counts + split.validation.counts + split.test.counts)
    assert shares == pytest.approx(np.full(4, 0.25), abs=0.03)
    if source == "ham10000-8x8":
        first = pd.read_csv(data_root / "ham10000" / "hmnist_8_8_L.csv", nrows=1).to_numpy()[0]
        assert data.inputs[0].flatten().tolist() == first[:64].tolist()
    else:
        assert data.take(torch.arange(4)).std() > 0.05


# training


def history(data, workers=1):
    result = train(
        "auc", data, "codasca", rounds=3, engine={"workers": workers}, federation={}, seed=1
    )
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in result.history]


def test_listed_images_train_alike_with_any_number_of_workers(listed):
    options = DataOptions(source=str(listed), client="site", positive="ill", image_size=8)
    alone = history(options)
    assert history(options, workers=2) == alone
    assert alone[-1]["test/auc"] == 1  # bright against dark


def test_a_corrupt_image_stops_a_run_with_its_name(listed):
    options = DataOptions(source=str(listed), client="site", test=0, validation=0)
    (listed.parent / "north" / "7.png").write_bytes(b"")
    for workers in (1, 2):
        with pytest.raises(UserError, match=r"7.png: cannot be read as an image"):
            history(options, workers)


def test_a_memory_mapped_source_trains_as_one_in_memory(tmp_path, monkeypatch):
    arrays = {}
    for split, n in (("train", 60), ("test", 20)):
        labels = np.arange(n) % 3 == 0
        noise = random.integers(0, 150, (n, 6, 6))
        arrays[f"{split}_images"] = (noise + 100 * labels[:, None, None]).astype(np.uint8)
        arrays[f"{split}_labels"] = labels.astype(np.uint8)
    np.savez(tmp_path / "bright.npz", **arrays)
    options = DataOptions(source=str(tmp_path / "bright.npz"), clients=3)
    plain = history(options)
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 100)
    assert isinstance(load(options).inputs, storage.Mapped)
    assert history(options) == plain
    assert history(options, workers=2) == plain
    assert plain[-1]["test/auc"] > 0.9
