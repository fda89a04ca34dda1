"""Where compiled code is kept, for all runs and processes of a user."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def compiler() -> str | None:
    """The C++ compiler, if there is any."""
    wanted = os.environ.get("CXX", "g++")
    return next(
        (found for name in (wanted, "g++", "clang++") if (found := shutil.which(name))), None
    )


def folder() -> Path:
    from fedsaddle.metrics.generative import cache_folder

    found = cache_folder().parent / "compiled"
    found.mkdir(parents=True, exist_ok=True)
    return found


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Of several processes in need of one program, the first makes it, the others wait for it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
