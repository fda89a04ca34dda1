"""The papers' networks: sizes, shapes, and stacks of clients that equal clients one by one."""

import sys
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedsaddle.errors import UserError
from fedsaddle.models import MODELS, ModelOptions, build
from fedsaddle.problems import AUC, GAN, Batch, CompositionalAUC, Risk
from fedsaddle.problems.oracle import Oracle

CLIENTS, ROWS = 3, 4


@pytest.fixture(autouse=True)
def one_thread():
    """As the simulator runs; several threads only wait for each other on work this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(name, shape, outputs=1, seed=0, **arguments):
    return build(ModelOptions(name=name, arguments=arguments), shape, outputs, seed)


def size(network):
    return sum(weights.numel() for weights in network.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "arguments", "expected"),
    [
        ("mlp", (14,), 2, {"hidden": [50, 50]}, 15 * 50 + 51 * 50 + 51 * 2),
        ("mlp", (28, 28), 10, {"hidden": [200, 200]}, 785 * 200 + 201 * 200 + 201 * 10),
        ("lenet-5", (28, 28), 1, {}, 26 * 6 + 151 * 16 + 257 * 120 + 121 * 84 + 85),
        ("lenet-5", (1, 32, 32), 10, {}, 61_706),  # the classical number
        ("cifar-cnn", (3, 32, 32), 10, {}, 122_570),  # as TensorFlow's tutorial prints it
        ("cifar-cnn", (3, 32, 32), 1, {}, 122_570 - 9 * 65),
        ("small-cnn", (28, 28), 1, {}, 10 * 32 + 289 * 64 + 1601 * 128 + 129),
        ("resnet-20", (3, 32, 32), 10, {}, 269_722),  # the paper's 0.27M
        ("resnet-20", (3, 32, 32), 1, {"norm": "group"}, 269_722 - 9 * 65),
        ("char-gru", (80,), 86, {}, 86 * 50 + 2 * 51 * 150 + 51 * 86),
        ("char-gru", (80,), 80, {"embedding": 8}, 86 * 8 + 9 * 150 + 51 * 150 + 51 * 80),
    ],
)
def test_parameter_counts(name, shape, outputs, arguments, expected):
    assert size(made(name, shape, outputs, **arguments)) == expected


def test_dcgan_is_a_generator_and_a_discriminator():
    network = made("dcgan", (1, 28, 28))
    generator = 101 * 6272 + 2 * 128 + 128 * 64 * 16 + 64 + 2 * 64 + 64 * 16 + 1
    discriminator = 17 * 64 + 64 * 128 * 16 + 128 + 2 * 128 + 6273
    assert size(network.generator) == generator
    assert size(network.discriminator) == discriminator
    assert size(network) == generator + discriminator
    pictures = network.generator(torch.randn(5, 100))
    assert pictures.shape == (5, 1, 28, 28)
    assert float(pictures.detach().abs().max()) <= 1
    assert network.discriminator(pictures).shape == network(pictures).shape == (5, 1)
    grey = made("dcgan", (28, 28), latent=7, width=8, norm="none")
    pictures = grey.generator(torch.randn(5, grey.latent))
    assert pictures.shape == (5, 28, 28), "as the data, without a channel axis"
    assert grey(pictures).shape == (5, 1)
    assert not list(grey.buffers())


IMAGES = ["lenet-5", "small-cnn", "cifar-cnn", "resnet-20"]


@pytest.mark.parametrize("name", IMAGES)
def test_grey_pictures_need_no_channel_axis(name):
    network = made(name, (28, 28), 3).eval()
    rows = torch.randn(2, 28, 28)
    assert network(rows).shape == (2, 3)
    assert torch.equal(network(rows), network(rows.unsqueeze(1)))
    assert made(name, (3, 20, 24), 2)(torch.randn(2, 3, 20, 24)).shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        *((name, (64,), r"least \d+x\d+; the rows .* have shape \(64,\)") for name in IMAGES),
        ("lenet-5", (8, 8), "'lenet-5' takes pictures.*at least 16x16"),
        ("cifar-cnn", (3, 32, 16), "'cifar-cnn'.*at least 18x18"),
        ("resnet-20", (1, 3, 32, 32), "'resnet-20'"),
        ("densenet-121", (28, 28), "'densenet-121'.*at least 32x32"),
        ("dcgan", (30, 30), "multiples of 4"),
        ("dcgan", (100,), "'dcgan' takes pictures"),
        ("char-gru", (28, 28), "takes rows of tokens"),
    ],
)
def test_data_of_the_wrong_shape_is_refused(name, shape, says):
    with pytest.raises(UserError, match=says):
        made(name, shape)


@pytest.mark.parametrize("name", ["resnet-20", "dcgan"])
def test_an_unknown_norm_is_refused(name):
    with pytest.raises(UserError, match="'batch', 'group' or 'none', not 'layer'"):
        made(name, (28, 28), norm="layer")


def test_every_network_takes_the_smallest_pictures_it_allows():
    for name, side in {"lenet-5": 16, "small-cnn": 10, "cifar-cnn": 18, "resnet-20": 8}.items():
        assert made(name, (side, side)).eval()(torch.randn(2, side, side)).shape == (2, 1)


SMALL = {
    "logistic": ((6,), {}),
    "mlp": ((6,), {"hidden": [5]}),
    "lenet-5": ((16, 16), {}),
    "small-cnn": ((1, 12, 12), {}),
    "cifar-cnn": ((3, 18, 18), {}),
    "resnet-20": ((3, 8, 8), {}),
    "resnet-20 group": ((3, 8, 8), {"norm": "group"}),
    "dcgan": ((8, 8), {"width": 8}),
    "dcgan group": ((8, 8), {"width": 8, "norm": "group"}),
    "char-gru": ((7,), {}),
}


def small(key, outputs=1, seed=0):
    shape, arguments = SMALL[key]
    return made(key.split()[0], shape, outputs, seed, **arguments)


def test_every_network_is_compared():
    assert {key.split()[0] for key in SMALL} == set(MODELS) - {"densenet-121"}


@pytest.mark.parametrize("key", SMALL)
def test_weights_follow_from_the_seed(key):
    first, second, other = (small(key, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def start(problem, dtype, spread=0.01):
    """A layout, and points near the start that differ from client to client."""
    layout = problem.layout(dtype)
    z = layout.flatten(*problem.start(torch.Generator())).expand(CLIENTS, -1)
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    carried = layout.flatten_carried(problem.carried()).expand(CLIENTS, -1)
    return layout, z + spread * noise, carried


def batches(shape, dtype, classes=2, tokens=False, seed=2, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    wanted = (CLIENTS, rows, *shape)
    if tokens:
        inputs = torch.randint(0, 86, wanted, generator=generator)
    else:
        inputs = torch.randn(wanted, generator=generator, dtype=dtype)
    return Batch(inputs, torch.randint(0, classes, (CLIENTS, rows), generator=generator))


def compare(problem, batch, dtype, spread=0.01):
    """Two passes, stacked and one by one: losses, gradients, carried statistics, predictions."""
    close = {"rtol": 0, "atol": 1e-10 if dtype == torch.float64 else 1e-5}
    layout, z, carried = start(problem, dtype, spread)
    stack, loop = Oracle(problem, layout, "stack"), Oracle(problem, layout, "loop")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no falling back to the loop
        one = stack.gradient(z, carried, batch)
        one = stack.gradient(z, one[2], batch)
    other = loop.gradient(z, carried, batch)
    other = loop.gradient(z, other[2], batch)
    assert stack.mode == "stack"
    for left, right, what in zip(one, other, ("loss", "gradient", "carried"), strict=True):
        torch.testing.assert_close(left, right, **close, msg=lambda m, w=what: f"{w}: {m}")
    assert bool(one[1].any(dim=1).all()), "every client has a gradient"
    if layout.n_carried:
        assert not torch.allclose(one[2], carried), "statistics have moved"
    for client in range(CLIENTS if problem.predicts else 0):
        scores = []
        for _, _, after in (one, other):
            x, _ = layout.unflatten(z[client], after[client])
            scores.append(problem.predict(x, batch.inputs[client]))
        torch.testing.assert_close(*scores, **close)
    return one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["auc", "risk"])
@pytest.mark.parametrize("key", SMALL)
def test_a_stack_of_clients_is_its_clients_one_by_one(key, kind, dtype):
    shape, tokens = SMALL[key][0], key == "char-gru"
    if kind == "auc" or "dcgan" in key:
        problem, classes = AUC(model=small(key), positive_ratio=0.3), 2
    else:
        problem, classes = Risk(model=small(key, outputs=5)), 5
    compare(problem, batches(shape, dtype, classes, tokens), dtype)


class Both(nn.Module):
    """Scores of what the generator makes of the rows."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, noise):
        return self.network.discriminator(self.network.generator(noise))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("key", ["dcgan", "dcgan group"])
def test_a_stack_of_generators(key, dtype):
    compare(Risk(model=Both(small(key))), batches((100,), dtype), dtype)


@pytest.mark.parametrize("momentum", [0.1, 0.37])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_statistics_of_a_users_own_network(norm, momentum):
    """Not one of ours: plain torch modules, of which the first buffers sit between others."""
    layers = [nn.Unflatten(1, (2, 3)), norm(2, momentum=momentum, track_running_stats=True)]
    layers += [nn.Conv1d(2, 4, 2), norm(4, affine=True, track_running_stats=True), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(8, 1))
    compare(Risk(model=network), batches((6,), torch.float64), torch.float64)


def test_cumulative_statistics_run_one_by_one_and_say_so():
    """`momentum=None` divides by a count that torch reads as a number: vmap cannot."""
    problem = Risk(model=nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 1)))
    layout, z, carried = start(problem, torch.float64)
    oracle = Oracle(problem, layout)
    passes = [batches((6,), torch.float64, seed=seed) for seed in (1, 2)]
    with pytest.warns(UserWarning, match="cannot be vectorised"):
        _, _, carried = oracle.gradient(z, carried, passes[0])
    _, _, carried = oracle.gradient(z, carried, passes[1])
    x, _ = layout.unflatten(z[0], carried[0])
    means = torch.stack([batch.inputs[0].mean(0) for batch in passes]).mean(0)
    torch.testing.assert_close(x["0.running_mean"], means, rtol=0, atol=1e-12)


def test_second_derivatives_pass_through_batch_norm():
    problem = CompositionalAUC(model=small("resnet-20"), positive_ratio=0.3, inner_step=0.1)
    layout, z, carried = start(problem, torch.float64)
    batch, x = batches((3, 8, 8), torch.float64), layout.x(z)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    stack, loop = (Oracle(problem, layout, mode) for mode in ("stack", "loop"))
    for one, other in zip(
        (*stack.inner(x, carried, batch), stack.inner_pullback(x, v, carried, batch)),
        (*loop.inner(x, carried, batch), loop.inner_pullback(x, v, carried, batch)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_the_gru_is_torchs_gru():
    network = made("char-gru", (9,), 4, vocabulary=11, embedding=3, hidden=5).double()
    reference = nn.GRU(3, 5, batch_first=True).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(network.from_input.weight)
        reference.bias_ih_l0.copy_(network.from_input.bias)
        reference.weight_hh_l0.copy_(network.from_hidden.weight)
        reference.bias_hh_l0.copy_(network.from_hidden.bias)
    tokens = torch.randint(0, 11, (6, 9), generator=torch.Generator().manual_seed(0))
    _, last = reference(network.embedding(tokens))
    ours = network(tokens)
    torch.testing.assert_close(ours, network.head(last[0]), rtol=0, atol=1e-12)
    assert network.from_input.weight.abs().max() <= 5**-0.5
    assert torch.equal(ours, network(tokens.double())), "tokens read from a file of numbers"


def test_a_forgetful_resnet_block_is_its_shortcut():
    """With the second norm at zero a block passes on its input, thinned and padded with zeros."""
    network = made("resnet-20", (3, 8, 8)).eval()
    for block in network.body:
        nn.init.zeros_(block.second_norm.weight)
    h = torch.rand(2, 16, 8, 8)
    out = network.body(h)
    assert out.shape == (2, 64, 2, 2)
    assert torch.equal(out[:, :16], h[:, :, ::4, ::4])
    assert not out[:, 16:].any()


def test_densenet_says_how_to_get_monai(monkeypatch):
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    with pytest.raises(UserError, match=r"MONAI.*pip install 'fedsaddle\[medical\]'"):
        made("densenet-121", (32, 32))


@pytest.mark.parametrize("kind", ["auc", "risk"])
def test_densenet_121(kind):
    pytest.importorskip("monai")
    network = made("densenet-121", (32, 32), 1 if kind == "auc" else 3)
    assert 6.9e6 < size(network) < 7.1e6
    if kind == "auc":
        problem, classes = AUC(model=network, positive_ratio=0.3), 2
    else:
        problem, classes = Risk(model=network), 3
    compare(problem, batches((32, 32), torch.float64, classes), torch.float64)


def test_densenet_121_in_single_precision():
    """Among so many ReLUs a rounding turns some over, which moves the gradient by more than
    rounding: the stack must be as near to the truth, in double precision, as the loop is."""
    pytest.importorskip("monai")
    problem = AUC(model=made("densenet-121", (64, 64)), positive_ratio=0.3)
    batch = batches((64, 64), torch.float32, rows=8)
    layout, z, carried = start(problem, torch.float32, spread=0)
    exact = Oracle(problem, replace(layout, dtype=torch.float64), "loop").gradient(
        z.double(), carried.double(), Batch(batch.inputs.double(), batch.labels)
    )
    errors = {}
    for mode in ("stack", "loop"):
        losses, gradient, after = Oracle(problem, layout, mode).gradient(z, carried, batch)
        torch.testing.assert_close(losses.double(), exact[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(after.double(), exact[2], rtol=0, atol=1e-5)
        errors[mode] = float((gradient.double() - exact[1]).norm() / exact[1].norm())
    assert errors["stack"] < max(1e-5, 5 * errors["loop"]), errors


def rows_with_noise(shape, dtype):
    """Real rows, and the noise from which a generator makes others."""
    batch = batches(shape, dtype)
    noise = torch.rand(CLIENTS, ROWS, 100, generator=torch.Generator().manual_seed(4), dtype=dtype)
    return batch._replace(noise=2 * noise - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("non_saturating", [False, True])
@pytest.mark.parametrize("key", ["dcgan", "dcgan group"])
def test_a_stack_of_adversaries(key, non_saturating, dtype):
    """The GAN itself: generators and discriminators, both sides' gradients."""
    problem = GAN(model=small(key), non_saturating=non_saturating)
    compare(problem, rows_with_noise(SMALL[key][0], dtype), dtype)
