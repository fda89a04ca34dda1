"""Pickles from strangers: plain values and arrays of bytes, and nothing that runs code.

A pickle names functions to call. Here the three names that an array needs stand for classes of
our own, and any other name is refused before anything is called.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsaddle.errors import UserError


class _Dtype:
    """Stands for numpy.dtype("u1")."""

    def __init__(self, name: bytes | str, *_: object) -> None:
        if name not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array of type {name!r} and not of bytes")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment: bytes have none."""


class _Array:
    """Stands for an array that is being rebuilt."""

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes | str]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype):
            raise pickle.UnpicklingError("an array of unknown type")
        if isinstance(data, str):
            data = data.encode("latin1")
        flat = np.frombuffer(data, dtype=np.uint8)
        self.array = flat.reshape(shape, order="F" if fortran else "C")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): tuple,  # only ever passed on to _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes for Python 2
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        # A fresh object every time: a pickle may set attributes of what it names.
        return partial(ALLOWED[module, name])


def unpickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file; texts of Python 2 are text, its arrays are of bytes."""
    try:
        with open(path, "rb") as file:
            found = _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # a broken pickle can raise anything
        raise UserError(
            f"{path}: refused as a pickle of plain values and arrays ({error}); "
            "nothing in it was run. Get the publisher's file again."
        ) from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: must hold a dictionary, as the publisher's file does.")
    return {
        str(key): value.array if isinstance(value, _Array) else value
        for key, value in found.items()
    }
