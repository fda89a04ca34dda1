"""Matrices in pieces behave as the matrices they are, and steps put off lead where they led."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsaddle.problems import pieces
from fedsaddle.problems.pieces import Form, Pieces, gradient

SIZES = [2, 1, 3]
ROWS = 2


def matrix(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, sum(SIZES), dtype=torch.float64, generator=generator)


def in_pieces(seed: int) -> Pieces:
    return Pieces.of([part.clone() for part in matrix(seed).split(SIZES, 1)])


class Bowl:
    """`G(z; b) = b · z`, with a count of what was computed."""

    form = Form(ROWS, SIZES, sum(SIZES), torch.float64, torch.device("cpu"))

    def __init__(self) -> None:
        self.gradients = self.steps = 0

    def gradient(self, at, batch):
        self.gradients += 1
        return [batch * part for part in at]

    def descend(self, at, batch, length):
        self.steps += 1
        for part in at:
            part.sub_(batch * part, alpha=length)


leaves = st.integers(0, 3).flatmap(
    lambda k: st.sampled_from(["pieces", "plain"]).map(lambda s: (s, k))
)
terms = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-"]), inner, inner),
        st.tuples(st.just("*"), st.sampled_from([-2.0, 0.5, 1.0]), inner),
        st.tuples(st.sampled_from(["left", "right"]), inner),
    ),
    max_leaves=6,
)


def value(term, as_pieces: bool) -> Tensor:
    match term:
        case ("pieces", k):
            return in_pieces(k) if as_pieces else matrix(k)
        case ("plain", k):
            return matrix(k)
        case ("+", a, b):
            return value(a, as_pieces) + value(b, as_pieces)
        case ("-", a, b):
            return value(a, as_pieces) - value(b, as_pieces)
        case ("*", factor, a):
            return factor * value(a, as_pieces)
        case ("left", a):
            return value(a, as_pieces) * torch.tensor(3.0, dtype=torch.float64)
        case ("right", a):
            return matrix(7)[0] - value(a, as_pieces)  # a vector for all rows
    raise AssertionError(term)


@settings(max_examples=200, deadline=None)
@given(terms)
def test_sums_and_multiples_are_what_they_are_of_ordinary_matrices(term):
    found, expected = value(term, True), value(term, False)
    assert found.shape == expected.shape
    torch.testing.assert_close(found + 0.0 * matrix(0), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.abs(),
        lambda z: z[:, 1:4],
        lambda z: z @ torch.ones(6, 2, dtype=torch.float64),
        lambda z: torch.cat([z, z]),
        lambda z: z * torch.arange(6.0, dtype=torch.float64),
        lambda z: z - torch.arange(6.0, dtype=torch.float64),
        lambda z: 1 - z,
        lambda z: z / 3,
        lambda z: torch.linalg.vector_norm(z, dim=1),
        lambda z: torch.stack([z, z]).sum(0),
        lambda z: torch.add(z, matrix(2), alpha=3),
        lambda z: z.clone(),
        lambda z: torch.from_numpy(z.numpy()),
        lambda z: torch.where(z > 0, z, 0.0),
        lambda z: z + matrix(5).to(torch.float32),
    ],
)
def test_whatever_else_is_asked_of_them_is_answered_by_the_whole(function):
    torch.testing.assert_close(function(in_pieces(1)), function(matrix(1)))
    torch.testing.assert_close(function(2.0 * in_pieces(1)), function(2.0 * matrix(1)))


def test_what_is_written_into_them_stays():
    z = in_pieces(1)
    z[:, 0] = 7.0
    z += 1.0
    assert (z + 0.0)[:, 0].tolist() == [8.0, 8.0]
    torch.testing.assert_close(z - in_pieces(1), z - matrix(1))


def test_they_tell_what_they_are_without_being_joined():
    z = in_pieces(1)
    assert (z.shape, z.ndim, len(z), z.dtype) == ((ROWS, 6), 2, ROWS, torch.float64)
    assert z.whole is None
    assert repr(z) == repr(matrix(1))


@pytest.mark.parametrize("start", [matrix(3), matrix(3)[0]], ids=["matrix", "vector"])
def test_steps_are_taken_when_somebody_looks_and_each_once(start):
    field, z, expected = Bowl(), start, start.expand(ROWS, -1)
    for batch in (1.0, 0.5, -1.0):
        z = z - 0.1 * gradient(field, z, batch)
        expected = expected - 0.1 * batch * expected
    assert (field.steps, field.gradients) == (0, 0)
    torch.testing.assert_close(z + 0.0 * matrix(0), expected)
    torch.testing.assert_close(z.sum(), expected.sum())
    assert (field.steps, field.gradients) == (3, 0)
    torch.testing.assert_close(start, (matrix(3) if start.ndim == 2 else matrix(3)[0]))


def test_points_on_the_way_that_are_kept_are_what_they_were():
    field, points = Bowl(), [in_pieces(3)]
    for _ in range(4):
        z = points[-1]
        points.append(z - 0.1 * gradient(field, z, 1.0))
    del z
    gc.collect()
    torch.testing.assert_close(points[4].sum(), 0.9**4 * matrix(3).sum())
    assert field.steps == 4
    for k, point in enumerate(points):
        torch.testing.assert_close(point.abs(), 0.9**k * matrix(3).abs())
    assert field.steps == 4  # none was taken twice


def test_a_point_of_which_only_a_multiple_is_kept():
    field, z = Bowl(), in_pieces(3)
    z = z - 0.1 * gradient(field, z, 1.0)
    twice = 2.0 * z
    z = z - 0.1 * gradient(field, z, 1.0)
    torch.testing.assert_close(z.abs(), 0.81 * matrix(3).abs())
    torch.testing.assert_close(twice.abs(), 1.8 * matrix(3).abs())


def test_the_gradient_itself_is_computed_once_and_where_it_belongs():
    field, z = Bowl(), matrix(3)
    found = gradient(field, z, 2.0)
    ahead = z - found  # a step; the gradient by itself is still unknown
    torch.testing.assert_close(found.abs(), 2 * z.abs())
    torch.testing.assert_close(z - 0.5 * gradient(field, ahead, 1.0), z + 0.5 * z)
    torch.testing.assert_close(z - found, -z)
    assert field.gradients == 2


def test_a_long_way_is_gone_in_parts(monkeypatch):
    monkeypatch.setattr(pieces, "LONGEST_WALK", 4)
    field, z = Bowl(), matrix(3)
    for k in range(10):
        z = z - 0.1 * gradient(field, z, 1.0)
        assert field.steps == (k + 1) // 4 * 4
    torch.testing.assert_close(z.abs(), 0.9**10 * matrix(3).abs())


def test_a_point_that_changes_under_its_gradient_is_refused():
    z = matrix(3)
    found = gradient(Bowl(), z, 1.0)
    z += 1.0
    with pytest.raises(RuntimeError, match="changed in place"):
        found.abs()


def test_a_gradient_written_onto_its_own_point():
    z, kept = matrix(3), matrix(3)
    z -= 0.1 * gradient(Bowl(), z, 1.0)
    torch.testing.assert_close(z, 0.9 * kept)


def test_a_mistake_in_a_loss_is_not_taken_for_an_odd_operand():
    class Broken(Bowl):
        def descend(self, at, batch, length):
            raise TypeError("a loss's own mistake")

    z = matrix(3)
    with pytest.raises(RuntimeError, match="own mistake"):
        (z - gradient(Broken(), z, 1.0)).abs()
