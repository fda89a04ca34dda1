"""Every projection gives the nearest point of its set."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedsaddle.problems import Ball, Box, Nonnegative, Simplex

numbers = st.floats(-1e4, 1e4, allow_nan=False, width=64)
vectors = st.integers(1, 12).flatmap(lambda n: arrays(np.float64, n, elements=numbers))
few = settings(max_examples=60, deadline=None, derandomize=True)


def by_bisection(v: np.ndarray) -> np.ndarray:
    """The simplex's projection is (v − τ)₊ for the τ that makes it add up to one."""
    low, high = v.min() - 1.0, v.max()
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - high, 0)


@few
@given(vectors)
def test_simplex_is_the_bisections_point(v: np.ndarray) -> None:
    found = Simplex()(torch.from_numpy(v)).numpy()
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert np.abs(found - by_bisection(v)).max() < 1e-9


@few
@given(vectors, st.integers(0, 2**32 - 1))
def test_no_point_of_the_set_is_nearer(v: np.ndarray, seed: int) -> None:
    """(v − Πv)ᵀ(u − Πv) ≤ 0 for every u of a convex set; and Π moves nothing twice."""
    random = np.random.default_rng(seed)
    n = len(v)
    inside = {
        Simplex(): random.dirichlet(np.ones(n), 20),
        Nonnegative(): random.exponential(50, (20, n)),
        Box(-2.0, 3.0): random.uniform(-2, 3, (20, n)),
        Ball(1.5): [
            1.5 * random.uniform() * u / np.linalg.norm(u) for u in random.normal(size=(20, n))
        ],
    }
    for projection, members in inside.items():
        found = projection(torch.from_numpy(v))
        assert torch.allclose(projection(found), found, rtol=0, atol=1e-9)
        off = v - found.numpy()
        for u in members:
            assert off @ (u - found.numpy()) <= 1e-7 * (1 + np.abs(v).max())


@few
@given(arrays(np.float64, (3, 4), elements=numbers))
def test_rows_of_a_stack_are_projected_each_by_itself(stack: np.ndarray) -> None:
    for projection in (Simplex(), Nonnegative(), Box(-1.0, 1.0), Ball(2.0)):
        together = projection(torch.from_numpy(stack))
        for row, alone in zip(together, stack, strict=True):
            assert torch.allclose(row, projection(torch.from_numpy(alone)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("projection", "given_", "expected"),
    [
        (Simplex(), [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        (Simplex(), [0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        (Simplex(), [5.0, 1.0], [1.0, 0.0]),
        (Simplex(), [7.0], [1.0]),
        (Simplex(), [0.6, 0.6, -1.0], [0.5, 0.5, 0.0]),
        (Ball(2.0), [0.0, 0.0], [0.0, 0.0]),
        (Ball(2.0), [1.0, -1.0], [1.0, -1.0]),
        (Ball(5.0), [6.0, 8.0], [3.0, 4.0]),
        (Box(-1.0, 2.0), [-3.0, 0.5, 9.0], [-1.0, 0.5, 2.0]),
        (Nonnegative(), [-3.0, 0.0, 9.0], [0.0, 0.0, 9.0]),
    ],
)
def test_known_points(projection, given_: list[float], expected: list[float]) -> None:
    found = projection(torch.tensor(given_, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_simplex_of_numbers_so_large_that_one_is_lost(dtype: torch.dtype) -> None:
    """1e20 − 1 is 1e20 in floating point: the nearest point is still the corner."""
    v = torch.tensor([0.0, 1e20, 3.0], dtype=dtype)
    assert Simplex()(v).tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_a_projection_keeps_precision_and_leaves_its_input_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        v: Tensor = torch.tensor([3.0, -4.0], dtype=dtype)
        for projection in (Simplex(), Nonnegative(), Box(-1.0, 1.0), Ball(1.0)):
            assert projection(v).dtype == dtype
        assert v.tolist() == [3.0, -4.0]
