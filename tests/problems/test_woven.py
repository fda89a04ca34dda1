"""Convolutions in lanes against torch's own, client by client: values and both derivatives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedsaddle.problems.kernels import available, lanes
from fedsaddle.problems.stack import Merged, Stack, for_compiler, stacked
from fedsaddle.problems.woven import Woven

pytestmark = pytest.mark.skipif(
    not available(), reason="needs a C++ compiler and a processor with AVX2"
)


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def derivatives(run, pictures: Tensor, weights: Tensor, biases: Tensor) -> list[Tensor]:
    """The outputs, a gradient of a function of them, and a product with its second derivative."""
    leaves = [tensor.clone().requires_grad_() for tensor in (pictures, weights, biases)]
    outputs = run(*leaves)
    total = (torch.tanh(outputs) * drawn(7, *outputs.shape).to(outputs.dtype)).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True)
    along = [drawn(8, *leaf.shape).to(leaf.dtype) for leaf in leaves]
    second = torch.autograd.grad(first, leaves, along)
    return [tensor.detach() for tensor in (outputs, *first, *second)]


def by_torch(padding: int):
    def run(*stacks: Tensor) -> Tensor:
        rows = zip(*stacks, strict=True)
        return torch.stack([functional.conv2d(*row, padding=padding) for row in rows])

    return run


def by_lanes(padding: int):
    def convolved(*tensors: Tensor) -> Tensor:
        outputs = functional.conv2d(*tensors, padding=padding)
        assert isinstance(outputs, Stack)
        assert isinstance(outputs.form, Woven)  # or nothing would be tested
        return outputs

    def run(*stacks: Tensor) -> Tensor:
        with for_compiler():
            return stacked(convolved, *stacks)

    return run


@st.composite
def convolutions(draw):
    """Sizes that come out even in no direction: of clients, rows, channels, pixels and kernels."""
    kernel = draw(st.integers(1, 7))
    padding = draw(st.integers(0, kernel - 1))
    side = st.integers(max(1, kernel - 2 * padding), 11)
    into, out = draw(st.integers(1, 16)), draw(st.integers(1, 15))
    clients, rows = draw(st.integers(1, lanes(torch.float64))), draw(st.integers(1, 5))
    pictures = drawn(1, clients, rows, into, draw(side), draw(side))
    weights = drawn(2, clients, out, into, kernel, kernel) / (kernel * into**0.5)
    return pictures, weights, drawn(3, clients, out), padding


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_any_convolution_and_its_derivatives(given):
    *tensors, padding = given
    found = derivatives(by_lanes(padding), *tensors)
    expected = derivatives(by_torch(padding), *tensors)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(convolutions())
def test_floats_have_twice_as_many_lanes(given):
    *tensors, padding = given
    assert lanes(torch.float32) == 2 * lanes(torch.float64)
    found = derivatives(by_lanes(padding), *(tensor.float() for tensor in tensors))
    expected = derivatives(by_torch(padding), *tensors)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 20), st.integers(1, 3), st.sampled_from([8, 16]))
def test_what_is_woven_comes_apart_as_it_was(clients, rows, channels, width):
    form = Woven(clients, rows, width)
    pictures = drawn(1, clients, rows, channels, 2, 3)
    values = form.held(pictures)
    assert form.shape(values) == [rows, channels, 2, 3]
    assert values.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(form.apart(values), pictures)
    torch.testing.assert_close(form.apart(values.mean((2, 3))), pictures.mean((3, 4)))


def test_an_infinite_picture_is_one_clients_alone():
    pictures, weights, biases = drawn(1, 3, 5, 2, 6, 6), drawn(2, 3, 4, 2, 3, 3), drawn(3, 3, 4)
    pictures[1, 4, 0, 2, 2] = torch.inf
    found = derivatives(by_lanes(1), pictures, weights, biases)
    for tensor in found:
        assert tensor[[0, 2]].isfinite().all()
    assert not found[2][1].isfinite().all()  # the gradient of its own weights


def test_pictures_that_are_woven_stay_so_for_as_many_channels_as_a_vector_has_places():
    def network(pictures: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
        outputs = pictures
        for weights in (first, second, third):
            outputs = functional.relu(functional.conv2d(outputs, weights))
            forms.append(getattr(outputs, "form", None))
        return functional.max_pool2d(outputs, 2)

    forms: list = []
    channels = [(3, 1), (16, 3), (17, 16)]
    weights = [drawn(j, 3, *sizes, 3, 3) for j, sizes in enumerate(channels)]
    pictures = drawn(9, 3, 5, 1, 12, 12)
    with for_compiler():
        found = stacked(network, pictures, *weights)
    assert [type(form) for form in forms] == [Woven, Woven, Merged]
    expected = [network(*row) for row in zip(pictures, *weights, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))


def left_to_torch(*tensors: Tensor, **how) -> bool:
    def convolved(*own: Tensor) -> Tensor:
        outputs = functional.conv2d(*own, **how)
        assert isinstance(outputs, Stack)
        seen.append(outputs.form)
        return outputs

    seen: list = []
    with for_compiler():
        found = stacked(convolved, *tensors)
    expected = [functional.conv2d(*row, **how) for row in zip(*tensors, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))
    return not isinstance(seen[0], Woven)


def test_what_lanes_are_not_for_is_left_to_torch():
    pictures, weights = drawn(1, 2, 3, 4, 9, 9), drawn(2, 2, 6, 4, 3, 3)
    assert not left_to_torch(pictures, weights)
    assert not left_to_torch(pictures, weights, padding=(1, 1))
    assert left_to_torch(pictures, weights, stride=2)
    assert left_to_torch(pictures, weights, dilation=2)
    assert left_to_torch(pictures, weights, padding=3)
    assert left_to_torch(pictures, weights, padding=(1, 2))
    assert left_to_torch(pictures, weights, padding="same")
    assert left_to_torch(pictures, drawn(2, 2, 6, 2, 3, 3), groups=2)
    assert left_to_torch(pictures, drawn(2, 2, 6, 4, 3, 2))
    assert left_to_torch(pictures, drawn(2, 2, 16, 4, 3, 3))  # channels enough
    many = lanes(torch.float64) + 1
    assert left_to_torch(drawn(1, many, 3, 4, 9, 9), drawn(2, many, 6, 4, 3, 3))
