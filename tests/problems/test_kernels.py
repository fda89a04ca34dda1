"""Our own operators: products against torch's, and how the library is built, or done without.

Convolutions are in test_woven.py.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedsaddle.problems import cache, kernels
from fedsaddle.problems.kernels import FEW_ROWS, LONG_ROWS, available, lanes, rows_times_weights
from fedsaddle.problems.stack import for_compiler, stacked

pytestmark = pytest.mark.skipif(
    not available(), reason="needs a C++ compiler and a processor with AVX2"
)


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class Asked(torch.overrides.TorchFunctionMode):
    """Whether torch itself is asked for a product."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.torch |= func is torch.bmm
        return func(*args, **(kwargs or {}))


@settings(max_examples=100)
@given(
    st.integers(1, 3),
    st.integers(1, 13),
    st.integers(LONG_ROWS, LONG_ROWS + 40),
    st.integers(1, 40),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_product(clients, count, length, outputs, dtype):
    """Rows, lengths and outputs that end anywhere in a block or a vector."""
    rows = drawn(1, clients, count, length)
    weights, turned = drawn(2, clients, outputs, length), drawn(3, clients, length, outputs)
    within = 1e-12 if dtype == torch.float64 else 1e-4
    with Asked() as asked:
        found = rows_times_weights(rows.to(dtype), weights.to(dtype), turned=False)
    assert not asked.torch
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), rows @ weights.mT, rtol=0, atol=within)
    with Asked() as asked:
        found = rows_times_weights(rows.to(dtype), turned.to(dtype), turned=True)
    assert asked.torch == (outputs < lanes(dtype))
    torch.testing.assert_close(found.double(), rows @ turned, rtol=0, atol=within)


def test_what_torch_is_good_at_is_left_to_it():
    def left(count: int, length: int, outputs: int) -> bool:
        rows, weights = drawn(1, 2, count, length), drawn(2, 2, outputs, length)
        with Asked() as asked:
            found = rows_times_weights(rows, weights, turned=False)
        torch.testing.assert_close(found, rows @ weights.mT)
        return asked.torch

    assert not left(FEW_ROWS, LONG_ROWS, 1)
    assert left(FEW_ROWS + 1, LONG_ROWS, 1)
    assert left(FEW_ROWS, LONG_ROWS - 1, 1)
    assert left(0, LONG_ROWS, 3)


def test_what_would_read_beyond_the_end_is_refused():
    own = torch.ops.fedsaddle
    short = torch.ones(1, 2, lanes(torch.float32) - 1)
    with pytest.raises(RuntimeError, match="shorter than a vector"):
        own.rows_times_weights(short, short, False)
    with pytest.raises(RuntimeError, match="shorter than a vector"):
        own.rows_times_weights(torch.ones(1, 2, 2), short, True)
    pictures, weights = torch.ones(1, 3, 3, 1, 3), torch.ones(2, 2, 1, 1, 3)
    with pytest.raises(RuntimeError, match="not woven"):
        own.convolve(pictures, weights, 0, False)
    with pytest.raises(RuntimeError, match="not woven"):
        own.correlate(pictures, torch.ones(1, 2, 2, 1, 3), 0, 3)


def test_numbers_beside_the_last_vector_do_not_leak_in():
    """Where rows are no whole number of vectors long, the last vector overlaps the one before."""
    length = LONG_ROWS + 3
    rows, weights = torch.ones(2, 2, length), torch.ones(2, 3, length)
    rows[0, 0, 0] = weights[1, 2, -1] = torch.inf  # of one client's row, of another's weight
    found = rows_times_weights(rows, weights, turned=False)
    assert torch.equal(found, rows @ weights.mT)


def test_a_linear_layer_and_both_its_derivatives():
    def derivatives(run) -> list[Tensor]:
        shapes = ((3, 5, 70), (3, 66, 70), (3, 66))
        leaves = [drawn(j, *shape).div(9).requires_grad_() for j, shape in enumerate(shapes)]
        outputs = run(*leaves)
        first = torch.autograd.grad(torch.tanh(outputs).sum(), leaves, create_graph=True)
        along = [drawn(8, *leaf.shape) for leaf in leaves]
        second = torch.autograd.grad(first, leaves, along)
        return [tensor.detach() for tensor in (outputs, *first, *second)]

    def ours(*stacks: Tensor) -> Tensor:
        with for_compiler():
            return stacked(functional.linear, *stacks)

    def theirs(*stacks: Tensor) -> Tensor:
        return torch.stack([functional.linear(*row) for row in zip(*stacks, strict=True)])

    for a, b in zip(derivatives(ours), derivatives(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_compiler_that_fails_is_said_and_torch_takes_over(tmp_path, monkeypatch):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'no such instruction' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "compiler", lambda: str(broken))
    with pytest.warns(UserWarning, match="left to torch.*no such instruction"):
        assert not available.__wrapped__()
    monkeypatch.setattr(kernels, "compiler", lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not available.__wrapped__()
    assert not list(cache.folder().glob("*.so"))


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="vectors here are short anyway"
)
def test_a_processor_with_shorter_vectors():
    """The other tests again, in a process that is told so."""
    files = [__file__, str(Path(__file__).with_name("test_woven.py"))]
    others = ["-k", "not compiler_that_fails and not shorter_vectors"]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *files, *others],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "avx2"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout
    assert "skipped" not in told.stdout


# --- sums of vectors in pieces --------------------------------------------------------------------


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_a_sum_of_rows_in_pieces(widths, count, dtype, own):
    """Pieces that end anywhere in a vector, and lie in memory as they like."""
    rows, shares = drawn(1, count, sum(widths)), drawn(2, count).tolist()
    pieces = [piece.to(dtype) for piece in rows.split_with_sizes(widths, 1)]
    pieces[0] = pieces[0].T.contiguous().T  # column by column
    total = torch.full((sum(widths),), torch.nan, dtype=dtype)
    assert kernels.add_up(pieces, shares, total, own)
    expected = torch.tensor(shares, dtype=torch.float64) @ rows.to(dtype).double()
    within = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(total.double(), expected, rtol=0, atol=within)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("place", [0, lanes(torch.float32), 2 * lanes(torch.float32) + 1])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_a_sum_that_is_no_number_is_told(own, place, odd):
    rows = torch.ones(3, 2 * lanes(torch.float32) + 2)
    rows[1, place] = odd
    assert not kernels.add_up([rows], [1.0, 0.0, 1.0], torch.empty(rows.shape[1]), own)


@pytest.mark.parametrize("own", [True, False])
def test_rows_that_are_one_and_the_same(own):
    total = torch.empty(70)
    assert kernels.add_up([torch.arange(70.0).expand(4, -1)], [0.25] * 4, total, own)
    assert torch.equal(total, torch.arange(70.0))


@pytest.mark.parametrize(
    ("rows", "count", "length", "what"),
    [
        (torch.ones(3, 5), 2, 5, "row per share"),
        (torch.ones(3, 5), 3, 4, "shorter than the rows"),
        (torch.ones(3, 5), 3, 6, "longer than the rows"),
        (torch.ones(3, 5).double(), 3, 5, "several kinds"),
    ],
)
def test_sums_of_another_shape_are_refused(rows, count, length, what):
    with pytest.raises(RuntimeError, match=what):
        kernels.add_up([rows], [1.0] * count, torch.empty(length), own=True)
