"""A network in use: rows are predicted once, few at a time, and losses go by the same outputs."""

import pytest
import torch
from torch import Tensor, nn

from fedsaddle.problems import AUC, Batch, Risk, base
from fedsaddle.problems.oracle import Oracle


class Watched(nn.Module):
    """Notes the rows it is given."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.last = nn.Linear(4, outputs)
        self.given: list[int] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.given.append(len(rows))
        return self.last(self.layers(rows))


ROWS = 10
PROBLEMS = {
    "auc": lambda: AUC(model=Watched(1), positive_ratio=0.3),
    "risk": lambda: Risk(model=Watched(2)),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_rows_pass_the_network_once(name, monkeypatch):
    torch.manual_seed(0)
    problem = PROBLEMS[name]()
    layout = problem.layout(torch.float64)
    z = layout.flatten(*problem.start(torch.Generator().manual_seed(1))).unsqueeze(0)
    carried = layout.flatten_carried(problem.carried()).unsqueeze(0)
    inputs, labels = torch.randn(1, ROWS, 3, dtype=torch.float64), torch.arange(ROWS) % 2
    batch = Batch(inputs, labels.unsqueeze(0))
    whole = Oracle(problem, layout, "loop").outcome(z, carried, batch)
    assert problem.model.given == [ROWS]

    monkeypatch.setattr(base, "AT_ONCE", 4 * 3)
    problem.model.given.clear()
    parts = Oracle(problem, layout, "loop").outcome(z, carried, batch)
    assert problem.model.given == [4, 4, 2]
    for a, b in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, b)

    x, y = layout.unflatten(z[0], carried[0])
    with torch.no_grad():
        outputs = problem.predict(x, inputs[0])
        with base.in_use():
            loss = problem.loss(x, y, Batch(inputs[0], labels))
    torch.testing.assert_close(whole[1][0], outputs)
    torch.testing.assert_close(whole[0][0], loss)


def test_other_rows_and_other_weights_pass_it_anew():
    problem = Risk(model=Watched(2))
    x, _ = problem.start(torch.Generator().manual_seed(0))
    x = x | problem.carried()
    other = {name: value + 1 for name, value in x.items()}
    a, b = torch.randn(2, 5, 3)
    with torch.no_grad(), base.in_use():
        found = [problem.forward(w, rows, training=True) for w in (x, other) for rows in (a, a, b)]
    assert len(problem.model.given) == 4
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


def test_training_takes_all_rows_at_once(monkeypatch):
    """They are normalised together."""
    monkeypatch.setattr(base, "AT_ONCE", 6)
    problem = Risk(model=Watched(2))
    x, _ = problem.start(torch.Generator().manual_seed(0))
    with torch.no_grad():
        problem.loss(x | problem.carried(), {}, Batch(torch.randn(5, 3), torch.zeros(5).long()))
    assert problem.model.given == [5]
