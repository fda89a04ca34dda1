"""From files and options to clients."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pydantic
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits

from fedsaddle.data import DataOptions, load, load_table
from fedsaddle.data.sources import SOURCES, storage
from fedsaddle.errors import UserError

ROOT = Path(os.environ.get("FEDSADDLE_DATA", ""))
HEART = ROOT / "heart-disease" / "processed.cleveland.data"
needs_data = pytest.mark.skipif(
    "FEDSADDLE_DATA" not in os.environ or not HEART.is_file(),
    reason="FEDSADDLE_DATA does not name a folder with heart-disease",
)


def used(data):
    """All rows in use, by client."""
    parts = zip(data.train, data.validation, data.test, strict=True)
    return [np.sort(np.concatenate(part)) for part in parts]


@pytest.fixture
def write(tmp_path):
    """Write a table (CSV or Parquet) or arrays (NPZ), and give the path as text."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content)
        elif path.suffix == ".npz":
            np.savez(path, **content)
        elif path.suffix == ".parquet":
            pd.DataFrame(content).to_parquet(path)
        else:
            pd.DataFrame(content).to_csv(path, index=False)
        return str(path)

    return write


def table(n=20):
    return {
        "age": [30 + i for i in range(n)],
        "sex": ["f" if i % 3 else "m" for i in range(n)],
        "site": ["south" if i % 2 else "north" for i in range(n)],
        "label": [int(i % 4 == 0) for i in range(n)],
    }


# bundled


def test_breast_cancer_is_scikit_learns_with_malignant_positive():
    bunch = load_breast_cancer()
    data = load(DataOptions(clients=4))
    assert data.classes == ("benign", "malignant")
    assert torch.equal(data.labels, torch.from_numpy(1 - bunch.target))
    assert sorted(np.concatenate(used(data)).tolist()) == list(range(569))
    assert data.names == tuple(f"client-{i}" for i in range(4))
    # Fitted on training rows only, over all clients.
    train = data.inputs[torch.from_numpy(data.train.indices)]
    raw = bunch.data[data.train.indices]
    expected = (bunch.data - raw.mean(0)) / raw.std(0)
    assert np.allclose(data.inputs.numpy(), expected, atol=1e-4)
    assert torch.allclose(train.mean(0), torch.zeros(30), atol=1e-4)


def test_digits_one_against_the_rest_or_all_ten():
    bunch = load_digits()
    binary = load(DataOptions(source="digits"))
    assert binary.classes == ("not 8", "8")
    assert torch.equal(binary.labels, torch.from_numpy((bunch.target == 8).astype(np.int64)))
    assert np.allclose(binary.inputs.numpy(), bunch.data / 16)
    assert binary.preprocessing is None
    three = load(DataOptions(source="digits", positive=3), binary=False)
    assert (three.classes, int(three.labels.sum())) == (
        ("not 3", "3"),
        int((bunch.target == 3).sum()),
    )
    ten = load(DataOptions(source="digits"), binary=False)
    assert ten.task == "multiclass"
    assert torch.equal(ten.labels, torch.from_numpy(bunch.target))


def test_registry_lines_are_for_a_list():
    assert {"breast-cancer", "digits", "heart-disease"} <= set(SOURCES)
    assert all(source.description.endswith(".") for source in SOURCES.values())


# heart disease


@pytest.mark.data
@needs_data
def test_heart_disease_counts_and_values():
    data = load(DataOptions(source="heart-disease", root=ROOT, standardise=False))
    assert data.names == ("cleveland", "hungarian", "switzerland", "va")
    rows = used(data)
    assert [len(part) for part in rows] == [303, 294, 123, 200]
    assert [int(data.labels[part].sum()) for part in rows] == [139, 106, 115, 149]
    assert data.classes == ("0", "not 0")
    names = list(data.preprocessing.feature_names)
    first = dict(zip(names, data.inputs[0].tolist(), strict=True))
    # 63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0
    assert first["age"] == 63
    assert first["oldpeak"] == pytest.approx(2.3)
    on = {name for name in names if "=" in name and first[name]}
    assert on == {"cp=1", "restecg=2", "slope=3", "thal=6"}
    chol = data.inputs[:, names.index("chol")].numpy()
    swiss = chol[rows[2]]
    assert len(set(swiss.tolist())) == 1  # 0 everywhere in the file: filled with the others' mean
    measured = [row for row in data.train.indices if row not in set(rows[2])]
    raw = pd.concat(
        pd.read_csv(ROOT / "heart-disease" / f"processed.{name}.data", header=None, na_values="?")
        for name in data.names
    )[4].to_numpy()
    known = raw[measured][raw[measured] > 0]
    assert swiss[0] == pytest.approx(known.mean(), rel=1e-5)


@pytest.mark.data
@needs_data
def test_heart_disease_from_the_environment_and_split_by_hospital():
    data = load(DataOptions(source="heart-disease"))
    for client, n in enumerate((303, 294, 123, 200)):
        assert data.test.counts[client] == int(n * 0.25 + 0.5)
        assert data.validation.counts[client] == int(n * 0.1 + 0.5)
    assert torch.isfinite(data.inputs).all()


def write_heart(folder, last="1"):
    line = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,"
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        rows = [line + "0", line.replace("63", "?").replace("233", "0") + last] * 3
        (folder / f"processed.{hospital}.data").write_text("\n".join(rows))


def test_heart_files_may_lie_in_the_root_itself(tmp_path, monkeypatch):
    write_heart(tmp_path)
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    data = load(DataOptions(source="heart-disease"))
    assert data.labels.tolist() == [0, 1] * 12
    fitted = {column.name: column for column in data.preprocessing.columns}
    assert (fitted["chol"].mean, fitted["chol"].zero_is_missing) == (233, True)
    assert fitted["thal"].categories == ("6",)


def test_heart_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSADDLE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # where there is no folder "data" either
    with pytest.raises(
        UserError, match=r"data.heart-disease.processed.cleveland.data is missing; set data.root"
    ):
        load(DataOptions(source="heart-disease"))
    write_heart(tmp_path, last="5")
    with pytest.raises(UserError, match=r"cleveland.data: the last field of row 2 must be 0 to 4"):
        load(DataOptions(source="heart-disease", root=tmp_path))
    (tmp_path / "processed.cleveland.data").write_text("1,2\n")
    with pytest.raises(UserError, match=r"cleveland.data: has 2 columns, not 14"):
        load(DataOptions(source="heart-disease", root=tmp_path))


# tables


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_one_file_with_a_client_column(write, name):
    data = load(DataOptions(source=write(name, table()), client="site"))
    assert data.names == ("north", "south")
    assert [part.tolist() for part in used(data)] == [[*range(0, 20, 2)], [*range(1, 20, 2)]]
    assert data.preprocessing.feature_names == ("age", "sex=f", "sex=m")
    assert data.labels.tolist() == table()["label"]


def test_one_file_per_site_as_list_glob_or_folder(write, tmp_path):
    full = pd.DataFrame(table()).drop(columns="site")
    paths = [
        write("sites/s10.csv", full[:12]),
        write("sites/s9.parquet", full[12:][["label", "sex", "age"]]),
    ]
    write("sites/notes.txt", "not data")
    folder = str(tmp_path / "sites")
    for source in (paths, folder, f"{folder}/s*", [f"{folder}/s9*", f"{folder}/s10*"]):
        data = load(DataOptions(source=source))
        assert data.names == ("s9", "s10")
        by_site = [data.labels[part].tolist() for part in used(data)]
        assert by_site == [full["label"][12:].tolist(), full["label"][:12].tolist()]
    assert load(DataOptions(source=paths)).preprocessing.feature_names[0] == "age"


def test_a_single_file_without_clients_is_partitioned(write):
    source = write("a.csv", table())
    for partition in ("iid", "sorted", "dirichlet", None):
        data = load(DataOptions(source=source, partition=partition, clients=3, drop=["site"]))
        assert data.names == ("client-0", "client-1", "client-2")
        assert sorted(np.concatenate(used(data)).tolist()) == list(range(20))
    default = load(DataOptions(source=source, clients=3))
    named = load(DataOptions(source=source, clients=3, partition="dirichlet"))
    assert default.train.indices.tolist() == named.train.indices.tolist()
    natural = load(DataOptions(source=source, client="site", partition="iid", clients=5))
    assert natural.n_clients == 5
    assert "site=north" not in natural.preprocessing.feature_names


def test_options_reach_the_columns(write):
    source = write("a.csv", table() | {"code": [i % 2 for i in range(20)]})
    data = load(
        DataOptions(source=source, drop=["age", "site"], categorical=["code"], standardise=False)
    )
    assert data.preprocessing.feature_names == ("sex=f", "sex=m", "code=0", "code=1")
    gaps = load(DataOptions(source=source, drop=["sex", "site"], zero_is_missing=["code"]))
    assert {c.name: c.mean for c in gaps.preprocessing.columns}["code"] == 1


def test_a_text_among_test_rows_makes_the_column_categorical_for_every_seed(write):
    content = table() | {"code": ["1"] * 19 + ["B12"]}
    source = write("a.csv", content)
    for seed in range(5):
        data = load(DataOptions(source=source, client="site"), seed=seed)
        assert "code=1" in data.preprocessing.feature_names


def test_positive_ratio_keeps_rows_with_their_labels_inputs_and_clients(write):
    content = table(400)
    content["site"] = ["late" if age >= 330 else "early" for age in content["age"]]
    source = write("a.csv", content)
    options = {"source": source, "client": "site", "positive_ratio": 0.05}
    data = load(DataOptions(**options, standardise=False))
    assert len(data.labels) == 300 + 16
    assert int(data.labels.sum()) == 16
    ages = data.inputs[:, 0]
    assert torch.equal((ages.long() - 30) % 4 == 0, data.labels == 1)
    for site, rows in zip(data.names, used(data), strict=True):
        assert set((ages[rows] >= 330).tolist()) == {site == "late"}
    scaled = load(DataOptions(**options))
    train = scaled.inputs[torch.from_numpy(scaled.train.indices), 0]
    assert abs(float(train.mean())) < 1e-5
    assert float(train.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_a_client_that_loses_all_rows_stays_listed(write):
    content = table(40)
    content["site"] = ["positives" if label else "negatives" for label in content["label"]]
    source = write("a.csv", content)
    data = load(DataOptions(source=source, client="site", positive_ratio=0.01))
    assert data.names == ("negatives", "positives")
    assert [len(rows) for rows in used(data)] == [30, 1]
    content["site"] = [f"p{i}" if label else "n" for i, label in enumerate(content["label"])]
    data = load(DataOptions(source=write("b.csv", content), client="site", positive_ratio=0.01))
    assert data.n_clients == 11
    assert sorted(len(rows) for rows in used(data)) == [0] * 9 + [1, 30]


def test_many_clients_share_sums_and_get_the_same_scaling(write):
    content = {"u": np.arange(300.0) ** 2, "who": np.arange(300) % 150, "label": np.arange(300) % 2}
    data = load(DataOptions(source=write("a.csv", content), client="who", test=0, validation=0))
    assert data.n_clients == 150
    u = content["u"]
    assert np.allclose(data.inputs[:, 0].numpy(), (u - u.mean()) / u.std(), atol=1e-5)


def test_seed_decides_partition_and_split():
    same = [
        load(DataOptions(source="digits"), seed=seed).train.indices.tolist() for seed in (1, 1, 2)
    ]
    assert same[0] == same[1] != same[2]


def test_no_labels_are_fine_unless_the_problem_is_binary(write):
    content = {"u": [1.0, 2.0, 3.0]}
    data = load(DataOptions(source=write("a.csv", content), clients=1), binary=False)
    assert data.task == "none"
    with pytest.raises(
        UserError, match=r"a.csv: say which column is the label with data.label; columns: u"
    ):
        load(DataOptions(source=write("a.csv", content), clients=1))


def three(label=("a", "b", "a")):
    return {"u": [1.0, 2.0, 3.0], "label": list(label)}


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "", {}, r"a.csv: cannot be read as CSV"),
        ("a.csv", "u,label\n", {}, r"a.csv: has no rows"),
        ("a.csv", "u,label\n1,0\n1,0,3\n", {}, r"a.csv: cannot be read as CSV .*line 3"),
        ("a.csv", b"u,label\n\xff,0\n", {}, r"a.csv: cannot be read as CSV .*utf-8"),
        ("a.csv", "u,u,label\n1,2,0\n", {}, r"a.csv: two columns are called 'u'"),
        ("a.csv", "u,label\n1,0\n1\n", {}, r"a.csv: the label 'label' is missing in row 2"),
        ("a.csv", "u,label\n1,0\n1,?\n", {}, r"a.csv: the label 'label' is missing in row 2"),
        (
            "a.csv",
            three(),
            {"label": "labl"},
            "data.label: .*a.csv has no column 'labl'; did you mean 'label'",
        ),
        ("a.csv", three(), {"client": "uu"}, "data.client: .*a.csv has no column 'uu'"),
        ("a.csv", "u,c,label\n1,x,0\n1,,1\n", {"client": "c"}, r"client 'c' is missing in row 2"),
        ("a.csv", three("abc"), {}, r"3 values \(a, b, c\)"),
        ("a.csv", three(), {"positive": "z"}, "data.positive: .* has no label 'z'"),
        ("a.csv", three(), {"drop": ["v"]}, "data.drop: .*a.csv has no feature column 'v'"),
        ("a.csv", three(), {"numeric": ["label"]}, "data.numeric: .* no feature column 'label'"),
        ("a.csv", three(), {"drop": ["u"]}, "a.csv: no feature column is left"),
        (
            "a.csv",
            "u,label\n1,0\nx,1\n2,0\n",
            {"numeric": ["u"]},
            r"a.csv: numeric column 'u' holds the text 'x' in row 2",
        ),
        ("a.csv", "u,label\n1,0\ninf,1\n2,0\n", {}, r"a.csv: column 'u' is infinite in row 2"),
        ("a.csv", "u,label\n?,0\n,1\n", {}, "Column 'u' has no value at any site"),
        (
            "a.csv",
            "u,label\nx,0\ny,1\n",
            {"zero_is_missing": ["u"]},
            "data.zero_is_missing: column 'u' is not numeric",
        ),
        ("a.csv", three(), {"numeric": ["u"], "categorical": ["u"]}, "in both"),
        (
            "a.csv",
            "u,label\np,0\nq,1\nr,0\n",
            {"max_categories": 2, "test": 0, "validation": 0},
            "client-0: text column 'u' has 3 categories",
        ),
        ("a.csv", three(), {"partition": "column"}, "name the column with data.client"),
        ("a.csv", three(), {"clients": 4}, "4 clients but only 3 rows"),
        ("a.csv", three("aaa"), {}, "every label is 'a'"),
        ("a.parquet", b"no", {}, "a.parquet: cannot be read as Parquet"),
        ("a.parquet", {"u": [[1], [2]], "label": [0, 1]}, {}, "column 'u' holds lists"),
        ("a.npz", b"no", {}, "a.npz: cannot be read as NPZ"),
        ("a.npz", {"X": np.array([[None]]), "y": [0]}, {}, "a.npz: cannot be read as NPZ"),
        ("a.npz", {"Z": np.ones((2, 2))}, {}, "a.npz has no array 'X'; known: Z"),
        ("a.npz", {"X": np.ones((2, 2))}, {}, "data.label: .*a.npz has no array 'y'"),
        ("a.npz", {"X": np.ones(2), "y": [0, 1]}, {}, "X must hold numbers in two or more"),
        ("a.npz", {"X": np.array([["a"]]), "y": [0]}, {}, "X must hold numbers"),
        ("a.npz", {"X": np.ones((0, 2)), "y": []}, {}, "a.npz: has no rows"),
        (
            "a.npz",
            {"X": np.ones((2, 2)), "y": [0]},
            {},
            r"'y' must have one value per row of X, shape \(2,\), not \(1,\)",
        ),
        ("a.npz", {"X": np.ones((2, 2)), "y": [0, np.nan]}, {}, "label 'y' is missing in row 2"),
        (
            "a.npz",
            {"X": np.ones((2, 1, 2)), "y": [0, 1]},
            {"drop": ["x0"]},
            "data.drop names columns, but .*a.npz has none",
        ),
        (
            "a.npz",
            {"X": np.full((2, 1, 2), np.nan), "y": [0, 1]},
            {},
            "a.npz: inputs must be finite",
        ),
        ("a.txt", "hello", {}, r"a.txt: not a CSV, Parquet or NPZ file"),
    ],
)
def test_bad_files_and_options_get_a_sentence(write, name, content, options, message):
    with pytest.raises(UserError, match=message):
        load(DataOptions(**{"source": write(name, content), "clients": 1} | options))


def test_a_single_npy_array_is_not_an_archive(write, tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(UserError, match=r"a.npz: holds a single array"):
        load(DataOptions(source=str(tmp_path / "a.npz")))


def test_truncated_binary_files(write):
    for name, content in (
        ("a.npz", {"X": np.ones((99, 9)), "y": np.ones(99)}),
        ("a.parquet", three()),
    ):
        path = Path(write(name, content))
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(UserError, match=f"{name}: cannot be read"):
            load(DataOptions(source=str(path)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("brest-cancer", "no data set and no file 'brest-cancer'; did you mean 'breast-cancer'"),
        ("missing.csv", r"missing.csv: no such file"),
        ("no/where", r"no/where: no such file"),
        ("no*where.csv", r"no file matches 'no\*where.csv'"),
        ([], "empty list"),
    ],
)
def test_sources_that_are_not_there(source, message):
    with pytest.raises(UserError, match=message):
        load(DataOptions(source=source))


def test_sites_files_must_agree(write, tmp_path):
    a = write("a.csv", three())
    more = write("b.csv", three() | {"v": [1, 2, 3]})
    with pytest.raises(UserError, match=r"a.csv: no column 'v', which .*b.csv has"):
        load(DataOptions(source=[a, more]))
    with pytest.raises(UserError, match=r"a.csv: no column 'v', which .*b.csv has"):
        load(DataOptions(source=[more, a]))
    bad = write("bad.csv", "u,label\n1,a\nx,b\n")
    with pytest.raises(UserError, match=r"bad.csv: numeric column 'u' holds the text 'x' in row 2"):
        load(DataOptions(source=[a, bad], numeric=["u"]))
    with pytest.raises(UserError, match="two sites' files are called 'a'"):
        load(DataOptions(source=[a, write("a.parquet", three())]))
    with pytest.raises(UserError, match="mixes NPZ files with tables"):
        load(DataOptions(source=[a, write("n.npz", {"X": np.ones((2, 2)), "y": [0, 1]})]))
    (tmp_path / "void").mkdir()
    with pytest.raises(UserError, match="the folder has no CSV"):
        load(DataOptions(source=str(tmp_path / "void")))


@pytest.mark.parametrize("option", ["label", "client"])
def test_named_sources_know_their_label_and_clients(option):
    with pytest.raises(UserError, match=f"data.{option} does not apply to digits"):
        load(DataOptions(source="digits", **{option: "x"}))


def test_positive_without_labels(write):
    with pytest.raises(UserError, match=r"data.positive: .*has no labels"):
        load(DataOptions(source=write("a.csv", {"u": [1, 2]}), positive="1"), binary=False)


# arrays


def test_npz_matrix_is_a_table_of_numbers(write):
    X = np.array([[1.0, 7.0], [np.nan, 7.0], [3.0, 7.0], [4.0, 7.0]])
    source = write("a.npz", {"X": X, "y": [0, 1, 0, 1], "client": ["b", "a", "b", "a"]})
    data = load(DataOptions(source=source, test=0, validation=0))
    assert data.names == ("a", "b")
    assert data.preprocessing.feature_names == ("x0", "x1")
    assert data.inputs[1].tolist() == [0, 0]
    assert data.labels.tolist() == [0, 1, 0, 1]


def test_npz_images_are_kept_as_they_are(write):
    X = np.random.default_rng(0).normal(size=(6, 1, 4, 4))
    sites = [
        write("a.npz", {"X": X[:2], "y": [-1.0, 1.0]}),
        write("b.npz", {"X": X[2:], "y": [-1.0, 1.0, 1.0, 1.0]}),
    ]
    data = load(DataOptions(source=sites))
    assert (data.names, data.input_shape, data.classes) == (("a", "b"), (1, 4, 4), ("-1", "1"))
    assert torch.equal(data.inputs, torch.from_numpy(X.astype(np.float32)))
    assert data.preprocessing is None


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16, bool])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_npz_arrays_are_memory_mapped(tmp_path, monkeypatch, dtype, packed, order):
    X = np.asarray(np.random.default_rng(0).integers(0, 200, (30, 4, 5)), dtype=dtype, order=order)
    names = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    for name, rows in zip(names, (slice(0, 10), slice(10, 30)), strict=True):
        some = np.asarray(X[rows], order=order)
        (np.savez_compressed if packed else np.savez)(name, X=some, y=np.arange(len(some)) % 2)
    plain = load(DataOptions(source=names))
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 100)
    monkeypatch.setattr(storage, "BLOCK", 70)  # several blocks, none of a whole number of rows
    mapped = load(DataOptions(source=names))
    assert isinstance(mapped.inputs, storage.Mapped)
    everything = torch.arange(30)
    assert torch.equal(mapped.inputs[everything], plain.inputs)
    assert mapped.take(everything).dtype == torch.float32
    assert torch.equal(mapped.take(everything), plain.take(everything))
    expected = X / 127.5 - 1 if dtype is np.uint8 else X.astype(float)
    assert np.allclose(plain.take(everything).numpy(), expected)


def test_mapped_numbers_must_be_finite(tmp_path, monkeypatch):
    X = np.zeros((30, 4, 5))
    X[17, 2, 3] = np.nan
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(30) % 2)
    monkeypatch.setattr(storage, "MOST_IN_MEMORY", 100)
    monkeypatch.setattr(storage, "BLOCK", 700)
    with pytest.raises(UserError, match=r"a.npz: inputs must be finite, but row 18 is not"):
        load(DataOptions(source=str(tmp_path / "a.npz")))
    assert list((tmp_path / storage.CACHE).iterdir()) == []


def test_a_member_that_unpacks_to_more_than_its_shape_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    file = io.BytesIO()
    np.save(file, np.zeros((4, 2, 2)))
    np.savez_compressed(path, y=np.arange(4) % 2)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", file.getvalue() + bytes(50_000_000))
    assert path.stat().st_size < 200_000
    with pytest.raises(UserError, match=r"'X' unpacks to .* bytes, but its shape \(4, 2, 2\)"):
        load(DataOptions(source=str(path)))


def test_npz_sites_must_agree(write):
    a = write("a.npz", {"X": np.ones((2, 2)), "y": [0, 1]})
    with pytest.raises(
        UserError, match=r"b.npz: a row of X has shape \(3,\), but \(2,\) in .*a.npz"
    ):
        load(DataOptions(source=[a, write("b.npz", {"X": np.ones((2, 3)), "y": [0, 1]})]))
    bare = write("b.npz", {"X": np.ones((2, 2))})
    for sources in ([a, bare], [bare, a]):
        with pytest.raises(UserError, match=r"b.npz: no array 'y', which .*a.npz has"):
            load(DataOptions(source=sources), binary=False)
    assert load(DataOptions(source=bare, clients=1), binary=False).task == "none"


def test_npz_arrays_may_have_other_names(write):
    source = write("a.npz", {"X": np.ones((4, 2)), "sick": [0, 1, 0, 1], "who": [2, 1, 1, 10]})
    data = load(DataOptions(source=source, label="sick", client="who"))
    assert data.names == ("1", "2", "10")


# options


def test_options_are_documented_frozen_and_strict():
    assert all(field.description for field in DataOptions.model_fields.values())
    with pytest.raises(pydantic.ValidationError):
        DataOptions(sauce="digits")
    with pytest.raises(pydantic.ValidationError):
        DataOptions().clients = 3


@pytest.mark.parametrize(
    "options",
    [
        {"clients": 0},
        {"alpha": 0},
        {"alpha": float("inf")},
        {"similarity": 1.5},
        {"positive_ratio": 1},
        {"positive_ratio": 0},
        {"test": 1},
        {"validation": -0.1},
        {"test": 0.6, "validation": 0.4},
        {"max_categories": 0},
        {"partition": "random"},
    ],
)
def test_options_out_of_range(options):
    with pytest.raises(pydantic.ValidationError, match=next(iter(options))):
        DataOptions(**options)


def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDSADDLE_DATA", raising=False)
    assert DataOptions().folder == Path("data")
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    assert DataOptions().folder == tmp_path
    assert DataOptions(root=Path("elsewhere")).folder == Path("elsewhere")


# load_table


def test_a_table_for_prediction_keeps_order_and_text(write):
    trained = load(DataOptions(source=write("a.csv", table()), client="site"))
    new = write("new.csv", "note,sex,age,site,label\nx,f,031.50,north,1\ny,?,?,south,0.0\n")
    frame, inputs, labels, clients = load_table(
        new, trained.preprocessing, label="label", classes=trained.classes, client="site"
    )
    assert frame.to_csv(index=False) == Path(new).read_text()
    assert frame.index.tolist() == [0, 1]
    mean, scale = trained.preprocessing.columns[0].mean, trained.preprocessing.columns[0].scale
    assert inputs[0].tolist() == pytest.approx([(31.5 - mean) / scale, 1, 0], abs=1e-6)
    assert inputs[1].tolist() == [0, 0, 0]
    assert labels.tolist() == [1, 0]
    assert clients.tolist() == ["north", "south"]
    _, _, labels, clients = load_table(new, trained.preprocessing)
    assert labels is None
    assert clients is None


def test_load_table_reproduces_the_inputs_of_training(write):
    for name in ("a.csv", "a.parquet"):
        path = write(name, table())
        data = load(DataOptions(source=path, client="site"))
        _, inputs, labels, _ = load_table(path, data.preprocessing, "label", data.classes)
        assert torch.equal(inputs, data.inputs)
        assert torch.equal(labels, data.labels)


def test_load_table_errors(write):
    fitted = load(DataOptions(source=write("a.csv", table()), client="site")).preprocessing
    new = write("new.csv", "age,sex,outcome\n31,f,1\nold,m,2\n")
    with pytest.raises(
        UserError, match=r"new.csv: numeric column 'age' holds the text 'old' in row 2"
    ):
        load_table(new, fitted)
    new = write("new.csv", "age,sex,outcome\n31,f,1\n32,m,2\n")
    with pytest.raises(UserError, match=r"new.csv: unknown label '2' in row 2"):
        load_table(new, fitted, "outcome", ("0", "1"))
    with pytest.raises(UserError, match=r"only with the model's classes"):
        load_table(new, fitted, "outcome")
    with pytest.raises(UserError, match=r"data.label: .*did you mean 'outcome'"):
        load_table(new, fitted, "outcom", ("0", "1"))
    with pytest.raises(UserError, match=r"data.client: .*has no column 'site'"):
        load_table(new, fitted, client="site")
    with pytest.raises(UserError, match=r"new.csv: no column 'age'"):
        load_table(write("new.csv", "sex\nf\n"), fitted)
    with pytest.raises(UserError, match=r"gone.csv: no such file"):
        load_table("gone.csv", fitted)
    with pytest.raises(UserError, match=r"new.txt: unknown kind of table"):
        load_table(write("new.txt", "age"), fitted)


def test_a_parquet_index_with_a_name_is_a_column(tmp_path):
    frame = pd.DataFrame(table()).set_index("age")
    frame.to_parquet(tmp_path / "a.parquet")
    data = load(DataOptions(source=str(tmp_path / "a.parquet"), client="site"))
    assert data.preprocessing.feature_names[0] == "age"


def test_importing_is_light():
    code = (
        "import sys, fedsaddle.data; "
        "print([name for name in ('pandas', 'sklearn', 'pyarrow') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
