import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import fedsaddle.sklearn
from fedsaddle.algorithms import CODASCA
from fedsaddle.models import ModelOptions
from fedsaddle.runs.watching import Interrupted
from fedsaddle.sklearn import FederatedAUCClassifier

TRAIN = 400


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


@pytest.fixture
def small():
    """Two classes, three sites of 10, 30 and 20 rows, features of very different size."""
    random = np.random.default_rng(1)
    y = np.arange(60) % 2
    X = random.normal(size=(60, 3)) * [1.0, 1e-3, 1e4] + [0.0, 5.0, -1e6] + y[:, None]
    return X, y, np.repeat(["a", "b", "c"], [10, 30, 20])


def pairs(X, y, sites):
    return [(X[sites == site], y[sites == site]) for site in np.unique(sites)]


@parametrize_with_checks([FederatedAUCClassifier(rounds=5)])
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("algorithm", ["codasca", "fedavg"])
def test_auc_on_held_out_rows_of_four_sites(cancer, algorithm):
    X, y = cancer
    sites = np.arange(TRAIN) % 4
    classifier = FederatedAUCClassifier(algorithm, rounds=30).fit(X[:TRAIN], y[:TRAIN], sites=sites)
    held_out = X[TRAIN:], y[TRAIN:]
    assert roc_auc_score(held_out[1], classifier.decision_function(held_out[0])) >= 0.97
    assert classifier.score(*held_out) >= 0.9
    assert classifier.n_iter_ == 30
    assert [row["round"] for row in classifier.history_] == list(range(31))


def test_each_class_at_a_site_of_its_own(cancer):
    X, y = cancer
    classifier = FederatedAUCClassifier(rounds=30).fit(pairs(X[:TRAIN], y[:TRAIN], y[:TRAIN]))
    assert roc_auc_score(y[TRAIN:], classifier.decision_function(X[TRAIN:])) >= 0.97


def test_pairs_equal_a_table_with_sites(small):
    X, y, sites = small
    classifier = FederatedAUCClassifier(rounds=4)
    by_pairs = clone(classifier).fit(pairs(X, y, sites), sites=["a", "b", "c"])
    by_sites = clone(classifier).fit(X, y, sites=pd.Series(sites))
    expected = by_pairs.decision_function(X)
    np.testing.assert_array_equal(by_sites.decision_function(X), expected)
    assert list(by_pairs.sites_) == list(by_sites.sites_) == ["a", "b", "c"]
    one_site = clone(classifier).fit(X, y)
    assert list(one_site.sites_) == [0]
    assert not np.array_equal(one_site.decision_function(X), expected)


def test_rows_of_sites_may_be_interleaved(small):
    X, y, sites = small
    expected = FederatedAUCClassifier(rounds=4).fit(X, y, sites=sites).decision_function(X)
    # Each site's own rows stay in order.
    order = np.argsort(np.concatenate([np.arange(n) for n in (10, 30, 20)]), kind="stable")
    assert set(sites[order][:3]) == {"a", "b", "c"}
    mixed = FederatedAUCClassifier(rounds=4).fit(X[order], y[order], sites=sites[order])
    np.testing.assert_allclose(mixed.decision_function(X), expected, rtol=1e-12)


def test_standardisation_is_that_of_pooled_rows(small):
    X, y, sites = small
    X = np.column_stack([X, np.full(60, 0.1)])
    classifier = FederatedAUCClassifier(rounds=1).fit(pairs(X, y, sites))
    pooled = StandardScaler().fit(X)
    np.testing.assert_allclose(classifier.mean_, pooled.mean_, rtol=1e-12)
    np.testing.assert_allclose(classifier.scale_, pooled.scale_, rtol=1e-9)
    assert classifier.scale_[-1] == 1


def test_units_do_not_matter(small):
    X, y, sites = small
    classifier = FederatedAUCClassifier(rounds=3)
    expected = clone(classifier).fit(X, y, sites=sites).decision_function(X)
    other = X * [1024, 0.5, 2]  # powers of two: no rounding
    found = clone(classifier).fit(other, y, sites=sites).decision_function(other)
    np.testing.assert_array_equal(found, expected)


def test_outputs_are_those_of_the_network(small):
    X, y, sites = small
    classifier = FederatedAUCClassifier(model="mlp", rounds=2).fit(X, y, sites=sites)
    with torch.no_grad():
        inputs = torch.from_numpy((X - classifier.mean_) / classifier.scale_)
        logits = classifier.model_(inputs).squeeze(-1).numpy()
    np.testing.assert_allclose(classifier.decision_function(X), logits, rtol=1e-12)
    positive = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(classifier.predict_proba(X)[:, 1], positive, rtol=1e-12)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_array_equal(classifier.predict(X), (logits > 0).astype(int))


@pytest.mark.parametrize("labels", [["ill", "well"], [-1, 1], [False, True], [3.0, 7.0]])
def test_any_two_labels_and_the_greater_is_positive(small, labels):
    X, y, sites = small
    expected = FederatedAUCClassifier(rounds=3).fit(X, y, sites=sites)
    named = np.array(labels)[y]
    found = FederatedAUCClassifier(rounds=3).fit(pairs(X, named, sites))
    assert found.classes_.tolist() == labels
    np.testing.assert_array_equal(found.decision_function(X), expected.decision_function(X))
    np.testing.assert_array_equal(found.predict(X), np.array(labels)[expected.predict(X)])


def test_the_random_state_decides(small):
    X, y, sites = small

    def scores(random_state):
        classifier = FederatedAUCClassifier(rounds=2, random_state=random_state)
        return classifier.fit(X, y, sites=sites).decision_function(X)

    np.testing.assert_array_equal(scores(3), scores(np.int64(3)))
    assert not np.array_equal(scores(3), scores(4))
    random = np.random.RandomState
    np.testing.assert_array_equal(scores(random(3)), scores(random(3)))
    generator = random(3)
    assert not np.array_equal(scores(generator), scores(generator))
    assert not np.array_equal(scores(None), scores(None))


def test_settings_reach_the_method(small):
    X, y, sites = small

    def scores(*arguments, **settings):
        classifier = FederatedAUCClassifier(*arguments, rounds=2, **settings)
        return classifier.fit(X, y, sites=sites).decision_function(X)

    settings = {"learning_rate": 0.1, "local_steps": 3, "batch_size": 4}
    expected = scores(CODASCA(**settings, prox=0.1))
    np.testing.assert_array_equal(scores(CODASCA(prox=0.1), **settings), expected)
    for name in settings:
        fewer = {key: value for key, value in settings.items() if key != name}
        assert not np.array_equal(scores(CODASCA(prox=0.1), **fewer), expected)
    np.testing.assert_array_equal(scores("codasca", **settings), scores(CODASCA(**settings)))


def test_a_network_of_ones_own(small):
    X, y, _ = small
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    FederatedAUCClassifier(model=network, rounds=2).fit(X, y).predict(X)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    options = ModelOptions(name="mlp", arguments={"hidden": [5]})
    classifier = clone(FederatedAUCClassifier(model=options, rounds=1)).fit(X, y)
    assert classifier.model_[1].out_features == 5


def test_saved_and_loaded(small, tmp_path):
    X, y, _ = small
    classifier = FederatedAUCClassifier(rounds=2).fit(X, y)
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    loaded = [
        pickle.loads(pickle.dumps(classifier)),
        joblib.load(tmp_path / "classifier.joblib"),
    ]
    for other in loaded:
        np.testing.assert_array_equal(other.predict_proba(X), classifier.predict_proba(X))
        assert other.history_ == classifier.history_


def test_grid_search_in_a_pipeline_with_sites(small):
    X, y, sites = small
    pipeline = make_pipeline(PolynomialFeatures(2), FederatedAUCClassifier(rounds=2))
    name = "federatedaucclassifier"
    grid = {f"{name}__learning_rate": np.array([1e-6, 0.5]), f"{name}__rounds": np.array([1, 3])}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="roc_auc", error_score="raise")
    search.fit(X, y, **{f"{name}__sites": sites})
    assert list(search.best_estimator_[-1].sites_) == ["a", "b", "c"]
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    alone = cross_val_score(
        FederatedAUCClassifier(rounds=2), X, y, cv=2, params={"sites": sites}, error_score="raise"
    )
    assert alone.shape == (2,)


def test_feature_names(small):
    X, y, sites = small
    frame = pd.DataFrame(X, columns=["age", "weight", "height"])
    classifier = FederatedAUCClassifier(rounds=1).fit(
        [(frame[sites == site], pd.Series(y[sites == site])) for site in "abc"]
    )
    assert classifier.feature_names_in_.tolist() == ["age", "weight", "height"]
    assert classifier.n_features_in_ == 3
    renamed = frame.rename(columns={"age": "years"})
    with pytest.raises(ValueError, match="years"):
        classifier.predict(renamed)
    with pytest.raises(ValueError, match=r"site '1': .*feature names(.|\n)*years"):
        FederatedAUCClassifier().fit([(frame, y), (renamed, y)])


X3, X4, Y = np.eye(4, 3), np.eye(4), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "at least one site"),
        ([(X3, Y), (X4, Y)], "site '1': X has 4 features, but .* expecting 3"),
        ([(X3, Y), (X3, Y[:3])], r"site '1': .*inconsistent numbers of samples: \[4, 3\]"),
        ([(X3, Y), (X3[:0], Y[:0])], "site '1': Found array with 0 sample"),
        ([(X3, Y), (X3[0], Y)], "site '1': Expected 2D array"),
        ([(X3, Y), (X3 * np.nan, Y)], "site '1': Input X contains NaN"),
        ([(X3, Y), (X3, Y + np.inf)], "site '1': Input y contains"),
        ([(X3, Y), (X3, Y + 0.5)], "site '1': Unknown label type: continuous"),
        ([(X3, Y), (X3, None)], "site '1': .*requires y"),
        ([(X3, Y), X3], "site '1': give a pair"),
        ([(X3, Y), (X3, Y, Y)], "site '1': give a pair"),
        ([(X3, Y), (X3, Y.astype(str))], "Mix of label input types"),
        ([(X3, Y), (X3, Y + 1)], "Only binary classification.* 3 classes"),
        ([(X3, 0 * Y), (X3, 0 * Y)], "only one class, 0"),
        ([(X3 * 1e200, Y)], "feature 0 holds numbers too large"),
    ],
)
def test_wrong_sites_are_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        FederatedAUCClassifier(rounds=1).fit(given)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (["a"] * 3, "inconsistent numbers of samples"),
        (["a", "b", None, "b"], "sites: row 2 has no site name"),
        ([1.0, 2.0, 2.0, np.nan], "sites: row 3 has no site name"),
        (np.array(["a", 1, 1, "b"], dtype=object), "all names as text"),
    ],
)
def test_wrong_site_names_are_refused(sites, message):
    with pytest.raises(ValueError, match=message):
        FederatedAUCClassifier(rounds=1).fit(X3, Y, sites=sites)


def test_names_of_pairs_are_one_each_and_unique():
    both = [(X3, Y), (X3, Y)]
    with pytest.raises(ValueError, match=r"2 pairs .* 1 site names"):
        FederatedAUCClassifier(rounds=1).fit(both, sites=["a"])
    with pytest.raises(ValueError, match="two clients are called 'a'"):
        FederatedAUCClassifier(rounds=1).fit(both, sites=["a", "a"])
    with pytest.raises(ValueError, match=r"site 'rome': .*4 features"):
        FederatedAUCClassifier(rounds=1).fit([(X3, Y), (X4, Y)], sites=["paris", "rome"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "run.rounds"),
        ({"learning_rate": -1.0}, "algorithm.learning_rate"),
        ({"algorithm": "codsca"}, "did you mean 'codasca'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"random_state": "seven"}, "cannot be used to seed"),
        ({"learning_rate": 1e30}, "smaller algorithm.learning_rate may help"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        FederatedAUCClassifier(**{"rounds": 3, **settings}).fit(X3, Y)


def test_a_failed_fit_is_no_fit():
    classifier = FederatedAUCClassifier(rounds=0)
    with pytest.raises(ValueError, match="rounds"):
        classifier.fit(X3, Y)
    with pytest.raises(NotFittedError):
        classifier.predict(X3)


def test_an_interruption_ends_a_grid_search_too(monkeypatch):
    def interrupted(*arguments, **settings):
        raise Interrupted("stopped after round 1 of 2")

    monkeypatch.setattr(fedsaddle.sklearn, "train", interrupted)
    search = GridSearchCV(FederatedAUCClassifier(), {"rounds": [1, 2]}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X3, Y)
