import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.layout import Layout
from fedsaddle.problems import Ball, Nonnegative

shapes = st.dictionaries(
    st.text("abcdefg", min_size=1, max_size=3),
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    max_size=4,
)


@given(shapes, shapes, shapes)
def test_flatten_then_unflatten_gives_the_same_tensors(primal, dual, carried):
    carried = {name: shape for name, shape in carried.items() if name not in primal}
    layout = Layout(primal, dual, carried, dtype=torch.float64)
    make = torch.Generator().manual_seed(0)
    x, y, kept = (
        {name: torch.randn(shape, generator=make, dtype=torch.float64) for name, shape in s.items()}
        for s in (primal, dual, carried)
    )
    z, flat = layout.flatten(x, y), layout.flatten_carried(kept)
    assert z.shape == (layout.dx + layout.dy,)
    assert flat.shape == (layout.n_carried,)
    x_again, y_again = layout.unflatten(z, flat)
    assert set(x_again) == {*primal, *carried}
    assert all(torch.equal(x_again[name], value) for name, value in (x | kept).items())
    assert all(torch.equal(y_again[name], value) for name, value in y.items())


def test_parts_of_a_stack():
    layout = Layout({"w": (2,)}, {"alpha": ()})
    stack = torch.arange(6.0).reshape(2, 3)
    assert layout.x(stack).tolist() == [[0, 1], [3, 4]]
    assert layout.y(stack).tolist() == [[2], [5]]
    assert torch.equal(layout.join(layout.x(stack), layout.y(stack)), stack)
    assert layout.on_parts(0.5, 2.0).tolist() == [0.5, 0.5, 2.0]
    assert (layout.on_parts(0.5, 0.5) * torch.ones(3)).tolist() == [0.5] * 3


def test_projection_moves_only_the_constrained_variable_of_every_row():
    layout = Layout(
        {"w": (2,)}, {"u": (2,), "alpha": ()}, projections={"u": Ball(1.0), "alpha": Nonnegative()}
    )
    stack = torch.tensor([[-5.0, 9.0, 3.0, 4.0, -1.0], [1.0, 1.0, 0.1, 0.1, 2.0]])
    before = stack.clone()
    projected = layout.project(stack)
    expected = [[-5, 9, 0.6, 0.8, 0], [1, 1, 0.1, 0.1, 2]]
    torch.testing.assert_close(projected, torch.tensor(expected))
    assert torch.equal(stack, before)


def test_without_constraints_nothing_is_copied():
    z = torch.ones(3)
    assert Layout({"w": (3,)}).project(z) is z


def test_gradient_flows_through_the_named_views():
    layout = Layout({"w": (2, 2), "b": ()}, dtype=torch.float64)
    z = torch.arange(5.0, dtype=torch.float64, requires_grad=True)
    x, _ = layout.unflatten(z, torch.zeros(0))
    (gradient,) = torch.autograd.grad((x["w"] ** 2).sum() + 3 * x["b"], z)
    assert gradient.tolist() == pytest.approx([0, 2, 4, 6, 3])
