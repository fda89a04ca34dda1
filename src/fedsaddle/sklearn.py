"""A scikit-learn classifier: federated AUC maximisation behind `fit` and `predict`."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import nn

from fedsaddle.algorithms import Algorithm
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError
from fedsaddle.models import ModelOptions
from fedsaddle.runs import train
from fedsaddle.runs.config import make_algorithm, validated
from fedsaddle.runs.saved import SavedModel
from fedsaddle.runs.watching import Interrupted

Part = tuple[np.ndarray, np.ndarray]


class FederatedAUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Rank the rows of two classes, trained across sites that keep their rows apart.

    The sites are simulated in this process. All their rows are used for training. Features are
    standardised with means and deviations from each site's counts, sums and sums of squares.

    `decision_function` is the network's output, `predict_proba` its sigmoid. AUC says how rows are
    ranked, not where to cut: `predict` cuts at 0, which weighs both classes alike, however rare
    one of them is. To have calibrated probabilities or a tuned cut, wrap the classifier in
    CalibratedClassifierCV or TunedThresholdClassifierCV. `score` is the accuracy, as for every
    scikit-learn classifier; for AUC use `scoring="roc_auc"`.

    Parameters
    ----------
    algorithm : a method's name, or an Algorithm.
    model : a network's name, "package.module:Class", a ModelOptions, or an nn.Module of one output.
    rounds : communication rounds.
    learning_rate, local_steps, batch_size : settings of the method; its own when None.
    random_state : an int repeats the same run, with a RandomState or None every fit is another.

    Attributes
    ----------
    classes_ : the two labels, sorted; the second is the positive one.
    sites_ : the names of the sites, in the order of training.
    model_ : the trained network; its inputs are standardised.
    mean_, scale_ : of every feature, over all sites (scale_ is 1 for a constant feature).
    history_ : one dict of measurements per evaluated round.
    n_iter_ : the rounds that were run.
    n_features_in_, feature_names_in_ : as in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.metrics import roc_auc_score
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> hospitals = [(X[:200], y[:200]), (X[200:300], y[200:300]), (X[300:400], y[300:400])]
    >>> classifier = FederatedAUCClassifier(rounds=10).fit(hospitals)
    >>> bool(roc_auc_score(y[400:], classifier.decision_function(X[400:])) > 0.97)
    True

    The same from one table, with the name of every row's site:

    >>> names = ["a"] * 200 + ["b"] * 100 + ["c"] * 100
    >>> FederatedAUCClassifier(rounds=10).fit(X[:400], y[:400], sites=names).sites_
    array(['a', 'b', 'c'], dtype='<U1')
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "codasca",
        model: str | ModelOptions | nn.Module = "logistic",
        *,
        rounds: int = 100,
        learning_rate: float | None = None,
        local_steps: int | None = None,
        batch_size: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any = None, sites: Any = None) -> Self:
        """Train on `[(X1, y1), (X2, y2), …]`, a pair per site, or on one table.

        sites: the name of every row's site; with pairs, optionally the name of every pair. A table
        without it is one site. A site may lack one of the two classes.
        """
        if y is None and isinstance(X, list | tuple):
            self.sites_, parts = self._pairs(X, sites)
        else:
            self.sites_, parts = self._table(X, y, sites)
        self.classes_ = _two_classes([labels for _, labels in parts])
        self.mean_, self.scale_ = _moments([rows for rows, _ in parts])
        clients = [(self._inputs(rows), labels == self.classes_[1]) for rows, labels in parts]
        names = [str(site) for site in self.sites_]
        try:
            result = train(
                "auc",
                FederatedData.from_clients(clients, names, test=0, validation=0),
                self._method(),
                model=self.model,
                rounds=_plain(self.rounds),
                seed=self._seed(),
            )
        except UserError as error:
            raise ValueError(str(error)) from None
        except Interrupted:  # an Exception, which a grid search would take for a failed fit
            raise KeyboardInterrupt from None
        assert result.model is not None
        self.model_ = result.model.double()
        self.history_ = result.history
        self.n_iter_: int = result.history[-1]["round"]
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """The network's output for every row: the higher, the likelier `classes_[1]`."""
        check_is_fitted(self, "model_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        saved = SavedModel(self.model_, "binary", tuple(map(str, self.classes_)), None)
        return saved.logits(torch.from_numpy(self._inputs(X)))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The sigmoid of the network's output, `(n, 2)`; a score, not a calibrated probability."""
        positive = torch.sigmoid(torch.from_numpy(self.decision_function(X))).numpy()
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> np.ndarray:
        """The positive class where the network's output is above 0."""
        positive: np.ndarray = self.decision_function(X) > 0
        return self.classes_[positive.astype(np.int64)]

    def _table(self, X: Any, y: Any, sites: Any) -> tuple[np.ndarray, list[Part]]:
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if sites is None:
            return np.array([0]), [(X, y)]
        check_consistent_length(X, sites)
        owners, names = _numbered(sites)
        return names, [(X[owners == site], y[owners == site]) for site in range(len(names))]

    def _pairs(self, pairs: Sequence[Any], sites: Any) -> tuple[np.ndarray, list[Part]]:
        if not pairs:
            raise ValueError("Give at least one site's pair (X, y).")
        names = np.arange(len(pairs)) if sites is None else column_or_1d(sites)
        if len(names) != len(pairs):
            raise ValueError(f"There are {len(pairs)} pairs (X, y), but {len(names)} site names.")
        parts: list[Part] = []
        for name, pair in zip(names, pairs, strict=True):
            try:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise ValueError("give a pair (X, y), or, for one table, y as well.")
                X, y = validate_data(self, *pair, dtype=np.float64, reset=not parts)
                check_classification_targets(y)
            except (TypeError, ValueError) as error:
                raise ValueError(f"site '{name}': {error}") from error
            parts.append((X, y))
        return names, parts

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        inputs: np.ndarray = (X - self.mean_) / self.scale_
        return inputs

    def _method(self) -> Algorithm:
        names = ("learning_rate", "local_steps", "batch_size")
        given = {name: _plain(getattr(self, name)) for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(self.algorithm, str):
            return make_algorithm({"name": self.algorithm, **given})
        method: Algorithm = validated(
            type(self.algorithm), self.algorithm.model_dump() | given, "algorithm"
        )
        return method

    def _seed(self) -> int:
        random = check_random_state(self.random_state)  # refuses what is no random state
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(random.randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """A numpy number, as from a parameter grid, as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _numbered(sites: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every row's site as a number, and the sorted names."""
    missing = np.asarray(pd.isna(sites))
    if missing.any():
        raise ValueError(f"sites: row {int(np.argmax(missing))} has no site name.")
    try:
        names, owners = np.unique(column_or_1d(sites), return_inverse=True)
    except TypeError:
        raise ValueError("sites: give all names as text, or all as numbers.") from None
    return owners, names


def _two_classes(labels: Sequence[np.ndarray]) -> np.ndarray:
    """The sorted labels of all sites together; only the labels that occur leave a site."""
    classes: np.ndarray = unique_labels(*map(np.unique, labels))
    if len(classes) == 1:
        raise ValueError(
            f"There is only one class, {classes[0]}; two are needed among all sites together."
        )
    if len(classes) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is multiclass: "
            f"there are {len(classes)} classes."
        )
    return classes


def _moments(sites: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of every feature, from one sum and one sum of squares per site.

    Squares are taken about the global mean, not about zero: the variance then does not cancel.
    """
    n = sum(len(X) for X in sites)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum([X.sum(axis=0) for X in sites], axis=0) / n
        scale = np.sqrt(np.sum([np.square(X - mean).sum(axis=0) for X in sites], axis=0) / n)
    if not np.isfinite(scale).all():
        feature = int(np.argmin(np.isfinite(scale)))
        raise ValueError(f"X: feature {feature} holds numbers too large to square; rescale it.")
    # The mean of n equal numbers is off by up to n rounding errors: that is not a spread.
    constant = scale <= 2 * n * np.finfo(np.float64).eps * np.abs(mean)
    return mean, np.where(constant, 1.0, scale)
