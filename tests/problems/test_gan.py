"""GANs: the loss and its gradients written out, one noise per batch, and training that moves."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.algorithms.base import Members
from fedsaddle.data import FederatedData
from fedsaddle.engines.clients import ClientStack, Setup
from fedsaddle.errors import UserError
from fedsaddle.metrics.generative import frechet_distance
from fedsaddle.models import ModelOptions
from fedsaddle.problems import GAN, Batch
from fedsaddle.problems.oracle import Mode, Oracle
from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report import render_report
from fedsaddle.runs.saved import SavedModel


class Tiny(nn.Module):
    """A generator and a discriminator for flat rows."""

    latent = 2

    def __init__(self, size: int, width: int = 16, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)

        def dense(inputs: int, outputs: int) -> nn.Sequential:
            between = [nn.BatchNorm1d(width)] if norm else []
            return nn.Sequential(
                nn.Linear(inputs, width), *between, nn.Tanh(), nn.Linear(width, outputs)
            )

        self.generator, self.discriminator = dense(2, size), dense(size, 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path / "cache"))


def stack(clients: int, rows: int = 5, size: int = 3) -> Batch:
    random = np.random.default_rng(0)
    inputs = torch.from_numpy(random.normal(size=(clients, rows, size)))
    noise = torch.from_numpy(random.uniform(-1, 1, (clients, rows, 2)))
    return Batch(inputs, torch.zeros(clients, rows, dtype=torch.int64), noise)


def point(problem: GAN, clients: int) -> tuple[Any, Tensor, Tensor]:
    layout = problem.layout(torch.float64)
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(clients, layout.d)))
    carried = layout.flatten_carried(problem.carried()).expand(clients, -1)
    return layout, z, carried


def parts(problem: GAN, layout: Any, z: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and the two means `E log D(a)`, … by torch modules and logarithms, for one client."""
    x, y = layout.unflatten(z, z.new_zeros(layout.n_carried))

    def call(part: str, weights: dict[str, Tensor], rows: Tensor) -> Tensor:
        module = getattr(problem.model, part)
        own = {name.removeprefix(part + "."): value for name, value in weights.items()}
        return torch.func.functional_call(module, own, (rows,))

    on_data = torch.sigmoid(call("discriminator", y, batch.inputs))
    on_made = torch.sigmoid(call("discriminator", y, call("generator", x, batch.noise)))
    saddle = on_data.log().mean() + (1 - on_made).log().mean()
    return saddle, -on_made.log().mean(), on_made


def test_generator_is_primal_and_discriminator_dual() -> None:
    layout = GAN(model=Tiny(3)).layout()
    assert {name.split(".")[0] for name in layout.primal} == {"generator"}
    assert {name.split(".")[0] for name in layout.dual} == {"discriminator"}


@pytest.mark.parametrize("non_saturating", [False, True])
def test_loss_and_saddle_gradient(non_saturating: bool) -> None:
    problem = GAN(model=Tiny(3).double(), non_saturating=non_saturating)
    layout, z, carried = point(problem, 1)
    batch = stack(1)
    loss, gradient, _ = Oracle(problem, layout).gradient(z, carried, batch)
    alone = Batch(*(part[0] for part in batch.parts))
    at = z[0].clone().requires_grad_()
    saddle, descent, _ = parts(problem, layout, at, alone)
    assert float(loss[0]) == pytest.approx(float(saddle.detach()), abs=1e-12)
    (of_saddle,) = torch.autograd.grad(saddle, at, retain_graph=True)
    (of_descent,) = torch.autograd.grad(descent, at)
    on_x = of_descent if non_saturating else of_saddle
    assert torch.allclose(layout.x(gradient[0]), layout.x(on_x), atol=1e-12)
    assert torch.allclose(layout.y(gradient[0]), -layout.y(of_saddle), atol=1e-12)


def test_the_gradient_by_finite_differences() -> None:
    problem = GAN(model=Tiny(3, width=4).double())
    layout, z, carried = point(problem, 1)
    oracle, batch = Oracle(problem, layout), stack(1)
    _, gradient, _ = oracle.gradient(z, carried, batch)
    for i in range(layout.d):
        step = torch.zeros_like(z)
        step[0, i] = 1e-6
        slope = oracle.loss(z + step, carried, batch) - oracle.loss(z - step, carried, batch)
        sign = 1 if i < layout.dx else -1
        assert float(gradient[0, i]) == pytest.approx(sign * float(slope) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("non_saturating", [False, True])
def test_stack_is_loop(non_saturating: bool) -> None:
    problem = GAN(model=Tiny(3).double(), non_saturating=non_saturating)
    layout, z, carried = point(problem, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stacked = Oracle(problem, layout, "stack").gradient(z, carried, stack(3))
    looped = Oracle(problem, layout, "loop").gradient(z, carried, stack(3))
    assert torch.allclose(stacked[0], looped[0], atol=1e-12)
    assert torch.allclose(stacked[1], looped[1], atol=1e-12)


def test_an_overconfident_discriminator_keeps_the_loss_finite() -> None:
    problem = GAN(model=Tiny(3).double())
    layout, z, carried = point(problem, 1)
    loss, gradient, _ = Oracle(problem, layout).gradient(1e4 * z, carried, stack(1))
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("mode", ["stack", "loop"])
@pytest.mark.parametrize("non_saturating", [False, True])
def test_batch_statistics_are_carried(non_saturating: bool, mode: Mode) -> None:
    problem = GAN(model=Tiny(3, norm=True).double(), non_saturating=non_saturating)
    layout, z, carried = point(problem, 2)
    batch = stack(2)
    _, _, after = Oracle(problem, layout, mode).gradient(z, carried, batch)
    x, y = layout.unflatten(z[0], after[0].clone())
    first = batch.noise[0] @ x["generator.0.weight"].T + x["generator.0.bias"]
    expected = 0.1 * first.mean(0)  # BatchNorm's momentum, from 0
    assert torch.allclose(x["generator.1.running_mean"], expected, atol=1e-12)
    on_data = batch.inputs[0] @ y["discriminator.0.weight"].T + y["discriminator.0.bias"]
    made = problem.generate(x, batch.noise[0], training=True)
    on_made = made @ y["discriminator.0.weight"].T + y["discriminator.0.bias"]
    expected = 0.1 * on_made.mean(0) + 0.09 * on_data.mean(0)  # the data first, then what is made
    assert torch.allclose(x["discriminator.1.running_mean"], expected, atol=1e-12)


def test_a_network_without_the_two_parts_is_refused() -> None:
    with pytest.raises(UserError, match=r"needs a network with a `generator`.* Linear has no"):
        fedsaddle.train(GAN(model=nn.Linear(2, 1)), gaussian(), rounds=1)


# --- one noise per batch --------------------------------------------------------------------------


def gaussian(clients: int = 4, rows: int = 150) -> FederatedData:
    random = np.random.default_rng(0)
    drawn = random.normal([3, -2], [1, 0.5], (clients, rows, 2)).astype(np.float32)
    return FederatedData.from_clients(list(drawn))


def clients_of(data: FederatedData, chosen: list[int], phase: str = "steps") -> ClientStack:
    problem = GAN(model=Tiny(2))
    layout = problem.layout()
    members = Members(torch.arange(data.n_clients), data.names, torch.arange(data.n_clients))
    setup = Setup(problem, ALGORITHMS["local-sgda"](), data, layout, members, seed=5)
    return ClientStack(setup, np.array(chosen), torch.zeros(0), number=2, phase=phase)


def noises(data: FederatedData, chosen: list[int], phase: str = "steps") -> list[Tensor]:
    return [batch.noise for batch in clients_of(data, chosen, phase).minibatches(3)]


def test_noise_belongs_to_client_phase_and_step_not_to_the_stack() -> None:
    data = gaussian()
    together = noises(data, [0, 1, 2])
    alone = noises(data, [1])
    for step in range(3):
        assert torch.equal(together[step][1], alone[step][0])
    assert not torch.equal(together[0][0], together[0][1])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together[0], noises(data, [0, 1, 2], "other")[0])
    assert together[0].shape == (3, 32, 2)
    assert float(torch.stack(together).abs().max()) <= 1


def test_full_passes_see_the_same_noise_at_two_points() -> None:
    client = clients_of(gaussian(), [0, 2])
    z = torch.randn(client.layout.d, generator=torch.Generator().manual_seed(0))
    assert torch.equal(client.full_gradient(z), client.full_gradient(z))
    assert torch.equal(client.full_loss(z), client.full_loss(z))


def test_the_correction_cancels_at_the_start() -> None:
    """CDMA's first local step is the correction alone: G(z; B) − G(z_t; B) is 0 on one noise."""
    states = []
    for batch_size in (8, 32):
        method = ALGORITHMS["cdma-one"](local_steps=1, batch_size=batch_size)
        result = fedsaddle.train(GAN(model=Tiny(2)), gaussian(), method, rounds=1)
        states.append(torch.cat([value.flatten() for value in result.x.values()]))
    assert torch.allclose(*states, atol=1e-6)


def test_runs_are_the_same_in_stacks_of_any_size_and_one_by_one() -> None:
    found = []
    for engine in ({}, {"stack_size": 3}, {"clients": "loop"}):
        options = {"dtype": "float64", **engine}
        method = ALGORITHMS["cdma-one"](learning_rate=0.05, local_steps=3)
        model = Tiny(2)
        result = fedsaddle.train(GAN(model=model), gaussian(), method, rounds=3, engine=options)
        found.append(torch.cat([value.flatten() for value in (result.x | result.y).values()]))
    assert torch.allclose(found[0], found[1], atol=1e-12)
    assert torch.allclose(found[0], found[2], atol=1e-12)


# --- training and metrics -------------------------------------------------------------------------


@pytest.mark.parametrize("non_saturating", [False, True])
def test_training_moves_towards_a_gaussian(non_saturating: bool) -> None:
    data = gaussian()
    problem = GAN(model=Tiny(2, width=32), non_saturating=non_saturating, generated=1000)
    method = ALGORITHMS["local-sgda"](learning_rate=0.05, dual_rate=0.05, local_steps=5)
    result = fedsaddle.train(problem, data, method, rounds=60, evaluation={"every": 20})
    distances = result.metrics["test/frechet_distance"]
    assert distances[-1] < 0.2 * distances[0]
    assert np.isnan(result.metrics["test/inception_score"]).all()  # no labels, no judge
    best = result.metrics["validation/frechet_distance"]
    assert result.best_round == int(result.metrics["round"][1:][best[1:].argmin()])
    made = problem.samples(result.x, 1000)
    held_out = data.inputs[torch.from_numpy(data.test.indices)]
    assert distances[-1] == pytest.approx(frechet_distance(made, held_out), rel=1e-6)
    assert "samples" not in result.evaluation  # pairs of numbers are no pictures


@pytest.fixture
def pictures() -> FederatedData:
    bunch = load_digits()
    inputs = (bunch.data / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8)
    parts = np.array_split(np.random.default_rng(0).permutation(len(inputs)), 3)
    return FederatedData.from_clients([(inputs[rows], bunch.target[rows]) for rows in parts])


def test_a_dcgan_from_settings_to_the_report(
    pictures: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")
    model = ModelOptions(name="dcgan", arguments={"latent": 10, "width": 4})
    method = ALGORITHMS["local-sgda"](learning_rate=0.02, dual_rate=0.02, local_steps=2)
    result = fedsaddle.train(
        "gan", pictures, method, model=model, rounds=3, out=tmp_path / "run", resume=False
    )
    summary = result.evaluation["summary"]
    assert 1 <= summary["test/inception_score"] <= 10
    assert summary["test/frechet_distance"] > 0
    assert result.evaluation["samples"].startswith("data:image/png;base64,")
    record = RunRecord.load(tmp_path / "run")
    page = render_report([record])
    assert result.evaluation["samples"] in page
    assert "Generated samples" in page
    assert "Inception score" in page
    saved = SavedModel.load(tmp_path / "run" / "model").network.state_dict()
    trained = result.model.state_dict()
    assert all(torch.equal(saved[name], trained[name]) for name in trained)
    assert any(name.startswith("discriminator.") for name in saved)


def test_a_report_shows_no_other_kind_of_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "")
    record = RunRecord("run", {}, {}, {}, [], [], {})
    assert "Generated samples" not in render_report([record])
    evil = replace(record, evaluation={"samples": 'https://example.org/a.png"><script>'})
    assert "example.org" not in render_report([evil])
    quoted = replace(record, evaluation={"samples": 'data:image/png;base64,"><script>bad'})
    assert '"><script>bad' not in render_report([quoted])


def test_samples_are_the_same_every_time() -> None:
    problem = GAN(model=Tiny(2))
    x, _ = problem.start(torch.Generator())
    assert torch.equal(problem.samples(x, 5), problem.samples(x, 5))
    assert GAN(model=Tiny(2), noise=7).noise_shape == (7,)
    assert GAN(model=nn.Identity()).noise_shape == (100,)
