"""AUC of several findings: one by one as the AUC problem, unknown labels left out, and trained."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

import fedsaddle
from fedsaddle.data import FederatedData
from fedsaddle.errors import UserError
from fedsaddle.models import ModelOptions
from fedsaddle.problems import AUC, Batch, MultilabelAUC
from fedsaddle.problems.oracle import Oracle
from fedsaddle.runs.saved import SavedModel

NAMES = ["edema", "effusion", "nodule"]
RATIOS = [0.2, 0.5, 0.7]


def problem_for(k: int = 3, **options: object) -> MultilabelAUC:
    torch.manual_seed(0)
    given = {"findings": NAMES[:k], "positive_ratios": RATIOS[:k], **options}
    return MultilabelAUC(model=nn.Linear(4, k).double(), **given)


def batch_of(rows: int = 30, k: int = 3, unknown: float = 0.0) -> Batch:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, (rows, k))
    labels[random.random((rows, k)) < unknown] = -1
    return Batch(torch.from_numpy(random.normal(size=(rows, 4))), torch.from_numpy(labels))


def point(problem: MultilabelAUC) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    random = np.random.default_rng(1)
    x, _ = problem.start(torch.Generator())
    a, b, alpha = (torch.from_numpy(random.normal(size=len(problem.findings))) for _ in range(3))
    return x | {"a": a, "b": b}, {"alpha": alpha}


def alone(problem: MultilabelAUC, k: int, x: dict[str, Tensor], y: dict[str, Tensor]) -> tuple:
    """The plain AUC problem of finding k, and its variables."""
    single = AUC(
        model=nn.Linear(4, 1).double(),
        surrogate=problem.surrogate,
        margin=problem.margin,
        positive_ratio=RATIOS[k],
    )
    own = {"weight": x["weight"][k : k + 1], "bias": x["bias"][k : k + 1]}
    return single, own | {"a": x["a"][k], "b": x["b"][k]}, {"alpha": y["alpha"][k]}


@pytest.mark.parametrize("surrogate", ["square", "margin"])
def test_it_is_the_mean_of_the_findings_own_problems(surrogate: str) -> None:
    problem = problem_for(surrogate=surrogate, margin=0.8)
    x, y = point(problem)
    batch = batch_of()
    expected = []
    for k in range(3):
        single, own, dual = alone(problem, k, x, y)
        expected.append(float(single.loss(own, dual, Batch(batch.inputs, batch.labels[:, k]))))
    assert float(problem.loss(x, y, batch)) == pytest.approx(np.mean(expected), abs=1e-12)


@pytest.mark.parametrize("surrogate", ["square", "margin"])
def test_unknown_labels_count_as_if_their_rows_were_not_there(surrogate: str) -> None:
    batch = batch_of(unknown=0.4)
    known = (batch.labels >= 0).double().mean(dim=0).tolist()
    problem = problem_for(surrogate=surrogate, known_ratios=known)
    x, y = point(problem)
    expected = []
    for k in range(3):
        single, own, dual = alone(problem, k, x, y)
        rows = batch.labels[:, k] >= 0
        expected.append(
            float(single.loss(own, dual, Batch(batch.inputs[rows], batch.labels[rows, k])))
        )
    assert float(problem.loss(x, y, batch)) == pytest.approx(np.mean(expected), abs=1e-12)


def test_the_loss_is_a_mean_over_rows() -> None:
    problem = problem_for(known_ratios=[0.5, 0.6, 0.9])
    x, y = point(problem)
    batch = batch_of(unknown=0.4)
    parts = [Batch(batch.inputs[s], batch.labels[s]) for s in (slice(0, 7), slice(7, 30))]
    added = sum(len(part.labels) / 30 * float(problem.loss(x, y, part)) for part in parts)
    assert float(problem.loss(x, y, batch)) == pytest.approx(added, abs=1e-12)


def test_a_finding_that_is_unknown_everywhere_pulls_at_nothing() -> None:
    problem = problem_for()
    layout = problem.layout(torch.float64)
    x, y = point(problem)
    batch = batch_of()
    batch.labels[:, 1] = -1
    z = layout.flatten(x, y).unsqueeze(0)
    stacked = Batch(batch.inputs.unsqueeze(0), batch.labels.unsqueeze(0))
    _, gradient, _ = Oracle(problem, layout).gradient(z, z.new_zeros(1, 0), stacked)
    of_x, of_y = layout.unflatten(gradient[0], z.new_zeros(0))
    assert not of_x["weight"][1].any()
    assert not of_x["a"][1]
    assert not of_y["alpha"][1]
    assert of_y["alpha"][0]


def test_the_saddle_gradient_by_finite_differences() -> None:
    problem = problem_for(known_ratios=[0.5, 0.6, 0.9])
    layout = problem.layout(torch.float64)
    z = layout.flatten(*point(problem)).unsqueeze(0)
    batch = batch_of(unknown=0.3)
    stacked = Batch(batch.inputs.unsqueeze(0), batch.labels.unsqueeze(0))
    oracle, nothing = Oracle(problem, layout), z.new_zeros(1, 0)
    _, gradient, _ = oracle.gradient(z, nothing, stacked)
    for i in range(layout.d):
        step = torch.zeros_like(z)
        step[0, i] = 1e-6
        slope = oracle.loss(z + step, nothing, stacked) - oracle.loss(z - step, nothing, stacked)
        sign = 1 if i < layout.dx else -1
        assert float(gradient[0, i]) == pytest.approx(sign * float(slope) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("surrogate", ["square", "margin"])
def test_stack_is_loop(surrogate: str) -> None:
    problem = problem_for(surrogate=surrogate)
    layout = problem.layout(torch.float64)
    random = np.random.default_rng(2)
    z, carried = torch.from_numpy(random.normal(size=(3, layout.d))), torch.zeros(3, 0)
    labels = torch.from_numpy(random.integers(-1, 2, (3, 6, 3)))
    batch = Batch(torch.from_numpy(random.normal(size=(3, 6, 4))), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stacked = Oracle(problem, layout, "stack").gradient(z, carried, batch)
    looped = Oracle(problem, layout, "loop").gradient(z, carried, batch)
    assert torch.allclose(stacked[0], looped[0], atol=1e-12)
    assert torch.allclose(stacked[1], looped[1], atol=1e-12)


def test_alpha_is_kept_nonnegative_with_a_margin() -> None:
    problem = problem_for(surrogate="margin")
    layout = problem.layout(torch.float64)
    z = layout.project(-torch.ones(layout.d, dtype=torch.float64))
    assert layout.y(z).tolist() == [0.0, 0.0, 0.0]
    assert problem_for().projections() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"findings": ["a", "a", "b"]}, "same name"),
        ({"positive_ratios": [0.1]}, "one ratio per finding"),
        ({"positive_ratios": [0.1, 0.2, 1.0]}, "between 0 and 1"),
        ({"known_ratios": [0.1, 0.2, 0.0]}, "above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        problem_for(**options)


# --- whole runs -----------------------------------------------------------------------------------


def clients(n: int = 4, rows: int = 200) -> list[tuple[np.ndarray, np.ndarray]]:
    """Three findings that depend on one column each; a third of the labels is unknown."""
    random = np.random.default_rng(3)
    made = []
    for _ in range(n):
        inputs = random.normal(size=(rows, 4)).astype(np.float32)
        labels = (inputs[:, :3] + 0.3 * random.normal(size=(rows, 3)) > [1, 0, -0.5]).astype(float)
        labels[random.random((rows, 3)) < 1 / 3] = np.nan
        made.append((inputs, labels))
    return made


def test_training_ranks_every_finding(tmp_path: Path) -> None:
    data = FederatedData.from_clients(clients(), findings=NAMES)
    assert data.task == "multilabel"
    result = fedsaddle.train(
        "multilabel-auc", data, model=ModelOptions(name="logistic"), rounds=30, out=tmp_path / "run"
    )
    summary = result.evaluation["summary"]
    for name in NAMES:
        assert summary[f"test/auc_{name}"] > 0.9
    assert summary["test/mean_auc"] > result.metrics["test/mean_auc"][0]
    best = result.metrics["validation/mean_auc"][1:]
    assert result.best_round == int(result.metrics["round"][1:][best.argmax()])
    saved = SavedModel.load(tmp_path / "run" / "model")
    scores = saved.scores(data.inputs[:5])
    assert scores.shape == (5, 3)
    assert not np.allclose(scores.sum(axis=1), 1)  # each finding by itself


def test_ratios_are_counted_over_all_clients() -> None:
    pairs = clients()
    data = FederatedData.from_clients(pairs, findings=NAMES, test=0, validation=0)
    labels = np.concatenate([labels for _, labels in pairs])
    problem = MultilabelAUC(model=nn.Linear(4, 3)).prepare(data)
    assert problem.findings == NAMES
    assert problem.positive_ratios == pytest.approx(np.nanmean(labels, axis=0), abs=1e-6)
    assert problem.known_ratios == pytest.approx(np.mean(~np.isnan(labels), axis=0), abs=1e-6)


def test_every_class_of_findings_is_in_training() -> None:
    data = FederatedData.from_clients(clients(), findings=NAMES)
    assert len(data.train.indices) + len(data.validation.indices) + len(data.test.indices) == 800
    assert set(data.labels.flatten().tolist()) == {-1, 0, 1}


def test_data_that_do_not_fit_are_refused() -> None:
    several = FederatedData.from_clients(clients(2, 20), findings=NAMES)
    one = FederatedData.from_clients([(np.eye(4, dtype=np.float32), [0, 1, 0, 1])])
    with pytest.raises(UserError, match="every row has 3 findings, but problem 'risk'"):
        fedsaddle.train("risk", several, rounds=1)
    with pytest.raises(UserError, match="every row has one label, but problem 'multilabel-auc'"):
        fedsaddle.train("multilabel-auc", one, rounds=1)
    with pytest.raises(UserError, match="but the data have edema"):
        MultilabelAUC(model=nn.Linear(4, 2), findings=["a", "b"]).prepare(several)
    pairs = clients(2, 20)
    for _, labels in pairs:
        labels[:, 1] = 0
    with pytest.raises(UserError, match="of 'effusion' there are not both"):
        fedsaddle.train(
            "multilabel-auc", FederatedData.from_clients(pairs, findings=NAMES), rounds=1
        )
    with pytest.raises(UserError, match="one per row"):
        FederatedData.from_clients(pairs)
    with pytest.raises(UserError, match=r"labels must lie in -1\.\.1"):
        FederatedData.from_clients([(pairs[0][0], 2 * np.ones((20, 3)))], findings=NAMES)
