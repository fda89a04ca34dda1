"""Adult: the publisher's files, and broken ones."""

import numpy as np
import pytest

from fedsaddle.data import DataOptions, load
from fedsaddle.data.sources.adult import COLUMNS
from fedsaddle.errors import UserError

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "{sex}, 2174, 0, 40, {country}, {label}"
)


def row(i, end=""):
    sex = "Female" if i % 3 == 0 else "Male"
    country = "?" if i % 5 == 0 else "United-States"
    return ROW.format(sex=sex, country=country, label=(">50K" if i % 4 == 0 else "<=50K") + end)


@pytest.fixture
def files(tmp_path):
    """Forty training and twenty test rows as the publisher writes them."""
    folder = tmp_path / "adult"
    folder.mkdir()
    (folder / "adult.data").write_text("\n".join(row(i) for i in range(40)) + "\n\n")
    test = ["|1x3 Cross validator", *(row(i, ".") for i in range(20))]
    (folder / "adult.test").write_text("\n".join(test) + "\n\n")
    return folder


def options(files, **more):
    return DataOptions(source="adult", root=files.parent, **more)


def test_the_publishers_test_file_is_the_test_set(files):
    data = load(options(files, clients=2, partition="iid", validation=0))
    assert data.names == ("client-0", "client-1", "held-out")
    assert data.train.counts.tolist() == [20, 20, 0]
    assert data.test.counts.tolist() == [0, 0, 20]
    assert data.classes == ("<=50K", ">50K")
    assert data.positive_ratio == 0.25
    assert int(data.labels[data.test.indices].sum()) == 5


def test_clients_by_a_feature_have_one_value_in_training_and_test(files):
    data = load(options(files, partition="feature", feature="sex", clients=5, validation=0.2))
    assert data.names == ("Female-0", "Female-1", "Female-2", "Male-0", "Male-1")
    assert data.groups == ("Female",) * 3 + ("Male",) * 2
    is_female = data.inputs[:, data.preprocessing.feature_names.index("sex=Female")] == 1
    for client, group in enumerate(data.groups):
        for part in (data.train, data.validation, data.test):
            assert (is_female[part[client]] == (group == "Female")).all()
    assert data.train.counts.sum() + data.validation.counts.sum() == 40
    assert data.test.counts.tolist() == [3, 2, 2, 7, 6]


def test_missing_values_of_the_feature_are_a_group(files):
    data = load(options(files, partition="feature", feature="native-country", clients=2))
    assert data.groups == ("United-States", "missing")


def test_positive_ratio_leaves_the_test_rows_alone(files):
    data = load(options(files, positive_ratio=0.1, validation=0))
    assert data.positive_ratio == pytest.approx(0.1, abs=0.02)
    assert len(data.test.indices) == 20


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("adult.data", lambda text: text[:3000], r"adult.data: line \d+ .*"),
        ("adult.data", lambda text: text.replace("39, ", "", 1), "line 1 has 14 fields, not 15"),
        ("adult.test", lambda text: text.replace("<=50K.", "poor", 1), "must end in <=50K or >50K"),
        ("adult.test", lambda text: "|1x3 Cross validator\n", "adult.test: has no rows"),
        ("adult.data", lambda text: text.replace("39", "old", 5), None),
    ],
)
def test_broken_files(files, name, change, message):
    path = files / name
    path.write_text(change(path.read_text()))
    if message is None:  # text in a column of numbers makes it one of categories
        assert load(options(files)).inputs.shape[0] == 60
        return
    with pytest.raises(UserError, match=message):
        load(options(files))


def test_not_text(files):
    (files / "adult.data").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"adult.data: cannot be read as text"):
        load(options(files))


def test_missing_files_say_how_to_get_them(tmp_path):
    with pytest.raises(UserError, match=r"adult.data is missing; .*fedsaddle data fetch adult"):
        load(DataOptions(source="adult", root=tmp_path))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"partition": "feature"}, "name the column with data.feature"),
        ({"partition": "feature", "feature": "sx"}, "did you mean 'sex'"),
        (
            {"partition": "feature", "feature": "sex", "clients": 1},
            r"has 2 values \(Female, Male\), so data.clients must be at least 2, not 1",
        ),
        (
            {"partition": "feature", "feature": "sex", "clients": 30},
            "15 clients but only 14 training rows with the value 'Female'",
        ),
        ({"partition": "iid", "feature": "sex"}, "data.feature names groups"),
        ({"min_rows": 2}, "data.min_rows chooses among"),
        ({"label": "sex"}, "data.label does not apply to adult"),
    ],
)
def test_impossible_options(files, more, message):
    with pytest.raises(UserError, match=message):
        load(options(files, **more))


@pytest.mark.data
def test_the_real_files(data_root):
    data = load(
        DataOptions(
            source="adult",
            root=data_root,
            partition="feature",
            feature="sex",
            clients=10,
            validation=0,
            standardise=False,
        )
    )
    assert len(data.train.indices) == 32561
    assert len(data.test.indices) == 16281
    assert int(data.labels[data.train.indices].sum()) == 7841
    assert int(data.labels[data.test.indices].sum()) == 3846
    assert data.groups == ("Female",) * 5 + ("Male",) * 5
    assert data.train.counts[:5].sum() == 10771  # women, as adult.names has it: 33.08 %
    assert data.train.counts[:5].max() - data.train.counts[:5].min() <= 1
    names = data.preprocessing.feature_names
    assert len([name for name in names if "=" not in name]) == 6
    first = dict(zip(names, data.inputs[0].tolist(), strict=True))
    assert (first["age"], first["fnlwgt"], first["sex=Male"]) == (39, 77516, 1)
    assert {name.split("=")[0] for name in names} == set(COLUMNS)
    ages = data.inputs[data.train.indices, names.index("age")].numpy()
    assert np.mean(ages, dtype=np.float64) == pytest.approx(38.58, abs=0.01)
