"""Where a published data set's files are."""

from __future__ import annotations

from pathlib import Path

from fedsaddle.data.options import DataOptions
from fedsaddle.errors import UserError


def locate(options: DataOptions, folder: str, name: str, advice: str) -> Path:
    """The file ``root/folder/name``, or ``root/name``; ``advice`` says how to come by it."""
    for path in (options.folder / folder / name, options.folder / name):
        if path.is_file():
            return path
    raise UserError(f"{options.folder / folder / name} is missing; {advice}")


BY_HAND = {
    "ham10000": "https://doi.org/10.7910/DVN/DBW86T",
    "ham10000-8x8": "https://doi.org/10.7910/DVN/DBW86T",
    "shakespeare-leaf": "https://leaf.cmu.edu",
}
"""Data sets behind a form, or made by scripts: where to get them."""


def fetch_advice(name: str) -> str:
    """How to come by a data set."""
    if name in BY_HAND:
        return f"get it from {BY_HAND[name]} by hand, and set data.root to the folder that has it."
    return f"get it with 'fedsaddle data fetch {name}', or set data.root to the folder that has it."


def read_text(path: Path) -> str:
    """The file's text; a byte order mark is dropped."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error}).") from error
