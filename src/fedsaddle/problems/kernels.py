"""Operators of our own, in C++ (kernels.cpp), for what torch's are slow at in a stack of clients.

They are built when they are first needed and kept with other compiled code. To torch they are
operators like its own, so that a compiler can put them between its loops.
"""

import hashlib
import math
import subprocess
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fedsaddle.problems.cache import alone, compiler, folder

SOURCE = Path(__file__).with_name("kernels.cpp")
VECTORS = {"AVX512": (64, "x86-64-v4"), "AVX2": (32, "x86-64-v3")}
"""By what torch says that the processor can: the bytes of a vector, and what compilers call it."""
FEW_ROWS, LONG_ROWS = 64, 64
"""Products of more rows, or of shorter ones, are left to torch."""


def lanes(dtype: torch.dtype) -> int:
    """How many numbers are computed with at once; 0 where there is no code for them."""
    kind = torch.backends.cpu.get_cpu_capability()
    known = kind in VECTORS and dtype in (torch.float32, torch.float64)
    return VECTORS[kind][0] // dtype.itemsize if known else 0


@cache
def available() -> bool:
    """Whether the operators are there; they are built if need be."""
    command = compiler()
    if command is None or not lanes(torch.float32):
        return False
    try:
        _, architecture = VECTORS[torch.backends.cpu.get_cpu_capability()]
        torch.ops.load_library(_built(command, architecture))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        reason = next(iter(said.splitlines()), "")
        warnings.warn(f"what {SOURCE.name} is for is left to torch ({reason})", stacklevel=2)
        return False
    torch.library.register_fake("fedsaddle::rows_times_weights", _like_product)
    torch.library.register_fake("fedsaddle::convolve", _like_convolved)
    torch.library.register_fake("fedsaddle::correlate", _like_correlated)
    return True


def _built(command: str, architecture: str) -> Path:
    """The library, from an earlier time or built now."""
    home = Path(torch.__file__).parent
    includes = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    how = ["-O3", "-std=c++20", "-fPIC", "-shared", f"-march={architecture}"]
    how.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    what = f"{SOURCE.read_text(encoding='utf-8')}{command}{how}{torch.__version__}"
    stem = f"kernels-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    library = folder() / f"{stem}.so"
    with alone(folder() / f"{stem}.lock"):
        if not library.exists():
            made = library.with_suffix(".new")
            links = [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(made)]
            call = [command, *how, *includes, str(SOURCE), *links]
            subprocess.run(call, check=True, capture_output=True, text=True)
            made.replace(library)
    return library


def rows_times_weights(rows: Tensor, weights: Tensor, turned: bool) -> Tensor:
    """`rows @ weightsᵀ` for every client; turned, `rows @ weights`."""
    _, count, length = rows.shape
    along = weights.shape[2] >= lanes(rows.dtype) if turned else length >= LONG_ROWS
    few = 0 < count <= FEW_ROWS and along and rows.is_cpu
    if few and lanes(rows.dtype) and available():
        product: Tensor = torch.ops.fedsaddle.rows_times_weights(rows, weights, turned)
        return product
    return torch.bmm(rows, weights if turned else weights.mT)


def add_up(pieces: Sequence[Tensor], shares: Sequence[float], out: Tensor, own: bool) -> bool:
    """Writes the sum of a matrix's rows, which is in pieces, times their shares.

    Whether it is numbers throughout; where they are very large ones, that may be denied. An
    operator of our own is used where somebody has `own` ones in any case.
    """
    if own and out.is_cpu and available():
        finite: bool = torch.ops.fedsaddle.add_up.default(pieces, shares, out)
        return finite
    weights = torch.tensor(shares, dtype=out.dtype)
    widths = [piece.shape[1] for piece in pieces]
    for piece, total in zip(pieces, out.split_with_sizes(widths), strict=True):
        torch.mv(piece.t(), weights, out=total)
    return math.isfinite(float(out.sum()))


def _like_product(rows: Tensor, weights: Tensor, turned: bool) -> Tensor:
    return rows.new_empty(*rows.shape[:2], weights.shape[2 if turned else 1])


def _like_convolved(pictures: Tensor, weights: Tensor, padding: int, turned: bool) -> Tensor:
    n, height, width, _, own_lanes = pictures.shape
    rows, columns, *channels, _ = weights.shape
    sides = (height + 2 * padding - rows + 1, width + 2 * padding - columns + 1)
    return pictures.new_empty(n, *sides, channels[0 if turned else 1], own_lanes)


def _like_correlated(pictures: Tensor, gradients: Tensor, padding: int, clients: int) -> Tensor:
    sides = (pictures.shape[k] + 2 * padding - gradients.shape[k] + 1 for k in (1, 2))
    return pictures.new_empty(*sides, pictures.shape[3], gradients.shape[3], clients)
