"""The run folder: what is written, atomically, and read again on resume."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedsaddle.errors import UserError
from fedsaddle.runs.record import read_lines

CHANGEABLE = {
    "run": ("rounds", "checkpoint_every"),
    "engine": (
        *("workers", "memory_mb"),
        *("min_sites", "wait_seconds", "grace_seconds", "message_seconds", "poll_seconds"),
    ),
}
"""Settings that a resumed run may change, for they do not change what was computed so far."""


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: str | None = None) -> None:
    """Named tensors, and one text beside them (several would be stored in no fixed order)."""
    plain = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    with atomic(path) as temporary:
        metadata = None if note is None else {"note": note}
        temporary.write_bytes(safetensors.torch.save(plain, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Named tensors and the text beside them, or a UserError naming the file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            note = (file.metadata() or {}).get("note", "")
            # copies: where numbers lie in memory, aligned or not, may change the last bit of a sum
            names = list(file.keys())
            return {name: file.get_tensor(name).clone() for name in names}, note
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: not a readable safetensors file ({error}).") from None


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """A full or read-only disk as one sentence instead of a traceback."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            raise UserError(f"{what}: cannot be written: {error.strerror}.") from None
        raise


class RunFolder:
    """A folder that says everything about one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = ThreadPoolExecutor(1)  # its thread starts with the first checkpoint
        self._writing: Future[None] | None = None

    @property
    def model(self) -> Path:
        return self.path / "model"

    def begin(self, config_text: str, sections: Mapping[str, Any], resume: bool) -> None:
        """Make the folder, or check that the one that is there is this run's."""
        existing = self.path / "config.toml"
        if not existing.exists():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise UserError(f"{self.path}: the folder has other files in it; choose another.")
            made = not self.path.exists()
            try:
                write_text(existing, config_text)
            except OSError:
                if made:
                    shutil.rmtree(self.path, ignore_errors=True)
                raise
            return
        from fedsaddle.runs.config import read

        before = read(existing)
        difference = first_difference(before, sections)
        if difference:
            raise UserError(
                f"{self.path}: this folder holds a different run ({difference}); "
                "choose another folder."
            )
        if not resume:
            raise UserError(
                f"{self.path}: this run is here already; "
                "continue it with --resume or choose another folder."
            )
        write_text(existing, config_text)

    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add objects to a JSON-lines file."""
        if rows:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)

    def cut(self, name: str, last_round: int) -> list[dict[str, Any]]:
        """Drop the lines after a round: they will be written again. Returns the ones kept."""
        path = self.path / name
        kept = [row for row in read_lines(path) if row["round"] <= last_round]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
        return kept

    def _checkpoint(self, number: int) -> Path:
        return self.path / "checkpoints" / f"round-{number:07d}.safetensors"

    def save_checkpoint(
        self, number: int, tensors: Mapping[str, Tensor], note: Any, good: int
    ) -> None:
        """Keep this state, the one before it, and the last one of a round that was good.

        It is written while the run goes on; `settle` waits for it.
        """
        self.settle()
        text = json.dumps(note)
        self._writing = self._writer.submit(self._write_checkpoint, number, tensors, text, good)

    def _write_checkpoint(
        self, number: int, tensors: Mapping[str, Tensor], note: str, good: int
    ) -> None:
        write_tensors(self._checkpoint(number), tensors, note)
        found = self._on_disk()
        needed = [path for path in found if path <= self._checkpoint(good)][-1:] + found[-2:]
        for path in found:
            if path not in needed:
                path.unlink()

    def settle(self) -> None:
        """Wait until the last checkpoint is on disk; raises what went wrong in writing it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def drop_checkpoints_after(self, number: int) -> None:
        for path in self.checkpoints():
            if path > self._checkpoint(number):
                path.unlink()

    def checkpoints(self) -> list[Path]:
        """All of them, oldest first."""
        self.settle()
        return self._on_disk()

    def _on_disk(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def last_checkpoint(self) -> tuple[dict[str, Tensor], Any] | None:
        """The newest state, or None when the run was stopped before its first."""
        found = self.checkpoints()
        if not found:
            return None
        try:
            tensors, note = read_tensors(found[-1])
            return tensors, json.loads(note)
        except (UserError, ValueError) as error:
            raise UserError(
                f"checkpoint {found[-1]} cannot be read ({error}); "
                "delete it to resume from the one before it."
            ) from None


def first_difference(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    changeable: Mapping[str, tuple[str, ...]] = CHANGEABLE,
) -> str | None:
    """The first setting, but for those that may change, in which two configurations differ."""
    for section in sorted({*before, *now}):
        old, new = before.get(section, {}), now.get(section, {})
        for key in sorted({*old, *new}):
            if key not in changeable.get(section, ()) and old.get(key) != new.get(key):
                return f"{section}.{key} is {old.get(key)!r} there and {new.get(key)!r} here"
    return None


def free_folder(root: Path, stem: str) -> Path:
    """The first of `root/stem-1`, `root/stem-2`, … that is not there yet."""
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"
