"""Several findings per row: their columns, what is unknown, and how rows are dealt and split."""

import numpy as np
import pandas as pd
import pydantic
import pytest

from fedsaddle.data import DataOptions, FederatedData, load
from fedsaddle.data.federated import strata
from fedsaddle.data.labels import encode_findings
from fedsaddle.errors import UserError

NAMES = ["Edema", "Mass"]


def cells(*columns):
    return np.array(list(zip(*columns, strict=True)), dtype=object)


def table(n=200):
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.normal(60, 9, n),
            "Edema": random.choice(["1.0", "0.0", "-1.0", ""], n, p=[0.2, 0.5, 0.1, 0.2]),
            "Mass": random.choice(["Yes", "No", None], n, p=[0.05, 0.85, 0.1]),
            "site": random.choice(["Basel", "Ulm"], n),
        }
    )


def expected(frame):
    edema = frame["Edema"].map({"1.0": 1, "0.0": 0, "-1.0": -1, "": -1})
    mass = frame["Mass"].map({"Yes": 1, "No": 0}).fillna(-1)
    return np.stack([edema, mass], axis=1).astype(int)


@pytest.fixture(params=["csv", "parquet"])
def path(request, tmp_path):
    file = tmp_path / f"table.{request.param}"
    table().to_csv(file, index=False) if request.param == "csv" else table().to_parquet(file)
    return file


def test_columns_become_findings(path):
    data = load(DataOptions(source=str(path), label=NAMES, client="site"), binary=False)
    assert data.task == "multilabel"
    assert data.classes == ("Edema", "Mass")
    assert data.names == ("Basel", "Ulm")
    assert data.preprocessing.feature_names == ("age",)
    assert np.array_equal(data.labels.numpy(), expected(table()))


@pytest.mark.parametrize(
    ("column", "positive", "labels"),
    [
        (["TRUE", "False", None], None, [1, 0, -1]),
        (["1", "1", "-1"], None, [1, 1, -1]),
        (["0", None, None], None, [0, -1, -1]),
        ([None, None, None], None, [-1, -1, -1]),
        (["seen", "not seen", "-1"], "seen", [1, 0, -1]),
        (["1", "0", "-1"], "1,-1", [1, 0, 1]),
        (["2", "1", "0"], "1, 2", [1, 1, 0]),
    ],
)
def test_what_counts_as_present(column, positive, labels):
    found = encode_findings(cells(column), ["Edema"], positive, "a.csv")
    assert found[:, 0].tolist() == labels


@pytest.mark.parametrize(
    ("column", "positive"),
    [
        (["0", "1", "2"], None),
        (["seen", "not seen", None], None),
        (["yes", "1", "no"], None),
        (["seen", "not seen", "unsure"], "seen"),
    ],
)
def test_other_values_are_refused_with_the_finding(column, positive):
    with pytest.raises(UserError, match=r"a\.csv: the finding 'Mass' has the values"):
        encode_findings(cells(column), ["Mass"], positive, "a.csv")


def test_settings_that_cannot_be_are_refused(path):
    def read(**options):
        return load(DataOptions(source=str(path), client="site", **options), binary=False)

    with pytest.raises(UserError, match="did you mean 'Mass'"):
        read(label=["Edema", "Mas"])
    with pytest.raises(UserError, match="positive_ratio is for one label"):
        read(label=NAMES, positive_ratio=0.1)
    with pytest.raises(UserError, match=r"table.*: the finding 'Edema' has the values 0, 1"):
        read(label=NAMES, positive="seen")
    for label in ([], ["Edema", "Edema"]):
        with pytest.raises(pydantic.ValidationError, match="each of them once"):
            DataOptions(label=label)
    assert DataOptions(label=["Edema"]).label == "Edema"


def test_a_positive_value_that_no_column_has_is_refused(tmp_path):
    file = tmp_path / "table.csv"
    pd.DataFrame({"x": [1, 2], "a": ["no", "no"], "b": ["no", "no"]}).to_csv(file, index=False)
    with pytest.raises(UserError, match=r"table\.csv has the value 'seen'"):
        load(DataOptions(source=str(file), label=["a", "b"], positive="seen"), binary=False)


def test_a_row_counts_for_its_rarest_finding():
    random = np.random.default_rng(1)
    labels = (random.random((300, 3)) < [0.5, 0.02, 0.2]).astype(int)
    labels[random.random((300, 3)) < 0.1] = -1
    order = np.argsort((labels == 1).sum(axis=0))
    assert order.tolist() == [1, 2, 0]
    naive = [next((k + 1 for k in order if row[k] == 1), 0) for row in labels]
    assert strata(labels).tolist() == naive
    assert np.array_equal(strata(labels[:, 0]), labels[:, 0])


def test_rare_findings_are_in_every_part(path):
    data = load(DataOptions(source=str(path), label=NAMES, test=0.3, clients=1, partition="iid"))
    labels = data.labels.numpy()
    total = (labels[:, 1] == 1).sum()
    tested = (labels[data.test.indices, 1] == 1).sum()
    assert abs(tested - 0.3 * total) <= 1
    assert (labels[data.train.indices, 1] == 1).any()


def test_many_findings_still_leave_test_rows():
    """Whole combinations would each be a class of its own, with one row, and stay in training."""
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, (100, 14))
    names = [f"f{k}" for k in range(14)]
    data = FederatedData.from_clients([(random.normal(size=(100, 2)), labels)], findings=names)
    assert len(data.test.indices) == 25
    assert len(data.validation.indices) == 10


@pytest.mark.parametrize("how", ["dirichlet", "sorted", "iid", "quantity", "disjoint-classes"])
def test_every_partition_deals_every_row_once(path, how):
    options = DataOptions(source=str(path), label=NAMES, drop=["site"], partition=how, clients=2)
    data = load(options, binary=False)
    parts = (data.train, data.validation, data.test)
    rows = np.concatenate([part.indices for part in parts])
    assert np.array_equal(np.sort(rows), np.arange(200))


def test_arrays(tmp_path):
    labels = expected(table())
    X = np.random.default_rng(0).normal(size=(200, 3))
    np.savez(tmp_path / "one.npz", X=X, y=labels)
    unknown = np.where(labels < 0, np.nan, labels)
    np.savez(tmp_path / "each.npz", X=X, a=unknown[:, 0], b=unknown[:, 1])
    one = load(DataOptions(source=str(tmp_path / "one.npz")), binary=False)
    assert one.classes == ("0", "1")
    assert np.array_equal(one.labels.numpy(), labels)
    each = load(DataOptions(source=str(tmp_path / "each.npz"), label=["b", "a"]), binary=False)
    assert each.classes == ("b", "a")
    assert np.array_equal(each.labels.numpy(), labels[:, ::-1])
    np.savez(tmp_path / "short.npz", X=X, a=labels[:5, 0], b=labels[:, 1])
    with pytest.raises(UserError, match="one value per row"):
        load(DataOptions(source=str(tmp_path / "short.npz"), label=["a", "b"]), binary=False)
