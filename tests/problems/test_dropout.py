"""Keyed dropout: a client's masks follow from the client and its step, not from its neighbours."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_leaves

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS, LocalSGDA
from fedsaddle.data import FederatedData
from fedsaddle.models.build import mlp
from fedsaddle.models.images import lenet_5
from fedsaddle.problems import AUC, Batch, Risk
from fedsaddle.problems.dropout import KeyedDropout, drops, uniform
from fedsaddle.problems.oracle import Oracle
from fedsaddle.problems.stack import stacked

KEYS = torch.tensor([3, 2**61 + 7, 12345, -9])


def dropped(key: Tensor, x: Tensor, function=F.dropout, **options) -> Tensor:
    with KeyedDropout(key):
        return function(x, **options)


def by_stack(function, *stacks: Tensor) -> Tensor:
    return stacked(function, *stacks)


def by_vmap(function, *stacks: Tensor) -> Tensor:
    return torch.vmap(function, randomness="different")(*stacks)


def by_loop(function, *stacks: Tensor) -> Tensor:
    return torch.stack([function(*row) for row in zip(*stacks, strict=True)])


def twice(key: Tensor, x: Tensor) -> Tensor:
    """Two layers of dropout, the second on something of another shape."""
    with KeyedDropout(key):
        h = F.dropout(x, 0.3)
        return F.dropout2d(h.unsqueeze(-1), 0.5).squeeze(-1) + F.dropout(x, 0.5)


def test_masks_are_the_same_however_clients_are_run_and_whoever_is_beside_them():
    x = torch.rand(len(KEYS), 6, 5, 4, dtype=torch.float64) + 1
    expected = by_loop(twice, KEYS, x)
    for run in (by_stack, by_vmap):
        assert torch.equal(run(twice, KEYS, x), expected)
        some = [2, 0]
        assert torch.equal(run(twice, KEYS[some], x[some]), expected[some])
        assert torch.equal(run(twice, KEYS[3:], x[3:]), expected[3:])


def test_masks_differ_between_clients_layers_and_steps():
    ones = torch.ones(1000)

    def masks(key: Tensor) -> list[Tensor]:
        with KeyedDropout(key):
            return [F.dropout(ones), F.dropout(ones)]

    seen = [mask > 0 for key in KEYS for mask in masks(key)]
    for j, one in enumerate(seen):
        for other in seen[:j]:  # as alike as coins: half of the places, give or take
            assert abs(int((one == other).sum()) - 500) < 5 * math.sqrt(250)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_right_share_is_dropped_and_the_rest_is_scaled(p):
    n = 40_000
    found = dropped(torch.tensor(11), torch.ones(n, dtype=torch.float64), p=p)
    kept = found != 0
    assert abs(int(kept.sum()) - (1 - p) * n) <= 5 * math.sqrt(n * p * (1 - p))
    if p < 1:
        assert torch.allclose(found[kept], torch.tensor(1 / (1 - p)).double())


def test_numbers_are_uniform_and_neighbours_unrelated():
    drawn = np.stack([uniform(key, layer, 20_000).numpy() for key in KEYS for layer in (1, 2)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.stack([np.histogram(row, bins=50, range=(0, 1))[0] for row in drawn])
    chi_squared = ((counts - 400) ** 2 / 400).sum(axis=1)
    assert chi_squared.max() < 95  # 49 degrees of freedom: 1 in 10,000
    shifted = [np.corrcoef(row[:-k], row[k:])[0, 1] for row in drawn for k in (1, 2, 64)]
    assert np.abs([*shifted, *np.corrcoef(drawn)[np.triu_indices(8, 1)]]).max() < 0.035


@pytest.mark.parametrize(
    ("function", "shape", "channel_axes"),
    [
        (F.dropout1d, (40, 30, 7), 2),
        (F.dropout1d, (30, 7), 1),  # one row
        (F.dropout2d, (40, 30, 5, 6), 2),
        (F.dropout3d, (40, 30, 2, 3, 4), 2),
        (F.dropout3d, (30, 2, 3, 4), 1),
    ],
)
def test_whole_channels_are_dropped(function, shape, channel_axes):
    ones = torch.ones(len(KEYS), *shape, dtype=torch.float64)
    for run in (by_stack, by_loop):
        found = run(lambda k, x: dropped(k, x, function, p=0.25), KEYS, ones)
        channels = found.flatten(1 + channel_axes)
        assert torch.equal(channels, channels[..., :1].expand_as(channels))
        share = float((channels[..., 0] == 0).double().mean())
        assert abs(share - 0.25) < 5 * math.sqrt(0.1875 / channels[..., 0].numel())


def test_where_nothing_is_trained_nothing_is_dropped():
    x = torch.rand(5, 4)
    assert dropped(KEYS[0], x, training=False) is x
    layer = nn.Dropout(0.5).eval()
    assert dropped(KEYS[0], x, layer) is x


def test_gradients_flow_through_what_is_kept():
    x = torch.rand(200, dtype=torch.float64, requires_grad=True)
    found = dropped(KEYS[0], x, p=0.4)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.allclose(gradient * x.detach(), found.detach())


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("both_ways", [False, True])
def test_between_recurrent_layers(kind, both_ways):
    """As torch's own where next to nothing is dropped; else, one layer's outputs are dropped."""
    torch.manual_seed(0)
    options = {"num_layers": 3, "batch_first": True, "bidirectional": both_ways}
    layers = kind(4, 5, dropout=1e-12, **options).double()
    x = torch.randn(2, 6, 4).double()
    still = kind(4, 5, dropout=0.0, **options).double()
    still.load_state_dict(layers.state_dict())
    for found, expected in zip(
        tree_leaves(dropped(KEYS[0], x, layers)), tree_leaves(still(x)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    layers.dropout = 0.5
    outputs = [dropped(key, x, layers)[0].detach() for key in (KEYS[0], KEYS[0], KEYS[1])]
    assert torch.equal(outputs[0], outputs[1]), "the key decides"
    assert float((outputs[0] - outputs[2]).abs().max()) > 1e-3
    assert torch.equal(dropped(KEYS[0], x, layers.eval())[0], layers(x)[0])


def test_packed_sequences_are_left_to_torch():
    torch.manual_seed(0)
    layers = nn.GRU(4, 5, num_layers=2, dropout=0.5).double().eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4).double(), torch.randn(2, 4).double()])
    assert torch.equal(dropped(KEYS[0], packed, layers)[0].data, layers(packed)[0].data)


def test_which_networks_drop():
    assert drops(nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2, num_layers=2, dropout=0.1)))
    assert not drops(nn.GRU(2, 2, num_layers=2))
    assert drops(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout2d(0.1))))
    assert not drops(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
    assert drops(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1))
    assert not drops(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0))
    assert drops(ByHand())
    assert not any(drops(make((1, 28, 28), 2)) for make in (lenet_5, mlp))


@pytest.mark.parametrize("how", ["plain", "mask", "bias", "causal", "groups"])
def test_attention(how):
    """As torch's own where next to nothing is dropped; else the key decides."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 6).double()
    options = {
        "plain": {"scale": 0.3},
        "mask": {"attn_mask": torch.ones(5, 5).tril().bool()},
        "bias": {"attn_mask": torch.randn(5, 5).double()},
        "causal": {"is_causal": True},
        "groups": {"enable_gqa": True},
    }[how]
    if how == "groups":
        key, value = key[:, :2], value[:, :2]
    attention = F.scaled_dot_product_attention
    expected = attention(query, key, value, **options)
    with KeyedDropout(KEYS[0]):
        found = attention(query, key, value, dropout_p=1e-12, **options)
        none = attention(query, key, value, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert torch.equal(none, expected)
    drawn = []
    for number in (0, 0, 1):
        with KeyedDropout(KEYS[number]):
            drawn.append(attention(query, key, value, dropout_p=0.5, **options))
    assert torch.equal(drawn[0], drawn[1])
    assert float((drawn[0] - drawn[2]).abs().max()) > 1e-3


# --- in the oracle and in whole runs --------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(3, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 6), nn.Unflatten(1, (3, 2))),
        *(nn.Dropout1d(0.3), nn.Flatten(), nn.Linear(6, 1)),
    )


class Recurrent(nn.Module):
    """A row's three numbers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(1, 4, num_layers=2, dropout=0.4, batch_first=True)
        self.out = nn.Linear(4, 1)

    def forward(self, rows: Tensor) -> Tensor:
        outputs, _ = self.layers(rows.unsqueeze(-1))
        return self.out(outputs[:, -1])


class Attentive(nn.Module):
    """A row's three numbers look at each other."""

    def __init__(self, weights: bool = False) -> None:
        super().__init__()
        self.wide = nn.Linear(1, 4)
        self.heads = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)
        self.out, self.weights = nn.Linear(4, 1), weights

    def forward(self, rows: Tensor) -> Tensor:
        wide = self.wide(rows.unsqueeze(-1))
        found, _ = self.heads(wide, wide, wide, need_weights=self.weights)
        return self.out(found.mean(1))


class Encoder(nn.Module):
    """The same, by torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(1, 4), nn.Linear(4, 1)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(self.layer(self.wide(rows.unsqueeze(-1))).mean(1))


class ByHand(nn.Module):
    """Dropout that is a call, not a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.out(F.dropout(self.first(rows), 0.4, self.training))


@pytest.mark.parametrize(
    "make", [network, Recurrent, Attentive, partial(Attentive, weights=True), Encoder, ByHand]
)
def test_the_oracle_drops_by_the_batchs_key_alone(make):
    problem = AUC(model=make(), positive_ratio=0.4)
    layout = problem.layout(torch.float64)
    torch.manual_seed(1)
    z = torch.randn(4, layout.d, dtype=torch.float64)
    carried = torch.zeros(4, 0, dtype=torch.float64)
    batch = Batch(torch.randn(4, 5, 3).double(), torch.arange(20).view(4, 5) % 2, None, KEYS)
    found = {
        mode: Oracle(problem, layout, mode).gradient(z, carried, batch)[1]
        for mode in ("stack", "vmap", "loop")
    }
    torch.testing.assert_close(found["stack"], found["loop"], rtol=0, atol=1e-12)
    torch.testing.assert_close(found["vmap"], found["loop"], rtol=0, atol=1e-12)
    for own in ([1], [3, 1]):
        part = Batch(batch.inputs[own], batch.labels[own], None, KEYS[own])
        _, alone, _ = Oracle(problem, layout).gradient(z[own], carried[own], part)
        torch.testing.assert_close(alone, found["loop"][own], rtol=0, atol=1e-12)
    moved = batch._replace(key=KEYS + 1)
    _, other, _ = Oracle(problem, layout).gradient(z, carried, moved)
    assert float((other - found["loop"]).abs().max()) > 1e-3


def data_of(sizes=(30, 30, 30, 12, 30)) -> FederatedData:
    random = np.random.default_rng(0)
    clients = []
    for n in sizes:
        y = np.arange(n) % 2
        clients.append((random.normal(size=(n, 3)) + y[:, None], y))
    return FederatedData.from_clients(clients)


def trained(method="codasca", problem=AUC, **engine) -> Tensor:
    result = fedsaddle.train(
        problem(model=network()),
        data_of(),
        ALGORITHMS[method](local_steps=3, batch_size=8),
        rounds=3,
        engine={"dtype": "float64", **engine},
    )
    return torch.cat([value.flatten() for value in (*result.x.values(), *result.y.values())])


@pytest.mark.parametrize(
    ("method", "problem"), [("codasca", AUC), ("cdma-ada", AUC), ("scaffold", Risk)]
)
def test_training_with_dropout_does_not_depend_on_how_clients_are_run(method, problem):
    expected = trained(method, problem, clients="loop", workers=1)
    ways = [{"clients": "vmap"}, {"stack_size": 2}, {"stack_size": 5}, {"workers": 2}]
    for engine in ways:
        found = trained(method, problem, **engine)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10, msg=str(engine))


def test_dropout_takes_part_in_training_and_not_in_prediction():
    model = network()
    data = data_of()
    still = copy.deepcopy(model)
    for layer in still:
        if isinstance(layer, nn.Dropout | nn.Dropout1d):
            layer.p = 0.0
    runs = [
        fedsaddle.train(AUC(model=m), data, LocalSGDA(batch_size=8), rounds=2)
        for m in (model, still)
    ]
    assert float((runs[0].x["0.weight"] - runs[1].x["0.weight"]).abs().max()) > 1e-4
    before = [
        fedsaddle.train(AUC(model=m), data, rounds=1).history[0]["test/auc"] for m in (model, still)
    ]
    assert before[0] == before[1], "the untrained networks predict alike"
    trained_model = runs[0].model
    assert not trained_model.training
    rows = data.inputs[:10].float()
    assert torch.equal(trained_model(rows), trained_model(rows))
