"""How good made-up rows are, judged by a small classifier of the same data; and a look at them.

The usual scores take a network trained on ImageNet, which says little about digits or X-rays and
has to be downloaded. Here the judge is a `Scorer`, trained on the data at hand, always to the same
weights, and kept in a cache by the content of what it was trained on. Its scores compare models on
one data set; they are not comparable with scores by other judges.
"""

import base64
import hashlib
import os
import struct
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from math import isqrt, prod
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

Floats = NDArray[np.float64]

FEATURES = 64
"""How many features the Fréchet distance compares."""
_VERSION = 1  # of the judge's network and training: another one must not be found in the cache


class Scorer(nn.Module):
    """A small classifier: convolutions for images of 8x8 or more, dense layers for other rows.

    >>> scorer = Scorer((1, 8, 8), 10)
    >>> scorer(torch.zeros(3, 1, 8, 8)).shape, scorer.features(torch.zeros(3, 1, 8, 8)).shape
    (torch.Size([3, 10]), torch.Size([3, 64]))
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        layers: list[nn.Module]
        if len(input_shape) == 3 and min(input_shape[1:]) >= 8:
            channels, height, width = input_shape
            size = 32 * (height // 4) * (width // 4)
            layers = [
                *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(size, FEATURES), nn.ReLU()),
            ]
        else:
            layers = [
                *(nn.Flatten(), nn.Linear(prod(input_shape), 128), nn.ReLU()),
                *(nn.Linear(128, FEATURES), nn.ReLU()),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(FEATURES, n_classes)

    def features(self, inputs: Tensor) -> Tensor:
        """`(n, 64)`: what the last layer decides by."""
        inputs = inputs.to(self.head.weight.dtype).reshape(-1, *self.input_shape)
        found: Tensor = self.body((inputs - self.centre) / self.scale)
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits

    def probabilities(self, inputs: Tensor) -> Tensor:
        """`(n, classes)`."""
        return torch.softmax(self(inputs), dim=1)


def cache_folder() -> Path:
    """Where judges are kept: $FEDSADDLE_CACHE, else the user's cache folder."""
    import pooch  # type: ignore[import-untyped]

    return Path(os.environ.get("FEDSADDLE_CACHE") or pooch.os_cache("fedsaddle")) / "scorers"


def train_scorer(
    inputs: Tensor,
    labels: Tensor,
    n_classes: int,
    *,
    steps: int = 1000,
    batch_size: int = 64,
    cache: Path | None = None,
) -> Scorer:
    """The judge for these rows: the same weights every time, from the cache if they are there.

    Args:
        inputs: rows as a network takes them.
        labels: class numbers.
        n_classes: how many classes there are.
        steps: Adam steps on the cross-entropy.
        batch_size: rows of a step.
        cache: where judges are kept; None trains anew and keeps nothing.
    """
    inputs = inputs.detach().float().cpu()
    labels = labels.detach().long().cpu()
    scorer = _fresh(tuple(inputs.shape[1:]), n_classes)
    settings = f"{_VERSION} {tuple(inputs.shape)} {n_classes} {steps} {batch_size}"
    digest = hashlib.sha256(settings.encode())
    digest.update(inputs.contiguous().numpy().tobytes())
    digest.update(labels.contiguous().numpy().tobytes())
    path = None if cache is None else cache / f"{digest.hexdigest()[:32]}.safetensors"
    if path is None or not _restore(scorer, path):
        _fit(scorer, inputs, labels, steps, batch_size)
        if path is not None:
            with suppress(OSError):  # no room, or no right to write: it is trained again next time
                _keep(scorer, path)
    return scorer.eval().requires_grad_(False)


def _fresh(input_shape: tuple[int, ...], n_classes: int) -> Scorer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Scorer(input_shape, n_classes)


def _fit(scorer: Scorer, inputs: Tensor, labels: Tensor, steps: int, batch_size: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums depend on the number of threads
    try:
        with torch.enable_grad():
            scorer.centre.copy_(inputs.mean())
            scorer.scale.copy_(inputs.std(correction=0).clamp(min=1e-6))
            adam = torch.optim.Adam(scorer.parameters(), lr=1e-3)
            random = np.random.default_rng(0)
            for _ in range(steps):
                rows = torch.from_numpy(random.integers(len(inputs), size=batch_size))
                loss = functional.cross_entropy(scorer(inputs[rows]), labels[rows])
                adam.zero_grad()
                torch.autograd.backward(loss)
                adam.step()
    finally:
        torch.set_num_threads(threads)


def _restore(scorer: Scorer, path: Path) -> bool:
    try:
        scorer.load_state_dict(safetensors.torch.load_file(path))
    except (OSError, RuntimeError, safetensors.SafetensorError):
        return False
    return True


def _keep(scorer: Scorer, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    os.close(handle)
    try:
        Path(name).write_bytes(safetensors.torch.save(scorer.state_dict()))
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def inception_score(probabilities: ArrayLike, splits: int = 10) -> tuple[float, float]:
    """`exp(E_x KL(p(y|x) ‖ p(y)))`: 1 at worst, the number of classes at best.

    The rows are cut into `splits` parts of nearly equal size that do not overlap; `p(y)` is the
    mean within a part.

    Args:
        probabilities: the judge's, `(n, classes)`.
        splits: how many parts; at most one per row are made.

    Returns:
        The mean over the parts and their standard deviation; nan without rows.

    >>> inception_score(np.eye(4), splits=1)
    (4.0, 0.0)

    Reference: Salimans et al. (2016), Improved techniques for training GANs, NeurIPS.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2:
        raise ValueError(f"probabilities must have shape (n, classes), not {p.shape}")
    if not len(p):
        return float("nan"), float("nan")
    scores = []
    for part in np.array_split(p, min(splits, len(p))):
        marginal = part.mean(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(part > 0, part * (np.log(part) - np.log(marginal)), 0.0)
        scores.append(float(np.exp(terms.sum(axis=1).mean())))
    return float(np.mean(scores)), float(np.std(scores))


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features, from sums that sites may share."""

    mean: Floats
    covariance: Floats

    @staticmethod
    def sums(features: Tensor) -> Tensor:
        """The number of rows, their sum, and the sum of their outer products, end to end."""
        rows = features.double()
        count = rows.new_tensor([len(rows)])
        return torch.cat([count, rows.sum(dim=0), (rows.T @ rows).reshape(-1)])

    @classmethod
    def of_sums(cls, sums: Tensor) -> "Moments":
        """The moments, from all sites' sums together."""
        total = sums.double().cpu().numpy()
        k = (isqrt(4 * len(total) - 3) - 1) // 2  # 1 + k + k² numbers
        count, linear, squares = total[0], total[1 : k + 1], total[k + 1 :].reshape(k, k)
        mean = linear / count
        return cls(mean, (squares - count * np.outer(mean, mean)) / max(count - 1, 1))

    @classmethod
    def of(cls, features: ArrayLike) -> "Moments":
        """The moments of rows of features."""
        return cls.of_sums(cls.sums(torch.as_tensor(np.asarray(features, dtype=np.float64))))

    def distance(self, other: "Moments") -> float:
        """`‖μ − ν‖² + tr(A + B − 2(A^½ B A^½)^½)`, by eigenvalues; nan if not finite."""
        if not all(np.isfinite(v).all() for m in (self, other) for v in vars(m).values()):
            return float("nan")
        values, vectors = np.linalg.eigh(self.covariance)
        root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
        middle = np.linalg.eigvalsh(root @ other.covariance @ root).clip(min=0)
        spread = np.trace(self.covariance) + np.trace(other.covariance) - 2 * np.sqrt(middle).sum()
        return float(np.square(self.mean - other.mean).sum() + max(spread, 0.0))


def frechet_distance(features_a: ArrayLike, features_b: ArrayLike) -> float:
    """The squared 2-Wasserstein distance of two Gaussians with the features' moments.

    Args:
        features_a: rows of features, `(n, k)`.
        features_b: rows of features, `(m, k)`.

    >>> frechet_distance([[0.0], [2.0]], [[3.0], [5.0]])
    9.0

    Reference: Heusel et al. (2017), GANs trained by a two time-scale update rule, NeurIPS.
    """
    return Moments.of(features_a).distance(Moments.of(features_b))


def image_grid(images: Tensor, columns: int = 8) -> str | None:
    """The images side by side as one PNG, in a data URI; None for rows that are no images.

    A row is an image when its shape is (h, w), (1, h, w) or (3, h, w), or when it is flat with a
    square number of values, 64 at least. The grid's lowest value is black, its highest white.

    >>> image_grid(torch.rand(4, 1, 8, 8))[:22], image_grid(torch.rand(4, 2))
    ('data:image/png;base64,', None)
    """
    shape = tuple(images.shape[1:])
    if len(shape) == 1 and shape[0] >= 64 and isqrt(shape[0]) ** 2 == shape[0]:
        shape = (isqrt(shape[0]), isqrt(shape[0]))
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or shape[0] not in (1, 3) or not len(images):
        return None
    channels, height, width = shape
    pixels = torch.nan_to_num(images.detach().float().cpu().reshape(-1, *shape))
    low, high = pixels.min(), pixels.max()
    shades = ((pixels - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8).numpy()
    columns = min(columns, len(shades))
    lines = -(-len(shades) // columns)
    grid = np.zeros((lines * (height + 1) - 1, columns * (width + 1) - 1, channels), np.uint8)
    for number, image in enumerate(shades):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        grid[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    return "data:image/png;base64," + base64.b64encode(_png(grid)).decode()


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """`(h, w, 1 or 3)` bytes as a PNG file."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
