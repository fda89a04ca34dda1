"""Functions of tensors compiled by TorchInductor, for the shapes they are called with.

Tracing runs the function once and records what reaches the tensors, so gradients, `torch.vmap` and
`Stack` leave no trace in the program. Compiled code is kept on disk: the next run starts at once.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsaddle.problems.stack import for_compiler

Program = Callable[..., Any]
OPTIONS = {"cpp_wrapper": True}
"""Calls between kernels are compiled too: a step may be as short as a fifth of a millisecond."""


def can_compile() -> bool:
    """Whether there is a C++ compiler, which TorchInductor needs on a CPU."""
    wanted = os.environ.get("CXX", "g++")
    return any(shutil.which(name) for name in (wanted, "g++", "clang++"))


def compiled(function: Callable[..., Any], examples: Sequence[Tensor]) -> Program:
    """The function for tensors of just these shapes, contiguous ones."""
    import torch._inductor
    from torch._guards import TracingContext, tracing
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    folder = _cache()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir()):  # not the user's
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    with for_compiler():
        graph = make_fx(function)(*examples)
    name = hashlib.sha256(f"{graph.graph}{torch.__version__}".encode()).hexdigest()[:16]
    # TorchInductor keeps whole programs, and not just their parts, where shapes have a keeper
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    with _alone(folder / f"{name}.lock"), torch.no_grad(), tracing(TracingContext(shapes)):
        program: Program = torch._inductor.compile(graph, list(examples), options=OPTIONS)
        program(*examples)  # compiling ends here, with the first call
    return program


def _cache() -> Path:
    from fedsaddle.metrics.generative import cache_folder

    folder = cache_folder().parent / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Of several processes in need of one program, the first makes it, the others wait for it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
