"""Lists of image files, from the command line: train, predict, evaluate."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from fedsaddle.runs.saved import SavedModel


def write(folder, n=24, seed=0, size=(12, 9)):
    """Images whose brightness, and whose red, tell of two findings; with their list."""
    random = np.random.default_rng(seed)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(n):
        ill, mass = i % 2, i // 2 % 2
        pixels = random.integers(0, 80, (*size[::-1], 3)) + 90 * ill
        pixels[..., 0] += 80 * mass
        name = f"pictures/{seed}-{i}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
        rows.append((name, "ill" if ill else "well", mass, ("", "0", "1")[i % 3], f"s{i % 2 + 1}"))
    names = ["path", "diagnosis", "Mass", "Edema", "site"]
    frame = pd.DataFrame(rows, columns=names)
    frame.to_csv(folder / "list.csv", index=False)
    return frame


SETTINGS = ("--set", "data.image_size=6", "--set", "data.positive=ill", "--label", "diagnosis")


@pytest.fixture
def trained(run, tmp_path):
    write(tmp_path / "old")
    code, _, err = run(
        *("train", "--data", "old/list.csv", "--client", "site", *SETTINGS),
        *("--set", "data.image_mode=grey", "--rounds", "5", "--out", "run"),
    )
    assert code == 0, err


def naive_scores(folder, frame):
    """Pillow and the weights of the logistic model, without the library's data code."""
    model = SavedModel.load(folder / "run/model")
    images = []
    for name in frame["path"]:
        grey = Image.open(folder / "new" / name).convert("L")
        small = grey.resize((6, 6), Image.Resampling.BILINEAR, reducing_gap=2.0)
        images.append(np.asarray(small, dtype=np.float32)[None] / 127.5 - 1)
    with torch.no_grad():
        return torch.sigmoid(model.network(torch.from_numpy(np.stack(images)))).numpy()[:, 0]


def test_predict_and_evaluate_decode_as_in_training(trained, run, tmp_path):
    saved = json.loads((tmp_path / "run/model/model.json").read_text())
    assert saved["images"] == {"size": 6, "mode": "grey"}
    new = write(tmp_path / "new", n=15, seed=1, size=(20, 31))
    code, out, err = run("predict", "run/model", "new/list.csv", "--out", "scores.csv", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == 15
    scores = pd.read_csv("scores.csv", keep_default_na=False)
    assert scores.columns.tolist() == [*new.columns, "score"]
    assert scores["path"].tolist() == new["path"].tolist()
    np.testing.assert_allclose(scores["score"], naive_scores(tmp_path, new), rtol=1e-5)
    code, out, err = run(
        *("evaluate", "run/model", "new/list.csv", "--label", "diagnosis", "--json")
    )
    assert code == 0, err
    expected = roc_auc_score(new["diagnosis"] == "ill", scores["score"])
    assert json.loads(out)["test/auc"] == pytest.approx(expected)


def test_a_parquet_list_will_do(trained, run, tmp_path):
    new = write(tmp_path / "new", n=5, seed=1)
    new.to_parquet(tmp_path / "new/list.parquet")
    for kind in ("csv", "parquet"):
        code, _, err = run("predict", "run/model", f"new/list.{kind}", "--out", f"{kind}.csv")
        assert code == 0, err
    assert pd.read_csv("csv.csv")["score"].equals(pd.read_csv("parquet.csv")["score"])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "pictures/1-3.png").unlink(), "1-3.png' of row 4 is missing"),
        (
            lambda folder: (folder / "pictures/1-3.png").write_bytes(b"no image"),
            "1-3.png: cannot be read as an image",
        ),
        (lambda folder: (folder / "list.csv").write_text("path\na.txt\n"), "a.txt"),
        (lambda folder: (folder / "list.csv").write_text("file\na.png\n"), "no column 'path'"),
        (
            lambda folder: (folder / "list.csv").write_text('path\npictures/1-0.png\n""\n'),
            "missing in row 2",
        ),
    ],
)
def test_a_wrong_image_is_named_and_nothing_written(trained, run, tmp_path, damage, says):
    write(tmp_path / "new", n=6, seed=1)
    damage(tmp_path / "new")
    code, out, err = run("predict", "run/model", "new/list.csv", "--out", "scores.csv")
    assert code == 2
    assert says in err
    assert out == ""
    assert not (tmp_path / "scores.csv").exists()


def test_several_findings_of_images(run, tmp_path):
    frame = write(tmp_path / "new", n=60)
    code, out, err = run(
        *("train", "--data", "new/list.csv", "--label", "Mass", "--label", "Edema"),
        *("--problem", "multilabel-auc", "--client", "site", "--set", "data.image_size=6"),
        *("--rounds", "5", "--out", "run"),
    )
    assert code == 0, err
    assert "Mass (n+/n-)" in out
    code, out, err = run("evaluate", "run/model", "new/list.csv", "--json")
    assert code == 0, err
    assert run("predict", "run/model", "new/list.csv")[0] == 0
    scores = pd.read_csv("scores.csv")
    assert scores.columns.tolist() == [*frame.columns, "score_Mass", "score_Edema"]
    metrics = json.loads(out)
    expected = roc_auc_score(frame["Mass"], scores["score_Mass"])
    assert metrics["test/auc_Mass"] == pytest.approx(expected)
    known = (frame["Edema"] != "").to_numpy()
    expected = roc_auc_score(frame["Edema"][known].astype(int), scores["score_Edema"][known])
    assert metrics["test/auc_Edema"] == pytest.approx(expected)


def test_bytes_in_an_npz_file_are_scaled_as_in_training(run):
    random = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = (random.integers(0, 100, (40, 1, 5, 5)) + 100 * y[:, None, None, None]).astype(np.uint8)
    np.savez("rows.npz", X=X, y=y)
    assert (
        run("train", "--data", "rows.npz", "--rounds=3", "--set=data.clients=2", "--out=run")[0]
        == 0
    )
    assert run("predict", "run/model", "rows.npz")[0] == 0
    network = SavedModel.load(Path("run/model")).network
    with torch.no_grad():
        expected = torch.sigmoid(network(torch.from_numpy(X).float() / 127.5 - 1)).numpy()[:, 0]
    np.testing.assert_allclose(pd.read_csv("scores.csv")["score"], expected, rtol=1e-5)


def write_splits(path, columns=1, side=5, **more):
    """A file in MedMNIST's form: brighter where the label is 1."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 60), ("val", 20), ("test", 30)):
        labels = random.integers(0, 2, (n, columns))
        noise = random.integers(0, 100, (n, side, side)) + 100 * labels[:, :1, None]
        arrays |= {f"{split}_images": noise.astype(np.uint8), f"{split}_labels": labels}
    np.savez_compressed(path, **arrays | more)
    return arrays


@pytest.mark.parametrize("split", [None, "train", "val"])
def test_files_like_medmnists_are_scored_and_measured(run, split):
    arrays = write_splits("set.npz")
    options = ("--set=data.clients=2", "--out=run")
    code, _, err = run("train", "--data", "set.npz", "--rounds=3", *options)
    assert code == 0, err
    which = ("--split", split) if split else ()
    code, _, err = run("predict", "run/model", "set.npz", *which)
    assert code == 0, err
    code, out, err = run("evaluate", "run/model", "set.npz", *which, "--json")
    assert code == 0, err
    labels = arrays[f"{split or 'test'}_labels"][:, 0]
    scores = pd.read_csv("scores.csv")["score"]
    assert len(scores) == len(labels)
    assert json.loads(out)["test/auc"] == pytest.approx(roc_auc_score(labels, scores))


@pytest.mark.parametrize(
    ("problem", "more", "names"),
    [
        ("auc", ["--set=data.positive=1"], ["test/auc"]),
        ("multilabel-auc", [], ["test/auc_0", "test/auc_1", "test/auc_2"]),
    ],
)
def test_findings_of_files_like_medmnists(run, problem, more, names):
    arrays = write_splits("set.npz", columns=3)
    options = ("--set=data.clients=2", "--rounds=2", "--out=run")
    code, _, err = run("train", "--data", "set.npz", "--problem", problem, *more, *options)
    assert code == 0, err
    code, out, err = run("evaluate", "run/model", "set.npz", "--json")
    assert code == 0, err
    assert run("predict", "run/model", "set.npz")[0] == 0
    scores = pd.read_csv("scores.csv").to_numpy()
    columns = [1] if problem == "auc" else [0, 1, 2]
    for k, (name, column) in enumerate(zip(names, columns, strict=True)):
        expected = roc_auc_score(arrays["test_labels"][:, column], scores[:, k])
        assert json.loads(out)[name] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("predict", "run/model", "set.npz", "--split", "tets"), "choose train, val, test"),
        (("predict", "run/model", "large.npz"), "has shape (1, 7, 7), and the model takes (1, 5"),
        (("predict", "run/model", "rows.npz", "--split", "test"), "has no array 'test_images'"),
        (("predict", "run/model", "rows.npz"), "has shape (5, 5), and the model takes (1, 5, 5)"),
        (("evaluate", "run/model", "set.npz", "--label", "y"), "--label does not apply"),
        (("evaluate", "run/model", "set.npz", "--client", "c"), "does not say whose rows"),
        (("evaluate", "run/model", "other.npz"), "unknown label '2'"),
        (("evaluate", "run/model", "gone.npz"), "gone.npz: no such file"),
        (("predict", "run/model", "new.csv", "--split", "test"), "--split is for NPZ files"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_written(run, tmp_path, arguments, says):
    write_splits("set.npz")
    write_splits("large.npz", side=7)
    write_splits("other.npz", test_labels=np.full((30, 1), 2))
    np.savez("rows.npz", X=np.zeros((4, 5, 5), np.uint8))
    assert run("train", "--data", "set.npz", "--rounds=1", "--out=run")[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*arguments)
    assert code == 2
    assert says in err
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before
