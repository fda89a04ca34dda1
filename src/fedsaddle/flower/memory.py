"""A client's memory on its site's own disk, in numbered versions.

A request says from which version to start and under which number to keep what results; it never
changes a version that is there. Which version counts is the coordinator's word: the one that it
names next as a start is the one whose reply was used. So a reply that came too late moves nothing,
a request that is repeated gives the same reply, and a coordinator that went back to a checkpoint
names the version of that time, which is kept for as long as the checkpoint is.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedsaddle.flower.policy import Refusal

Vectors = dict[str, Tensor]


class VersionedMemory:
    """Named vectors under version numbers; version 0 is that of a client that knows nothing yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, version: int) -> Path:
        return self._folder / f"memory-{version:016d}.safetensors"

    def read(self, version: int) -> Vectors | None:
        """A version; None for version 0."""
        vectors = read_vectors(self._path(version)) if version else None
        if version and vectors is None:
            raise Refusal(
                f"the site has lost its memory of this run (version {version}); start a new run"
            )
        return vectors

    def write(self, version: int, vectors: Vectors) -> None:
        """Keep a version; it is whole or not there at all."""
        write_vectors(self._path(version), vectors)

    def keep(self, versions: Iterable[int], newest: int) -> None:
        """Forget all versions before the newest but these."""
        needed = {self._path(version).name for version in versions}
        for path in self._folder.glob("memory-*.safetensors"):
            if path.name not in needed and path.name < self._path(newest).name:
                path.unlink(missing_ok=True)

    @property
    def versions(self) -> list[int]:
        """The versions that are there, oldest first."""
        found = self._folder.glob("memory-*.safetensors")
        return sorted(int(path.stem.removeprefix("memory-")) for path in found)


def write_vectors(path: Path, vectors: Vectors) -> None:
    """Named vectors in a file that only its owner reads, and that appears whole."""
    temporary = path.with_suffix(".part")
    plain = {name: vector.contiguous().clone() for name, vector in vectors.items()}
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(safetensors.torch.save(plain))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_vectors(path: Path) -> Vectors | None:
    """What `write_vectors` wrote; None when it is not there or damaged."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError):
        return None
