"""Compiled gradients against the same ones as they are; and the store of compiled code on disk.

A compilation takes seconds: networks are tiny, and there are few of them.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedsaddle.problems import AUC, Batch, CompositionalAUC, Problem, Risk, oracle
from fedsaddle.problems.compiled import _vectors, can_compile, compiled
from fedsaddle.problems.oracle import Oracle
from fedsaddle.problems.pieces import gradient

CLIENTS, ROWS = 2, 4

needs_compiler = pytest.mark.skipif(
    not can_compile(), reason="TorchInductor needs a C++ compiler, and there is none here"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A store of our own; this process compiles by itself, for its helpers start slowly."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSADDLE_CACHE", str(folder))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiled"))
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        yield folder


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.4), nn.Linear(5, 1)
    )


def convolutions() -> nn.Module:
    """Between two convolutions a pool whose largest values are often equal: zeros of a ReLU."""
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 2, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2, 1, 6), nn.Flatten()),
    )


def point_and_batch(problem: Problem, *shape: int) -> tuple[Tensor, Tensor, Batch]:
    layout = problem.layout(torch.float64)
    generator = torch.Generator().manual_seed(5)
    start = layout.flatten(*problem.start(torch.Generator().manual_seed(0)))
    noise = torch.randn(CLIENTS, layout.d, dtype=torch.float64, generator=generator)
    carried = layout.flatten_carried(problem.carried()).repeat(CLIENTS, 1)
    inputs = torch.randn(CLIENTS, ROWS, *shape, dtype=torch.float64, generator=generator)
    labels = torch.arange(CLIENTS * ROWS).view(CLIENTS, ROWS) % 2
    return start + 0.1 * noise, carried, Batch(inputs, labels, None, torch.tensor([3, 2**61]))


def pair(problem: Problem) -> tuple[Oracle, Oracle]:
    layout = problem.layout(torch.float64)
    return Oracle(problem, layout, compile=True), Oracle(problem, layout, "loop")


def alike(found, expected) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@needs_compiler
def test_a_perceptron_with_batch_norm_and_dropout(cache):
    torch.manual_seed(0)
    problem = AUC(model=mlp(), positive_ratio=0.3)
    z, carried, batch = point_and_batch(problem, 3)
    compiled, plain = pair(problem)
    found = compiled.gradient(z, carried, batch)
    alike(found, plain.gradient(z, carried, batch))
    assert not torch.equal(found[2], carried), "the statistics move on"
    # the same program for other numbers, and from where the first pass ended
    other = batch._replace(inputs=2 * batch.inputs + 1, key=batch.key + 1)
    alike(compiled.gradient(z + 0.5, found[2], other), plain.gradient(z + 0.5, found[2], other))
    assert compiled.compile
    assert len(compiled._programs) == 1
    assert list(cache.glob("compiled/**/*.so")), "kept on disk"


@needs_compiler
def test_an_inner_step_and_its_statistics(cache):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    problem = CompositionalAUC(model=model, positive_ratio=0.3, inner_step=0.3)
    z, carried, batch = point_and_batch(problem, 3)
    x = z[:, : problem.layout().dx]
    compiled, plain = pair(problem)
    found = compiled.inner(x, carried, batch)
    alike(found, plain.inner(x, carried, batch))
    assert compiled.compile
    assert not torch.equal(found[1], carried)


def check_pullback(problem: CompositionalAUC, *shape: int) -> None:
    z, carried, batch = point_and_batch(problem, *shape)
    x = z[:, : problem.layout().dx]
    v = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view(x.shape)
    compiled, plain = pair(problem)
    found = compiled.inner_pullback(x, v, carried, batch)
    alike([found], [plain.inner_pullback(x, v, carried, batch)])
    assert compiled.compile
    assert float((found - v).abs().max()) > 1e-4


@needs_compiler
def test_a_perceptrons_second_derivative(cache):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    check_pullback(CompositionalAUC(model=model, positive_ratio=0.3, inner_step=0.3), 3)


@needs_compiler
def test_convolutions_and_their_second_derivative(cache):
    torch.manual_seed(0)
    problem = CompositionalAUC(model=convolutions(), positive_ratio=0.3, inner_step=0.3)
    z, carried, batch = point_and_batch(problem, 28, 28)
    compiled, plain = pair(problem)
    alike(compiled.gradient(z, carried, batch), plain.gradient(z, carried, batch))
    assert compiled.compile
    check_pullback(problem, 28, 28)


@needs_compiler
def test_a_convolution_at_a_single_pixel(cache):
    """TorchInductor takes its gradient for one in another order than it is."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.AvgPool2d(4), nn.ReLU()),
        *(nn.Conv2d(16, 2, 3, padding=1, bias=False), nn.Flatten()),
    )
    problem = Risk(model=model)
    layout = problem.layout(torch.float32)
    z, carried, batch = point_and_batch(problem, 3, 4, 4)
    single = batch._replace(inputs=batch.inputs.float())
    compiled, plain = Oracle(problem, layout, compile=True), Oracle(problem, layout, "loop")
    _, found, _ = compiled.gradient(z.float(), carried.float(), single)
    _, expected, _ = plain.gradient(z.float(), carried.float(), single)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert compiled.compile


class Branching(nn.Module):
    """What it computes depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        h = self.linear(inputs)
        return h if h.sum() > 0 else 2 * h


def test_what_cannot_be_compiled_says_so_once_and_runs_on(cache):
    problem = Risk(model=Branching())
    z, carried, batch = point_and_batch(problem, 3)
    z[1] = -z[1]
    compiled, plain = pair(problem)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(3):
            now = batch._replace(inputs=batch.inputs - k)
            alike(compiled.gradient(z, carried, now), plain.gradient(z, carried, now))
        compiled.loss(z, carried, batch)
    told = [str(w.message) for w in caught if "cannot be compiled" in str(w.message)]
    assert len(told) == 1
    assert told[0].startswith("Risk cannot be compiled and runs as it is (")
    assert not compiled.compile


SCRIPT = """
import torch
from torch import nn
from torch._dynamo.utils import counters
from fedsaddle.problems import Batch, Risk
from fedsaddle.problems.oracle import Oracle
from fedsaddle.problems.pieces import gradient

torch.manual_seed(0)
problem = Risk(model=nn.Linear(3, 1))
layout = problem.layout(torch.float64)
z = torch.linspace(-1, 1, 2 * layout.d, dtype=torch.float64).view(2, -1)
inputs = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 4, 3)
batch = Batch(inputs, torch.arange(8).view(2, 4) % 2)
_, gradient, _ = Oracle(problem, layout, compile=True).gradient(z, z[:, :0], batch)
_, plain, _ = Oracle(problem, layout).gradient(z, z[:, :0], batch)
assert float((gradient - plain).abs().max()) < 1e-10
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@needs_compiler
def test_the_next_process_takes_the_program_from_the_disk(cache):
    """From the folder of `FEDSADDLE_CACHE`, although no variable of TorchInductor names it."""
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}

    def run() -> tuple[str, dict[Path, int]]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        built = {f: f.stat().st_mtime_ns for f in cache.glob("compiled/**/*.so")}
        return done.stdout.strip(), built

    first, built = run()
    assert first == "0 1"
    assert built
    again, kept = run()
    assert again == "1 0"
    assert kept == built, "nothing was compiled again"


class Factors(Problem):
    """A product of two matrices of variables: each is a factor of the other's gradient."""

    def start(self, generator: torch.Generator):
        names = {"u": (ROWS, 2), "v": (2, 3)}
        return {k: torch.randn(*shape, generator=generator) for k, shape in names.items()}, {}

    def loss(self, x, y, batch):
        return (x["u"] @ x["v"] - batch.inputs).square().mean()

    def predict(self, x, inputs):
        return None


@needs_compiler
@pytest.mark.parametrize("problem", [Factors(), AUC(model=nn.Linear(3, 1), positive_ratio=0.3)])
def test_compiled_steps_in_place_are_those_of_the_gradients(cache, problem, monkeypatch):
    monkeypatch.setattr(oracle, "SMALL", 0)
    z, carried, batch = point_and_batch(problem, 3)
    compiled, plain = pair(problem)
    field = compiled.field(CLIENTS)
    found, expected = z, z
    for _ in range(3):
        found = found - 0.1 * gradient(field, found, batch)
        expected = expected - 0.1 * plain.gradient(expected, carried, batch)[1]
    alike([found + 0.0 * z], [expected + 0.0 * z])


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
def test_channels_that_fill_half_a_vector_take_half_vectors(capability, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    network = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 16, 3), nn.Flatten())
    problem = Risk(model=network.append(nn.Linear(16, 2)))
    narrow = []
    for clients in range(1, 13):
        oracle = Oracle(problem, problem.layout())
        z, carried = torch.ones(clients, oracle.layout.d), torch.zeros(clients, 0)
        parts = [torch.ones(clients, 2, 1, 5, 5), torch.zeros(clients, 2, dtype=torch.int64)]
        key = torch.zeros(clients, dtype=torch.int64)
        pieces = oracle.layout.pieces(z)
        graph = make_fx(lambda *at: oracle._gradient(key, parts, carried, *at))(*pieces)  # noqa: B023
        narrow += [clients] if _vectors(graph) else []
    assert narrow == ([4, 12] if capability == "AVX512" else [])
    assert not _vectors(make_fx(lambda z: z @ z)(torch.ones(8, 8)))


@needs_compiler
def test_a_stack_of_four_is_the_same_to_rounding(cache):
    values = torch.linspace(-1, 1, 4 * 23, dtype=torch.float64).view(
        4, 23
    )  # 23: neither length of vector fits

    def function(z: Tensor) -> tuple[Tensor, ...]:
        return z.relu() * z.sum(dim=1, keepdim=True), z.exp()

    alike(compiled(function, [values])(values), function(values))
