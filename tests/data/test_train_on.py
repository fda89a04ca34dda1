"""Training on some clients only."""

import numpy as np
import pytest

from fedsaddle.data import DataOptions, load
from fedsaddle.errors import UserError


def options(path, **settings):
    return DataOptions(source=str(path), label="y", client="site", **settings)


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    rows = [
        f"{site},{y},{shift + random.normal():.6f}"
        for site, shift in (("Bonn", 0.0), ("Jena", 5.0), ("Ulm", 9.0))
        for y in (0, 1) * 20
    ]
    path = tmp_path / "sites.csv"
    path.write_text("\n".join(["site,y,x", *rows]) + "\n")
    return path


def test_only_these_train_and_all_are_tested_on_the_same_rows(table):
    every, some = load(options(table)), load(options(table, train_on=["Ulm", "Bonn"]))
    assert some.names == every.names == ("Bonn", "Jena", "Ulm")
    assert some.train.counts.tolist() == [every.train.counts[0], 0, every.train.counts[2]]
    assert some.validation.counts[1] == 0
    for part in ("train", "validation"):
        for client in (0, 2):
            assert getattr(some, part)[client].tolist() == getattr(every, part)[client].tolist()
    assert some.test.indices.tolist() == every.test.indices.tolist()


def test_preprocessing_is_fitted_on_those_that_train(table):
    alone = load(options(table, train_on=["Ulm"]))
    x = alone.inputs[alone.train.indices].numpy()
    assert np.allclose(x.mean(), 0, atol=1e-5)
    assert np.allclose(x.std(), 1, atol=1e-4)


def test_an_unknown_client_is_named(table):
    with pytest.raises(UserError, match=r"data\.train_on: .* no client 'Ulmm'; did you mean 'Ulm'"):
        load(options(table, train_on=["Ulmm"]))
