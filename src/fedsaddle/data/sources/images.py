"""Image files, decoded when they are asked for."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.errors import UserError

FORMATS = {  # by suffix: Pillow's other formats are rare, and some run other programs
    ".bmp": "BMP",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".png": "PNG",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
MOST_PIXELS = 64_000_000
"""A larger image is refused before it is decoded: a small file can claim any size."""
CACHE_BYTES = 64 * 2**20
"""Decoded images that one process keeps at hand."""

Mode = Literal["grey", "rgb"]


@dataclass(frozen=True)
class ImageFormat:
    """How image files become inputs: height and width in pixels, grey or colour."""

    size: int
    mode: Mode


class ImageFiles(Store):
    """One row per file: bytes of shape (channels, size, size).

    Images are stretched to a square. A process keeps the images it used last.
    """

    def __init__(self, paths: Sequence[Path], size: int, mode: Mode) -> None:
        self.paths, self.size, self.mode = list(paths), size, mode
        self._kept: OrderedDict[int, torch.Tensor] = OrderedDict()

    @property
    def format(self) -> ImageFormat:
        return ImageFormat(self.size, self.mode)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), 1 if self.mode == "grey" else 3, self.size, self.size)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        images = torch.empty((*rows.shape, *self.shape[1:]), dtype=torch.uint8)
        flat = images.view(-1, *self.shape[1:])
        for place, row in enumerate(rows.flatten().tolist()):
            flat[place] = self._image(row)
        return images.to(rows.device)

    def _image(self, row: int) -> torch.Tensor:
        image = self._kept.pop(row, None)
        if image is None:
            image = torch.from_numpy(decode(self.paths[row], self.size, self.mode))
            if len(self._kept) >= max(1, CACHE_BYTES // image.numel()):
                self._kept.popitem(last=False)
        self._kept[row] = image  # now the last used
        return image

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}


def image_files(paths: Sequence[Path], options: DataOptions) -> ImageFiles:
    """The files as rows, in the size and mode of the options; the first one is decoded now."""
    mode = options.image_mode or mode_of(paths[0])
    files = ImageFiles(paths, options.image_size or 32, mode)
    files[torch.tensor([0])]
    return files


def mode_of(path: Path) -> Mode:
    """Whether an image is grey or in colour."""
    with _opened(path) as image:
        return "grey" if image.mode in ("1", "L", "LA") or image.mode[0] in "IF" else "rgb"


def decode(path: Path, size: int, mode: Mode) -> np.ndarray:
    """An image file as bytes of shape (channels, size, size)."""
    from PIL import Image, ImageOps

    with _opened(path) as image:
        try:
            wanted = "L" if mode == "grey" else "RGB"
            image.draft(wanted, (size, size))  # JPEG: decodes no more detail than needed
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):
                # Pillow would cut 16 bits off at 255, not scale them.
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            elif upright.mode in ("I", "F"):
                raise UserError(
                    f"{path}: has 32 bits per pixel, of unknown range; save it with 8 or 16 bits."
                )
            upright = upright.convert(wanted)
            resized = upright.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
        except UserError:
            raise
        except Exception as error:  # a broken file can raise anything
            raise _refusal(path, error) from error
    pixels = np.asarray(resized).reshape(size, size, -1)
    return np.array(np.moveaxis(pixels, -1, 0), order="C")


def _opened(path: Path) -> Any:
    from PIL import Image

    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{path}: not an image ({', '.join(FORMATS)}) by its suffix.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path, formats=sorted(set(FORMATS.values())))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path}: is larger than {MOST_PIXELS} pixels; shrink it.") from error
    except Exception as error:
        raise _refusal(path, error) from error
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise UserError(
            f"{path}: {image.width}x{image.height} is larger than {MOST_PIXELS} pixels; shrink it."
        )
    return image


def _refusal(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: no such file.")
    return UserError(f"{path}: cannot be read as an image ({error}).")
