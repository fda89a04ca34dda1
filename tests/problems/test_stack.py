"""`Stack` against running the same function client by client: values and gradients, to rounding."""

import copy
import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree

from fedsaddle.problems import stack as stack_module
from fedsaddle.problems.stack import Merged, Stack, for_compiler, stacked
from fedsaddle.problems.woven import Woven

C = 3
"""Clients; other axes have other lengths, so that a wrong axis shows."""


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for one another cost more than these small sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(C, *shape, dtype=torch.float64, generator=generator)


def merged(x: Tensor) -> Tensor:
    """The same pictures; a stack of them then holds the form that grouped layers want."""
    seen = F.avg_pool2d(x, 1)
    assert not isinstance(seen, Stack) or seen.form == Merged(C)
    return seen


def woven(x: Tensor) -> Tensor:
    """The same pictures; a stack of them is then held in lanes, of which some are there twice."""
    if not isinstance(x, Stack):
        return x
    form = Woven(C, x.shape[0], lanes=16)
    return Stack(form.held(x.apart()), form)


HELD = pytest.mark.parametrize(
    "start", [lambda x: x, merged, woven], ids=["apart", "merged", "woven"]
)


def one_by_one(function, *stacks):
    results = [function(*row) for row in zip(*stacks, strict=True)]
    return pytree.tree_map(lambda *own: torch.stack(own), *results)


def tensors_of(results) -> list[Tensor]:
    return pytree.tree_leaves(results)


def gradients(results, stacks: list[Tensor]) -> list[Tensor]:
    """Of a fixed random combination of all results, with respect to every stack of floats."""
    total = torch.zeros((), dtype=torch.float64)
    for j, result in enumerate(tensors_of(results)):
        if result.is_floating_point() and result.requires_grad:
            shape = tuple(result.shape)
            generator = torch.Generator().manual_seed(j)
            total = total + (result * torch.randn(shape, generator=generator).double()).sum()
    wanted = [stack for stack in stacks if stack.requires_grad]
    if not total.requires_grad:
        return []
    return list(torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True))


def agree(function, *stacks: Tensor, own_rule: bool = True, atol: float = 1e-12) -> None:
    """Values and gradients of the stack and of the loop; by a rule of the stack, not by vmap."""
    leaves = [s.detach().clone().requires_grad_(s.is_floating_point()) for s in stacks]
    again = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    expected = one_by_one(function, *leaves)
    if own_rule:
        refused = AssertionError("this was left to torch.vmap")
        with mock.patch.object(stack_module, "_by_vmap", side_effect=refused):
            found = stacked(function, *again)
    else:
        found = stacked(function, *again)
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    for a, b in zip(tensors_of(found), tensors_of(expected), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=atol, equal_nan=True)
    pairs = zip(gradients(found, again), gradients(expected, leaves), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=atol, equal_nan=True)


def agree_for_module(module: nn.Module, *inputs: Tensor, own_rule: bool = True, then=None) -> None:
    """Every client with weights of its own; `then` is applied to the module's outputs."""
    module = module.double()
    names, shapes = zip(*((n, tuple(p.shape)) for n, p in module.named_parameters()), strict=True)
    weights = [numbers(*shape, seed=j) for j, shape in enumerate(shapes)]

    def function(*tensors: Tensor):
        own = dict(zip(names, tensors, strict=False))
        outputs = torch.func.functional_call(module, own, tensors[len(names) :])
        return outputs if then is None else then(outputs)

    agree(function, *weights, *inputs, own_rule=own_rule)


# --- elementwise functions ------------------------------------------------------------------------

ONE = [
    *("neg", "abs", "sign", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "square", "relu"),
    *("isfinite", "isnan", "clone", "detach", "float", "double", "long", "int", "bool", "half"),
    *("contiguous", "reciprocal"),
]
OF_POSITIVE = ["log", "log1p", "sqrt", "rsqrt"]
ACTIVATIONS = [
    *("relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus"),
    *("hardtanh", "hardswish", "logsigmoid"),
]
TWO = [
    *("add", "sub", "mul", "div", "true_divide", "maximum", "minimum"),
    *("eq", "ne", "lt", "le", "gt", "ge", "rsub"),
]


@pytest.mark.parametrize("name", ONE)
@HELD
def test_functions_of_one_tensor(name, start):
    agree(lambda x: getattr(start(x), name)(), numbers(2, 4, 6, 5))


@pytest.mark.parametrize("name", OF_POSITIVE)
def test_functions_of_a_positive_tensor(name):
    agree(getattr(torch, name), numbers(2, 4).abs() + 0.1)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    agree(getattr(F, name), 3 * numbers(4, 5))
    agree(lambda x: getattr(F, name)(merged(x)), 3 * numbers(2, 4, 6, 5))
    agree(lambda x: getattr(F, name)(woven(x)), 3 * numbers(2, 4, 6, 5))


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_tensors(name):
    function = getattr(torch, name)
    agree(function, numbers(4, 5), numbers(4, 5, seed=1))
    agree(function, numbers(4, 5), numbers(5))  # of different numbers of axes
    agree(function, numbers(5), numbers(2, 4, 5))
    agree(function, numbers(), numbers(2, 4, 5))
    agree(function, numbers(4, 1), numbers(5))


@pytest.mark.parametrize("held", [merged, woven])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_pictures(name, held):
    function = getattr(torch, name)
    pictures, others = numbers(2, 4, 6, 5), numbers(2, 4, 6, 5, seed=1)
    agree(lambda a, b: function(held(a), b), pictures, others)
    agree(lambda a, b: function(held(a), woven(b)), pictures, others)
    agree(lambda a, b: function(held(a), b), pictures, numbers(6, 1))
    agree(lambda a, b: function(b, held(a)), pictures, numbers(4, 1, 1))


def test_operators_with_numbers_and_with_tensors_that_all_clients_share():
    row, table = torch.linspace(1, 2, 5).double(), torch.linspace(1, 2, 20).double().view(4, 5)
    agree(lambda x: 2 - x, numbers(4, 5))
    agree(lambda x: 1 / (3 + x.square()) * -x + x / 2 - 1, numbers(4, 5))
    agree(lambda x: x**2 + x**3, numbers(4, 5))
    agree(lambda x: table * x - row, numbers(4, 5))
    agree(lambda x: row + x, numbers(4, 1))
    agree(lambda x: table - x, numbers(5))  # the shared tensor has more axes
    agree(lambda x: x / torch.tensor(2.0), numbers(4, 5))
    agree(lambda x: row.add(x) + torch.maximum(row, x), numbers(4, 5))
    pixels = torch.linspace(0, 1, 30).double().view(6, 5)
    agree(lambda x: merged(x) * pixels + 1, numbers(2, 4, 6, 5))


def test_conditions_and_masks():
    agree(lambda a, b: torch.where(a > b, a, b), numbers(4, 5), numbers(4, 5, seed=1))
    agree(lambda a: torch.where(a > 0, a, 0.5), numbers(4, 5))
    agree(lambda a, b: torch.where(a > 0, a, b), numbers(4, 5), numbers())
    agree(lambda a, b: (a > 0) & (b > 0) | ~(a > 1), numbers(4, 5), numbers(5))
    agree(lambda a, b: torch.logical_or(a > 0, b > 0), numbers(4, 5), numbers(5))
    agree(lambda a: torch.logical_not(torch.logical_and(a > 0, a < 1)), numbers(4, 5))
    agree(lambda a: (a == 0, a != 0, a >= 0, a <= 0), numbers(4, 5))
    agree(lambda a: a.clamp(min=-0.5, max=0.5), numbers(4, 5))
    agree(lambda a, b: torch.clamp(a, min=b), numbers(4, 5), numbers(5))
    agree(lambda a: a.clamp_min(0) + a.clamp_max(0.1), numbers(4, 5))
    agree(lambda a, b: torch.xlogy(a, b.abs() + 1), numbers(4, 5), numbers(5))
    agree(torch.pow, numbers(4, 5).abs() + 0.5, numbers(5))


def test_types_follow_the_values():
    labels = torch.arange(C * 4).view(C, 4) % 2
    agree(lambda a, b: b.to(a.dtype) * a, numbers(4), labels)
    agree(lambda a, b: b.type_as(a) - a, numbers(4), labels)
    agree(lambda b: (b.float(), b.bool(), b * 7 ^ 3), labels, own_rule=False)


def test_bits_of_whole_numbers():
    keys = torch.tensor([5, -(2**62), 2**61 + 12345])
    agree(lambda k: torch.bitwise_xor(k, torch.bitwise_right_shift(k, 3)), keys)
    agree(lambda k: torch.bitwise_and(torch.arange(6) + k, 255), keys)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 3), max_size=4), st.data())
def test_any_two_shapes_that_broadcast(shape, data):
    """Axes are left out from the front, or are one long, as broadcasting allows."""
    keep = data.draw(st.integers(0, len(shape)))
    other = [data.draw(st.sampled_from([1, n])) for n in shape[len(shape) - keep :]]
    a, b = numbers(*shape), numbers(*other, seed=1)
    agree(lambda a, b: a * b + torch.maximum(b, a), a, b)
    plain = b[0]
    agree(lambda a: a * plain + torch.maximum(plain, a), a)
    agree(lambda b: b - a[0], b)


# --- layers with weights --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    agree_for_module(nn.Linear(5, 2, bias=bias), numbers(*shape))


def test_linear_of_one_row_and_of_shared_rows_and_weights():
    agree_for_module(nn.Linear(5, 2), numbers(5), own_rule=False)
    rows, weight, bias = numbers(4, 5)[0], numbers(2, 5)[0], numbers(2)[0]
    agree(lambda w, b: F.linear(rows, w, b), numbers(2, 5), numbers(2))
    agree(lambda x: F.linear(x, weight, bias), numbers(4, 5))
    agree(lambda x, b: F.linear(x, weight, b), numbers(4, 5), numbers(2))


@pytest.mark.parametrize(
    "shapes",
    [((5,), (5,)), ((4, 5), (5,)), ((5,), (5, 2)), ((4, 5), (5, 2)), ((6, 4, 5), (6, 5, 2))],
)
def test_products(shapes):
    agree(lambda a, b: a @ b, *(numbers(*shape) for shape in shapes))
    first, second = (numbers(*shape)[0] for shape in shapes)
    agree(lambda a: torch.matmul(a, second), numbers(*shapes[0]))
    agree(lambda b: torch.matmul(first, b), numbers(*shapes[1]))


def test_products_of_other_batches_and_names_are_left_to_vmap():
    agree(torch.matmul, numbers(4, 5), numbers(6, 5, 2), own_rule=False)
    agree(torch.matmul, numbers(7, 6, 4, 5), numbers(5), own_rule=False)
    agree(torch.matmul, numbers(7, 6, 4, 5), numbers(6, 5, 2), own_rule=False)
    agree(torch.mm, numbers(4, 5), numbers(5, 2), own_rule=False)
    with pytest.raises(RuntimeError):  # as of one client: no product of matrices
        stacked(torch.mm, numbers(4, 5), numbers(5))
    with pytest.raises(RuntimeError):
        stacked(torch.matmul, numbers(4, 5), numbers(4))


CONVOLUTIONS = {
    "plain": nn.Conv2d(4, 6, 3),
    "no bias": nn.Conv2d(4, 6, 3, bias=False),
    "strided": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)),
    "groups": nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "depthwise": nn.Conv2d(4, 4, 3, groups=4),
    "dilated": nn.Conv2d(4, 2, 2, dilation=2),
    "same": nn.Conv2d(4, 6, 3, padding="same"),
    "valid": nn.Conv2d(4, 6, 3, padding="valid"),
    "transposed": nn.ConvTranspose2d(4, 6, 3),
    "transposed, strided": nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
    "transposed, groups": nn.ConvTranspose2d(
        4, 6, 4, stride=(2, 3), padding=1, output_padding=(0, 2), groups=2
    ),
    "transposed, dilated": nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    layer = CONVOLUTIONS[name]
    agree_for_module(layer, numbers(2, 4, 7, 8))
    agree_for_module(nn.Sequential(nn.AvgPool2d(1), layer), numbers(2, 4, 7, 8))  # merged
    with for_compiler():
        agree_for_module(layer, numbers(2, 4, 7, 8))


def test_convolutions_by_keyword_and_of_shared_pictures_and_weights():
    pictures, weight, bias = numbers(2, 4, 7, 8)[0], numbers(6, 2, 3, 3)[0], numbers(6)[0]
    agree(lambda x: F.conv2d(x, weight, bias, groups=2, stride=2), numbers(2, 4, 7, 8))
    agree(lambda x: F.conv2d(x, weight, bias=bias, groups=2), numbers(2, 4, 7, 8))
    agree(lambda w: F.conv2d(pictures, w, bias, 1, 1, 1, 2), numbers(6, 2, 3, 3))
    agree(lambda b: F.conv2d(pictures, weight, b, groups=2), numbers(6))
    agree(lambda w: F.conv_transpose2d(pictures, w, groups=2), numbers(4, 3, 2, 2))


def test_other_convolutions_are_left_to_vmap():
    agree_for_module(nn.Conv1d(4, 6, 3), numbers(2, 4, 7), own_rule=False)
    agree_for_module(nn.Conv2d(4, 6, 3), numbers(4, 7, 8), own_rule=False)  # one picture
    circular = nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular")
    agree_for_module(circular, numbers(2, 4, 7, 8), own_rule=False)


def test_a_network_of_pictures_stays_merged_until_it_is_flattened():
    network = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(24, 2)),
    )
    agree_for_module(network, numbers(5, 1, 12, 12))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(2, 6), (5, 6, 3, 4)),
        (nn.LayerNorm(4), (5, 4)),
        (nn.LayerNorm((3, 4)), (5, 3, 4)),
        (nn.LayerNorm((6, 3, 4)), (5, 6, 3, 4)),
        (nn.LayerNorm(4, bias=False), (5, 3, 4)),
    ],
    ids=str,
)
def test_normalisation_without_statistics(layer, shape):
    agree_for_module(layer, numbers(*shape))


def test_normalisation_without_weights_and_of_other_forms():
    agree(lambda x: F.layer_norm(x, (4,)), numbers(5, 4))
    agree(lambda x: F.group_norm(merged(x), 2), numbers(5, 6, 3, 4))
    agree(lambda x: F.group_norm(woven(x), 2), numbers(5, 6, 3, 4))
    agree_for_module(nn.GroupNorm(2, 6), numbers(5, 6), own_rule=False)
    rows = numbers(5, 4)[0]
    agree(lambda w, b: F.layer_norm(rows, (4,), w, b), numbers(4), numbers(4))


class Normed(nn.Module):
    """Batch normalisation between two layers."""

    def __init__(self, layer: nn.Module, before: nn.Module) -> None:
        super().__init__()
        self.before, self.layer = before, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.before(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("module", "shape", "own_rule"),
    [
        (Normed(nn.BatchNorm1d(4), nn.Linear(5, 4)), (6, 5), True),
        (Normed(nn.BatchNorm1d(4, affine=False), nn.Linear(5, 4)), (6, 5), True),
        (Normed(nn.BatchNorm2d(4, momentum=0.3), nn.Conv2d(2, 4, 3)), (5, 2, 6, 7), True),
        (Normed(nn.BatchNorm2d(4), nn.Identity()), (5, 4, 6, 7), True),
        (Normed(nn.BatchNorm1d(4), nn.Conv1d(2, 4, 3)), (5, 2, 6), False),
    ],
    ids=["1d", "1d without weights", "2d merged", "2d apart", "1d of sequences"],
)
def test_batch_norm_and_the_statistics_it_updates_in_place(module, shape, own_rule, training):
    module = copy.deepcopy(module).double().train(training)
    inputs = numbers(*shape)
    names = [name for name, _ in module.named_parameters()]
    weights = [numbers(*w.shape, seed=j) for j, w in enumerate(module.parameters())]
    kept = dict(module.named_buffers())
    buffers = [numbers(*v.shape, seed=9).abs() + 0.5 for v in kept.values()]

    def function(*tensors: Tensor):
        named = dict(zip((*names, *kept), tensors, strict=False))
        for name in kept:  # updated in place
            named[name] = named[name].detach().clone()
        outputs = torch.func.functional_call(module, named, (tensors[-1],))
        return outputs, *(named[name] for name in kept)

    agree(function, *weights, *buffers, inputs, own_rule=own_rule)


def test_batch_norm_without_running_statistics():
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    agree_for_module(layer, numbers(5, 4, 3, 2))


@pytest.mark.parametrize("padding", [None, 0, 2, -1])
def test_embedding(padding):
    """The row that pads gets no gradient, whichever it is."""
    layer = nn.Embedding(7, 5, padding_idx=padding)
    tokens = torch.arange(C * 8).view(C, 2, 4) % 7
    agree_for_module(layer, tokens)
    agree_for_module(layer, tokens[:, 0])
    by_vmap = nn.Embedding(7, 5, padding_idx=padding, scale_grad_by_freq=True)
    agree_for_module(by_vmap, tokens, own_rule=False)


def test_embedding_of_shared_tokens_and_by_shared_weights():
    tokens, weight = torch.tensor([[0, 3], [2, 2]]), numbers(7, 5)[0]
    agree(lambda w: F.embedding(tokens, w), numbers(7, 5))
    agree(lambda t: F.embedding(t, weight), tokens.repeat(C, 1, 1), own_rule=False)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("batch_first", [True, False])
def test_gru(layers, batch_first):
    layer = nn.GRU(5, 4, num_layers=layers, batch_first=batch_first)
    agree_for_module(layer, numbers(2, 6, 5))
    start = numbers(layers, 2 if batch_first else 6, 4)
    agree_for_module(layer, numbers(2, 6, 5), start)
    agree_for_module(layer, numbers(6, 5))  # one sequence


# --- pooling --------------------------------------------------------------------------------------

POOLS = {
    "max 2": lambda x: F.max_pool2d(x, 2),
    "max 2, odd sides": lambda x: F.max_pool2d(x[..., :5, :7], 2),
    "max 3, stride 2": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max (2, 1)": lambda x: F.max_pool2d(x, (2, 1)),
    "max, up": lambda x: F.max_pool2d(x[..., :5, :7], 2, ceil_mode=True),
    "max, dilated": lambda x: F.max_pool2d(x, 2, dilation=2),
    "mean 2": lambda x: F.avg_pool2d(x, 2),
    "mean 3": lambda x: F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False),
    "mean to (2, 3)": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "mean to 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "module": nn.MaxPool2d(2),
}


@pytest.mark.parametrize("compiler", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pooling(name, compiler):
    pool = POOLS[name]

    def run():
        agree(pool, numbers(2, 4, 6, 8))
        agree(lambda x: pool(merged(x)), numbers(2, 4, 6, 8))
        agree(lambda x: pool(woven(x)), numbers(2, 4, 6, 8))

    if compiler:
        with for_compiler():
            run()
    else:
        run()


def test_pooling_with_indices_is_left_to_vmap():
    agree(lambda x: F.max_pool2d(x, 2, return_indices=True), numbers(2, 4, 6, 8), own_rule=False)


def pooled(pictures: Tensor, by_pairs: bool) -> tuple[Tensor, Tensor]:
    """The largest of every window, and where a gradient of 1, 2, 3, ... goes."""
    leaf = pictures.clone().requires_grad_()
    if by_pairs:
        with for_compiler():
            outputs = stacked(lambda x: F.max_pool2d(x, 2), leaf)
    else:
        outputs = F.max_pool2d(leaf.flatten(0, 1), 2).unflatten(0, leaf.shape[:2])
    weights = torch.arange(1.0, 1 + outputs.numel()).view(outputs.shape).to(leaf.dtype)
    (gradient,) = torch.autograd.grad(outputs, leaf, weights)
    return outputs.detach(), gradient


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, -math.inf, math.nan]), min_size=16, max_size=16))
def test_the_first_of_equal_maxima_gets_the_gradient_and_not_a_number_wins(values):
    """Two windows each of two pictures, of two clients: every kind of tie comes up."""
    pictures = torch.tensor(values, dtype=torch.float64).view(2, 1, 2, 2, 2).repeat(1, 2, 1, 1, 2)
    (found, gradient), (expected, wanted) = (pooled(pictures, by) for by in (True, False))
    assert torch.equal(found.nan_to_num(99.0), expected.nan_to_num(99.0))
    assert torch.equal(gradient, wanted)


def test_the_eager_pool_of_merged_pictures_breaks_ties_alike():
    pictures = torch.ones(C, 2, 16, 4, 4, dtype=torch.float64)  # channels enough to be vectorised
    leaf = pictures.clone().requires_grad_()
    outputs = stacked(lambda x: F.max_pool2d(merged(x), 2), leaf)
    weights = torch.arange(1.0, 1 + outputs.numel()).view(outputs.shape).double()
    (gradient,) = torch.autograd.grad(outputs, leaf, weights)
    assert torch.equal(gradient, pooled(pictures, by_pairs=False)[1])
    assert torch.equal(gradient, pooled(pictures, by_pairs=True)[1])


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction):
    labels = torch.arange(C * 5).view(C, 5) % 4
    own_rule = reduction != "none"

    def loss(a, b):
        return F.cross_entropy(a, b, reduction=reduction)

    agree(loss, numbers(5, 4), labels, own_rule=own_rule)
    agree(loss, numbers(5, 4), numbers(5, 4, seed=1).softmax(-1), own_rule=own_rule)
    agree(lambda a: loss(a, labels[0]), numbers(5, 4), own_rule=own_rule)
    binary = (labels % 2).double()

    def with_logits(a, b):
        return F.binary_cross_entropy_with_logits(a, b, reduction=reduction)

    agree(with_logits, numbers(5), binary, own_rule=own_rule)
    agree(lambda a: with_logits(a, binary[0]), numbers(5), own_rule=own_rule)


def test_cross_entropy_with_options():
    labels = torch.arange(C * 5).view(C, 5) % 4
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0]).double()
    agree(lambda a, b: F.cross_entropy(a, b, weight), numbers(5, 4), labels, own_rule=False)
    agree(
        lambda a, b, w: F.cross_entropy(a, b, w.detach()),
        *(numbers(5, 4), labels, numbers(4).abs()),
        own_rule=False,
    )
    smooth = {"label_smoothing": 0.1}
    agree(lambda a, b: F.cross_entropy(a, b, **smooth), numbers(5, 4), labels, own_rule=False)
    agree(lambda a, b: F.cross_entropy(a, b, ignore_index=2), numbers(5, 4), labels, own_rule=False)
    binary, weight = (labels % 2).double(), torch.tensor(3.0).double()
    agree(
        lambda a, b: F.binary_cross_entropy_with_logits(a, b, pos_weight=weight),
        *(numbers(5), binary),
        own_rule=False,
    )
    agree(F.binary_cross_entropy_with_logits, numbers(5, 2), numbers(5, 2) ** 2, own_rule=False)
    agree(F.cross_entropy, numbers(5, 4, 2), labels[..., None].repeat(1, 1, 2), own_rule=False)


def test_cross_entropy_of_rows_whose_label_is_to_be_ignored():
    """Minus 100 is torch's own mark for that; such rows do not count in a mean."""
    labels = torch.arange(C * 5).view(C, 5) % 4
    labels[0, 1] = labels[2, 3] = labels[2, 0] = -100
    for reduction in ("mean", "sum"):
        agree(lambda a, b, r=reduction: F.cross_entropy(a, b, reduction=r), numbers(5, 4), labels)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "nll_loss", "huber_loss"])
def test_losses_without_a_rule(name):
    if name == "nll_loss":
        agree(F.nll_loss, numbers(5, 4), torch.arange(C * 5).view(C, 5) % 4, own_rule=False)
    else:
        agree(getattr(F, name), numbers(5, 4), numbers(5, 4, seed=1), own_rule=False)


# --- sums, means, and the forms of tensors --------------------------------------------------------

PICTURE = (2, 4, 6, 5)
FORMS = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "sum of one axis": lambda x: (x.sum(0), x.sum(-1), x.sum(1, keepdim=True)),
    "mean of one axis": lambda x: (x.mean(dim=0), x.mean(-1), x.mean(1, True)),
    "of pixels": lambda x: (x.mean((2, 3)), x.sum((-1, -2), keepdim=True), torch.mean(x, [2])),
    "of other axes": lambda x: (x.mean((0, 1)), x.sum((1, 3), keepdim=True), x.sum([-4, 2])),
    "in another type": lambda x: x.sum(dtype=torch.float32) + x.mean(1, dtype=torch.float32).sum(),
    "of masks": lambda x: (x > 0).sum() + (x > 0).sum(0).sum(),
    "flatten": lambda x: (x.flatten(), x.flatten(1), x.flatten(1, 2), x.flatten(start_dim=-2)),
    "torch.flatten": lambda x: (torch.flatten(x, 1), torch.flatten(x, end_dim=1)),
    "nn.Flatten": nn.Flatten(),
    "unflatten": lambda x: (
        x.unflatten(1, (2, 2)),
        x.unflatten(-1, (5, -1)),
        x.unflatten(0, (1, 2)),
    ),
    "reshape": lambda x: (x.reshape(2, -1), x.reshape((4, 2, 30)), x.reshape(-1), x.view(8, 30)),
    "torch.reshape": lambda x: torch.reshape(x, (2, -1)),
    "a size": lambda x: x.reshape(x.shape[0], -1).view(x.size(0), 4, *x.shape[2:]),
    "unsqueeze": lambda x: (x.unsqueeze(0), x.unsqueeze(2), x.unsqueeze(-1), x.unsqueeze(dim=-5)),
    "squeeze": lambda x: (x[:, :1].squeeze(1), x[..., :1].squeeze(-1), x[:1].squeeze(dim=0)),
    "squeeze nothing": lambda x: x.squeeze(0),
    "squeeze several": lambda x: x[:, :1, :1].squeeze((1, 2)),
    "transpose": lambda x: (x.transpose(0, 1), x.transpose(-1, 1), torch.transpose(x, 2, 3)),
    "unbind": lambda x: (x.unbind(1), x.unbind(-1), torch.unbind(x, dim=2)),
    "chunk": lambda x: (x.chunk(2), x.chunk(2, 1), x.chunk(3, dim=-1), torch.chunk(x, 2, dim=2)),
    "split": lambda x: (x.split(1), x.split([1, 3], 1), torch.split(x, 4, dim=2), x.split(2, -1)),
    "softmax": lambda x: (x.softmax(1), torch.softmax(x, dim=0), F.softmax(x, -1)),
    "log_softmax": lambda x: (x.log_softmax(-1), F.log_softmax(x, dim=1)),
    "softmax in another type": lambda x: F.softmax(x, 1, dtype=torch.float32).sum(),
    "cat": lambda x: (torch.cat([x, x]), torch.cat([x, 2 * x], 1), torch.cat((x, x), dim=-1)),
    "stack": lambda x: (torch.stack([x, x]), torch.stack([x, x], 2), torch.stack([x, x], dim=-1)),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 0, 2, 1), value=3.0), F.pad(x, (0, -1))),
    "pad rows": lambda x: F.pad(x, (0, 0, 0, 0, 0, 0, 1, 2)),
    "items": lambda x: (x[0], x[1, 2], x[:, 1], x[..., 0], x[:, :, 1:3, ::2], x[:, None], x[-1:]),
    "items of pictures": lambda x: (x[:, :, 1:], x[:, :, :, -2:], x[:, :, ..., 0], x[:, :, 2]),
    "all items": lambda x: (x[...], x[:], x[()], x[:, :]),
}
BY_VMAP = {
    "squeeze all": lambda x: x[:1].squeeze(),
    "unbind rows": lambda x: x.unbind(),
    "keep all axes": lambda x: x.mean(dim=None, keepdim=True),
    "pad by mirror": lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"),
    "by numbers": lambda x: (x[[1, 0]], x[:, torch.tensor([3, 0, 0])]),
    "permute": lambda x: (x.permute(1, 0, 3, 2), x.movedim(0, -1)),
    "largest": lambda x: (x.amax(1), x.max(), x.max(dim=1).values, x.argmax(-1)),
    "spread": lambda x: (x.var(0), x.std((1, 2)), x.norm(), x.cumsum(1), x.logsumexp(0)),
    "matrices": lambda x: (x.mT, x @ x.mT, torch.einsum("bchw,bdhw->bcd", x, x), x.T.sum()),
    "spatial": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "instance norm": lambda x: F.instance_norm(x),
    "repeat": lambda x: (x.repeat(1, 2, 1, 1), x.expand(2, 4, 6, 5), x.roll(1, 2), x.flip(0)),
    "by keyword": lambda x: (x.transpose(dim0=0, dim1=1), x.sort(-1).values),
    "softmax of an axis unsaid": lambda x: x.flatten(1).log_softmax(1) + F.softmax(x.flatten(1)),
}


@HELD
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, start):
    agree(lambda x: FORMS[name](start(x)), numbers(*PICTURE))


@pytest.mark.filterwarnings("ignore:Implicit dimension choice", "ignore:The use of `x.T`")
@HELD
@pytest.mark.parametrize("name", BY_VMAP)
def test_what_has_no_rule_runs_by_vmap(name, start):
    agree(lambda x: BY_VMAP[name](start(x)), numbers(*PICTURE), own_rule=False)


def test_joining_with_a_tensor_that_all_clients_share():
    ones = torch.ones(4, 1, dtype=torch.float64)
    agree(lambda x: torch.cat([x, ones], dim=1), numbers(4, 5))
    agree(lambda x: torch.cat([ones, x], dim=-1), numbers(4, 5))
    agree(lambda x, y: torch.stack([x, y, ones]), numbers(4, 1), numbers(4, 1, seed=1))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_any_axis_of_any_shape(shape, data):
    x, n = numbers(*shape), len(shape)
    axis = data.draw(st.integers(-n, n - 1))
    place = data.draw(st.integers(-n - 1, n))
    first = data.draw(st.integers(0, n - 1))
    last = data.draw(st.integers(first, n - 1))
    agree(
        lambda x: (
            *(x.sum(axis), x.mean(axis, keepdim=True), x.softmax(axis), x.unsqueeze(place)),
            *(torch.stack([x, 2 * x], place), torch.cat([x, x], axis), x.squeeze(axis)),
            *(x.flatten(first, last), x.unbind(axis), x.chunk(2, axis), x.transpose(axis, first)),
            *(x.split(2, axis), x.log_softmax(axis), x.reshape(-1)),
        ),
        x,
    )


def test_operations_in_place():
    def counted(x, y):
        x, y = x.clone(), y.clone()
        x.add_(1)
        y.mul_(2)
        y.add_(x)
        x += 1
        return x, y

    agree(counted, numbers(4), numbers(4, seed=1), own_rule=False)
    agree(lambda x: F.relu(x.clone(), inplace=True), numbers(4))
    agree(lambda x: nn.ReLU(inplace=True)(merged(x)), numbers(*PICTURE))


def test_a_stack_looks_like_one_clients_tensor():
    def look(x: Tensor) -> Tensor:
        assert (tuple(x.shape), x.ndim, x.dim(), len(x)) == ((2, 4, 6, 5), 4, 4, 2)
        assert (x.size(1), x.numel(), x.dtype) == (4, 240, torch.float64)
        assert x.is_floating_point()
        assert x.device.type == "cpu"
        return x

    stacked(look, numbers(*PICTURE))
    stacked(lambda x: look(merged(x)), numbers(*PICTURE))
    assert repr(Stack(numbers(2, 4))) == "Stack(3 x (2, 4))"


def test_a_result_that_depends_on_no_client_is_the_same_for_all():
    found = stacked(lambda x: (torch.ones(2), x), numbers(4))
    assert torch.equal(found[0], torch.ones(C, 2))


def test_a_stacks_values_cannot_be_asked_for():
    for question in (float, bool, lambda x: x.item(), lambda x: x.tolist()):
        with pytest.raises(Exception):  # noqa: B017, PT011
            stacked(lambda x, q=question: q(x.sum()), numbers(4))


# --- second derivatives ---------------------------------------------------------------------------


def second(network: nn.Module, inputs: Tensor, run) -> tuple[Tensor, ...]:
    """Products of every client's Hessian with a vector, by `run`."""
    network = network.double()
    names = [name for name, _ in network.named_parameters()]
    weights = [
        numbers(*w.shape, seed=j).div(3).requires_grad_()
        for j, w in enumerate(network.parameters())
    ]
    v = [numbers(*w.shape[1:], seed=77) for w in weights]

    def loss(*tensors: Tensor) -> Tensor:
        own = dict(zip(names, tensors, strict=False))
        outputs = torch.func.functional_call(network, own, (tensors[-1],))
        return torch.tanh(outputs).square().mean()

    losses = run(loss, *weights, inputs)
    first = torch.autograd.grad(losses.sum(), weights, create_graph=True)
    return torch.autograd.grad(first, weights, v)


DEEP = {
    "linear": (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), (6, 5)),
    "convolution": (
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3), nn.Softplus(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2, groups=2)),
            *(nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 1)),
        ),
        (3, 2, 8, 8),
    ),
    "transposed": (
        nn.Sequential(nn.ConvTranspose2d(2, 2, 2, stride=2), nn.Tanh(), nn.Conv2d(2, 1, 3)),
        (3, 2, 3, 3),
    ),
    "batch norm": (
        nn.Sequential(
            *(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False)),
            *(nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1)),
        ),
        (6, 5),
    ),
}


@pytest.mark.parametrize("compiler", [False, True])
@pytest.mark.parametrize("name", DEEP)
def test_second_derivatives(name, compiler):
    network, shape = DEEP[name]
    expected = second(network, numbers(*shape), one_by_one)
    if compiler:
        with for_compiler():
            found = second(network, numbers(*shape), stacked)
    else:
        found = second(network, numbers(*shape), stacked)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert max(float(product.abs().max()) for product in found) > 1e-3
