"""The saddle-gradient oracle: signs, finite differences, stacks, BatchNorm, and the fallback."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedsaddle
from fedsaddle.data import FederatedData
from fedsaddle.layout import Layout
from fedsaddle.problems import AUC, Batch, NetworkProblem, Problem, Risk
from fedsaddle.problems.oracle import Oracle

CLIENTS, ROWS, FEATURES = 3, 4, 3


def batches(seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    inputs = torch.from_numpy(random.normal(size=(CLIENTS, ROWS, FEATURES)))
    return Batch(inputs, torch.from_numpy(random.integers(0, 2, (CLIENTS, ROWS))))


def logistic() -> nn.Module:
    return nn.Linear(FEATURES, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))


class Branching(nn.Module):
    """What it computes depends on the data: it cannot run as one vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        h = self.linear(inputs)
        return h if h.sum() > 0 else 2 * h


def points(problem: Problem, layout: Layout, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(CLIENTS, layout.d, dtype=torch.float64, generator=generator)
    return z, layout.flatten_carried(problem.carried()).expand(CLIENTS, -1)


def problems() -> list[NetworkProblem]:
    torch.manual_seed(0)
    made: list[NetworkProblem] = []
    for build in (logistic, mlp, batchnorm):
        made += [AUC(model=build(), positive_ratio=0.3), Risk(model=build())]
    return made


IDS = [f"{kind}-{name}" for name in ("logistic", "mlp", "batchnorm") for kind in ("auc", "risk")]


@pytest.mark.parametrize("problem", problems(), ids=IDS)
def test_finite_differences_with_the_sign_turned_on_y(problem: NetworkProblem) -> None:
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    oracle, batch, eps = Oracle(problem, layout), batches(), 1e-6
    losses, gradient, _ = oracle.gradient(z, carried, batch)
    assert gradient.shape == z.shape
    assert torch.allclose(losses, oracle.loss(z, carried, batch), rtol=0, atol=1e-14)
    for k in range(layout.d):
        step = torch.zeros_like(z)
        step[:, k] = eps
        rise = oracle.loss(z + step, carried, batch) - oracle.loss(z - step, carried, batch)
        slope = rise / (2 * eps)
        sign = 1.0 if k < layout.dx else -1.0
        assert torch.allclose(gradient[:, k], sign * slope, rtol=0, atol=1e-7)


def test_a_step_against_the_gradient_descends_on_x_and_ascends_on_y() -> None:
    class Saddle(Problem):
        def start(self, generator: torch.Generator) -> tuple[dict, dict]:
            return {"x": torch.zeros(1)}, {"y": torch.zeros(1)}

        def loss(self, x: dict, y: dict, batch: Batch) -> Tensor:
            return (x["x"] ** 2 - y["y"] ** 2).sum() + 0 * batch.inputs.sum()

    problem = Saddle()
    layout = problem.layout(torch.float64)
    z = torch.tensor([[3.0, 2.0]], dtype=torch.float64)
    nothing = torch.zeros(1, 0, dtype=torch.float64)
    batch = Batch(torch.zeros(1, 1, 1), torch.zeros(1, 1))
    _, gradient, _ = Oracle(problem, layout).gradient(z, nothing, batch)
    assert gradient.tolist() == [[6.0, 4.0]]


@pytest.mark.parametrize("problem", problems(), ids=IDS)
def test_a_stack_is_its_clients_one_by_one(problem: NetworkProblem) -> None:
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    batch = batches()
    stack = Oracle(problem, layout, "stack").gradient(z, carried, batch)
    loop = Oracle(problem, layout, "loop").gradient(z, carried, batch)
    for one, other in zip(stack, loop, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    for client in range(CLIENTS):
        own = slice(client, client + 1)
        alone = Oracle(problem, layout).gradient(
            z[own], carried[own], Batch(batch.inputs[own], batch.labels[own])
        )
        for one, other in zip(stack, alone, strict=True):
            assert torch.allclose(one[own], other, rtol=0, atol=1e-12)


def test_the_point_that_was_given_is_left_alone() -> None:
    problem = AUC(model=batchnorm(), positive_ratio=0.3)
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    before = z.clone(), carried.clone()
    Oracle(problem, layout).gradient(z, carried, batches())
    assert torch.equal(z, before[0])
    assert torch.equal(carried, before[1])
    assert not z.requires_grad


def test_batchnorm_statistics_are_torchs_own() -> None:
    """Each client's running statistics after two passes are those of its own copy of the net."""
    torch.manual_seed(0)
    model = batchnorm()
    problem = Risk(model=copy.deepcopy(model))
    layout = problem.layout(torch.float64)
    x, y = problem.start(torch.Generator())
    z = layout.flatten(x, y).expand(CLIENTS, -1)
    carried = layout.flatten_carried(problem.carried()).expand(CLIENTS, -1)
    oracle = Oracle(problem, layout)
    for seed in (0, 1):
        _, _, carried = oracle.gradient(z, carried, batches(seed))
    for client in range(CLIENTS):
        own = copy.deepcopy(model).double().train()
        for seed in (0, 1):
            own(batches(seed).inputs[client])
        named, _ = layout.unflatten(z[client], carried[client])
        for name, buffer in own.named_buffers():
            assert torch.allclose(named[name], buffer.double(), rtol=0, atol=1e-12), name
    untouched = dict(problem.model.named_buffers())
    assert float(untouched["1.num_batches_tracked"]) == 0, "the template itself must not train"


def one_client(rows: int = 8) -> FederatedData:
    random = np.random.default_rng(3)
    X, y = torch.from_numpy(random.normal(size=(rows, FEATURES))), np.tile([0, 1], rows // 2)
    return FederatedData.from_clients([(X, y)], test=0, validation=0)


def test_training_a_batchnorm_network_is_torchs_own_training() -> None:
    """One client, all rows: parameters, running statistics and predictions of a plain SGD loop."""
    torch.manual_seed(0)
    model, data = batchnorm(), one_client()
    result = fedsaddle.train(
        Risk(model=copy.deepcopy(model)),
        data,
        fedsaddle.algorithms.ALGORITHMS["fedavg"](learning_rate=0.25, local_steps=3, batch_size=0),
        rounds=2,
        engine={"dtype": "float64"},
    )
    own = copy.deepcopy(model).double().train()
    optimiser = torch.optim.SGD(own.parameters(), lr=0.25)
    for _ in range(6):
        optimiser.zero_grad()
        outputs = own(data.inputs).squeeze(1)
        nn.functional.binary_cross_entropy_with_logits(outputs, data.labels.double()).backward()
        optimiser.step()
    for name, value in own.state_dict().items():
        assert torch.allclose(result.x[name], value.double(), rtol=0, atol=1e-10), name
    own.eval()
    trained = result.model.double().eval()
    assert torch.allclose(trained(data.inputs), own(data.inputs), rtol=0, atol=1e-5)


def test_what_cannot_be_vectorised_falls_back_with_one_warning() -> None:
    torch.manual_seed(0)
    problem = Risk(model=Branching())
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    z[1] = -z[1]
    oracle = Oracle(problem, layout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = oracle.gradient(z, carried, batches())
        second = oracle.gradient(z, carried, batches(5))
        oracle.loss(z, carried, batches())
    assert [type(w.message) for w in caught] == [UserWarning]
    assert "Risk cannot be vectorised" in str(caught[0].message)
    loop = Oracle(problem, layout, "loop")
    for found, seed in ((first, 0), (second, 5)):
        expected = loop.gradient(z, carried, batches(seed))
        assert torch.equal(found[1], expected[1])
    sums = [
        float((batches(seed).inputs[c] @ z[c, :FEATURES] + z[c, FEATURES]).sum())
        for c in range(CLIENTS)
        for seed in (0, 5)
    ]
    assert min(sums) < 0 < max(sums), "both branches must have been taken"


def test_a_whole_run_warns_once_and_gives_the_same_result() -> None:
    torch.manual_seed(0)
    model = Branching()
    random = np.random.default_rng(0)
    data = FederatedData.from_clients(
        [(torch.from_numpy(random.normal(size=(6, FEATURES))), [0, 1] * 3) for _ in range(4)],
        test=0,
        validation=0,
    )
    method = fedsaddle.algorithms.ALGORITHMS["local-sgda"](local_steps=2, batch_size=2)
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for clients in ("stack", "loop"):
            result = fedsaddle.train(
                Risk(model=copy.deepcopy(model)),
                data,
                method,
                rounds=3,
                engine={"dtype": "float64", "clients": clients},
            )
            found[clients] = result.x
    for name, value in found["stack"].items():
        assert torch.equal(value, found["loop"][name])
    assert len([w for w in caught if "vectorised" in str(w.message)]) == 1


def test_a_mistake_in_a_loss_is_raised_and_not_taken_for_a_fallback() -> None:
    class Wrong(Risk):
        def loss(self, x: dict, y: dict, batch: Batch) -> Tensor:
            return batch.inputs @ torch.zeros(FEATURES + 1, dtype=torch.float64)

    problem = Wrong(model=logistic())
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="size mismatch"):
            Oracle(problem, layout).gradient(z, carried, batches())
    assert not caught


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_on_parts_have_the_layouts_precision(dtype: torch.dtype) -> None:
    """0.1 in double precision is not 0.1 in single precision written as a double."""
    layout = Layout(primal={"x": (2,)}, dual={"y": (1,)}, dtype=dtype)
    for on_x, on_y in ((0.1, 0.3), (0.1, 0.1)):
        factors = layout.on_parts(on_x, on_y) * torch.ones(3, dtype=dtype)
        assert torch.equal(factors, torch.tensor([on_x, on_x, on_y], dtype=dtype))


def words(padding_idx: int | None = None) -> nn.Module:
    table = nn.Embedding(5, 3, padding_idx=padding_idx)
    return nn.Sequential(table, nn.Flatten(), nn.Linear(3 * FEATURES, 1))


MODES = [("stack", False), ("vmap", False), ("loop", False), ("stack", True)]


@pytest.mark.parametrize(("mode", "compile"), MODES)
@pytest.mark.parametrize("padding_idx", [None, 0, -2])
def test_words_are_looked_up_in_the_clients_own_table(mode, compile, padding_idx) -> None:
    """Whose row that pads has no gradient, in any way to run a stack."""
    problem = Risk(model=words(padding_idx))
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    tokens = torch.arange(CLIENTS * ROWS * FEATURES).view(CLIENTS, ROWS, FEATURES) % 5
    batch = Batch(tokens, torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % 2)
    found = Oracle(problem, layout, mode, compile).gradient(z, carried, batch)
    for client in range(CLIENTS):
        named, _ = layout.unflatten(z[client], carried[client])
        named = {name: value.clone().requires_grad_() for name, value in named.items()}
        loss = problem.loss(named, {}, Batch(tokens[client], batch.labels[client]))
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*named.values()])])
        torch.testing.assert_close(found[1][client], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("mode", "compile"), MODES)
@pytest.mark.parametrize("token", [5, -1])
def test_a_word_beyond_the_table_is_refused_and_not_found_in_the_next_clients(
    mode, compile, token
) -> None:
    problem = Risk(model=words())
    layout = problem.layout(torch.float64)
    z, carried = points(problem, layout)
    oracle = Oracle(problem, layout, mode, compile)
    tokens = torch.zeros(CLIENTS, ROWS, FEATURES, dtype=torch.int64)
    labels = torch.zeros(CLIENTS, ROWS, dtype=torch.int64)
    oracle.gradient(z, carried, Batch(tokens, labels))
    tokens[0, 1, 2] = token
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        oracle.gradient(z, carried, Batch(tokens, labels))
