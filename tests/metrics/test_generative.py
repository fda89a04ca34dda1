"""Generative scores against closed forms, scipy, and counting; the judge and its cache."""

import base64
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import linalg
from sklearn.datasets import load_digits

from fedsaddle.metrics.generative import (
    Moments,
    Scorer,
    cache_folder,
    frechet_distance,
    image_grid,
    inception_score,
    train_scorer,
)

RANDOM = np.random.default_rng(0)


# --- inception score ------------------------------------------------------------------------------


def test_sure_and_even_is_the_number_of_classes() -> None:
    rows = np.tile(np.eye(5), (20, 1))
    assert inception_score(rows, splits=4) == pytest.approx((5.0, 0.0))


def test_always_the_same_answer_is_one() -> None:
    assert inception_score(np.tile([0.7, 0.2, 0.1], (30, 1)))[0] == pytest.approx(1.0)
    assert inception_score(np.tile([1.0, 0.0, 0.0], (30, 1)))[0] == pytest.approx(1.0)


def test_parts_do_not_overlap_and_use_every_row() -> None:
    p = RANDOM.dirichlet(np.ones(4), size=23)
    scores = []
    for start, stop in ((0, 8), (8, 16), (16, 23)):  # 23 rows in three parts
        part = p[start:stop]
        kl = [
            sum(q * np.log(q / m) for q, m in zip(row, part.mean(0), strict=True)) for row in part
        ]
        scores.append(np.exp(np.mean(kl)))
    assert inception_score(p, splits=3) == pytest.approx((np.mean(scores), np.std(scores)))


def test_more_parts_than_rows_and_no_rows() -> None:
    assert inception_score(np.eye(3), splits=10) == pytest.approx((1.0, 0.0))
    assert np.isnan(inception_score(np.zeros((0, 3)))[0])
    with pytest.raises(ValueError, match="shape"):
        inception_score([0.1, 0.9])


# --- Fréchet distance -----------------------------------------------------------------------------


def with_moments(mean: np.ndarray, covariance: np.ndarray, rows: int = 50) -> np.ndarray:
    """Rows with exactly these moments."""
    white = RANDOM.normal(size=(rows, len(mean)))
    white -= white.mean(axis=0)
    white = white @ np.linalg.inv(np.linalg.cholesky(np.cov(white.T))).T
    return white @ np.linalg.cholesky(covariance).T + mean


def test_commuting_gaussians_in_closed_form() -> None:
    """`‖μ − ν‖² + Σ (σ_k − τ_k)²` for diagonal covariances."""
    mu, nu = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 0.5])
    sigma, tau = np.array([1.0, 2.0, 0.3]), np.array([0.5, 2.0, 1.3])
    a, b = with_moments(mu, np.diag(sigma**2)), with_moments(nu, np.diag(tau**2))
    expected = np.square(mu - nu).sum() + np.square(sigma - tau).sum()
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)


def test_any_gaussians_as_by_the_matrix_square_root_of_scipy() -> None:
    a = RANDOM.normal(size=(40, 4)) @ RANDOM.normal(size=(4, 4))
    b = RANDOM.normal(size=(60, 4)) @ RANDOM.normal(size=(4, 4)) + 1
    A, B = np.cov(a.T), np.cov(b.T)
    spread = np.trace(A + B - 2 * linalg.sqrtm(A @ B).real)
    expected = np.square(a.mean(0) - b.mean(0)).sum() + spread
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(b, a) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)


def test_singular_covariances_are_no_trouble() -> None:
    flat = np.zeros((10, 3))
    flat[:, 0] = np.arange(10)
    moved = flat + np.array([0.0, 2.0, 0.0])
    assert frechet_distance(flat, moved) == pytest.approx(4.0)
    assert frechet_distance(flat[:, :1] * 0, flat[:, 1:2]) == pytest.approx(0, abs=1e-12)


def test_moments_from_the_sums_of_two_sites() -> None:
    rows = torch.from_numpy(RANDOM.normal(3, 2, size=(31, 4)))
    found = Moments.of_sums(Moments.sums(rows[:11]) + Moments.sums(rows[11:]))
    assert found.mean == pytest.approx(rows.numpy().mean(axis=0))
    assert found.covariance == pytest.approx(np.cov(rows.numpy().T))


def test_a_generator_that_broke_has_no_distance() -> None:
    assert np.isnan(frechet_distance([[np.nan], [1.0]], [[1.0], [2.0]]))


# --- the judge ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    bunch = load_digits()
    return torch.from_numpy(bunch.data / 8 - 1).float(), torch.from_numpy(bunch.target)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8)])
def test_the_judge_knows_the_digits(
    digits: tuple[torch.Tensor, torch.Tensor], shape: tuple[int, ...]
) -> None:
    inputs, labels = digits[0].reshape(-1, *shape), digits[1]
    scorer = train_scorer(inputs[:1200], labels[:1200], 10, steps=300)
    p = scorer.probabilities(inputs[1200:])
    assert p.sum(dim=1).numpy() == pytest.approx(1, abs=1e-5)
    assert float((p.argmax(dim=1) == labels[1200:]).float().mean()) > 0.85
    assert not any(weight.requires_grad for weight in scorer.parameters())


def test_a_judge_is_trained_once_and_found_again(
    digits: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, labels = digits[0][:200], digits[1][:200]
    torch.manual_seed(123)  # what was drawn before must not matter
    first = train_scorer(inputs, labels, 10, steps=20, cache=tmp_path / "scorers")
    (kept,) = (tmp_path / "scorers").iterdir()
    anew = train_scorer(inputs, labels, 10, steps=20)
    monkeypatch.setattr("torch.optim.Adam", None)  # training again would fail
    found = train_scorer(inputs, labels, 10, steps=20, cache=tmp_path / "scorers")
    for name, value in first.state_dict().items():
        assert torch.equal(value, found.state_dict()[name])
        assert torch.equal(value, anew.state_dict()[name])
    monkeypatch.undo()
    train_scorer(inputs + 1e-3, labels, 10, steps=20, cache=tmp_path / "scorers")
    train_scorer(inputs, 9 - labels, 10, steps=20, cache=tmp_path / "scorers")
    assert len(list((tmp_path / "scorers").iterdir())) == 3
    kept.write_bytes(b"broken")
    again = train_scorer(inputs, labels, 10, steps=20, cache=tmp_path / "scorers")
    assert torch.equal(again.head.weight, first.head.weight)


def test_where_nothing_can_be_written_it_is_trained_all_the_same(
    digits: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    scorer = train_scorer(digits[0][:50], digits[1][:50], 10, steps=2, cache=tmp_path / "file")
    assert isinstance(scorer, Scorer)


def test_the_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSADDLE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "scorers"
    monkeypatch.delenv("FEDSADDLE_CACHE")
    assert "fedsaddle" in cache_folder().parts


# --- pictures -------------------------------------------------------------------------------------


def decoded(uri: str) -> np.ndarray:
    """A PNG of 8-bit grey or colour without filters, read by hand, every checksum checked."""
    content = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        chunks[kind], place = body, place + 12 + length
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert depth == 8
    channels = {0: 1, 2: 3}[colour]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(1, 9, 8), (3, 9, 8), (9, 8), (64,)])
def test_the_grid_holds_every_picture(shape: tuple[int, ...]) -> None:
    images = torch.from_numpy(RANDOM.uniform(-1, 1, (10, *shape)))
    images.view(-1)[:2] = torch.tensor([-1.0, 1.0])
    grid = decoded(image_grid(images, columns=4) or "")
    channels = 3 if shape[0] == 3 else 1
    height, width = (8, 8) if shape == (64,) else (9, 8)
    assert grid.shape == (3 * (height + 1) - 1, 4 * (width + 1) - 1, channels)
    for number, image in enumerate(images):
        top, left = number // 4 * (height + 1), number % 4 * (width + 1)
        shown = grid[top : top + height, left : left + width].transpose(2, 0, 1)
        expected = (image.reshape(channels, height, width).numpy() + 1) / 2 * 255
        assert np.abs(shown - expected).max() <= 0.51


@pytest.mark.parametrize("shape", [(2,), (65,), (2, 8, 8), (1, 1, 8, 8)])
def test_other_rows_are_no_pictures(shape: tuple[int, ...]) -> None:
    assert image_grid(torch.zeros(4, *shape)) is None
    assert image_grid(torch.zeros(0, 8, 8)) is None


def test_pictures_of_one_shade_or_with_holes() -> None:
    assert decoded(image_grid(torch.ones(2, 8, 8)) or "").max() == 0
    holes = torch.full((1, 8, 8), torch.nan)
    assert decoded(image_grid(holes) or "").shape == (8, 8, 1)
