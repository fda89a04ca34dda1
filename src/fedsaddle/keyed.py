"""Randomness keyed by what it is for, never by when it is drawn.

Every random choice names its purpose, round and client. One worker or eight, simulated or on a
network, run through or resumed: the same key gives the same numbers.
"""

import zlib

import numpy as np
import torch

Key = int | str


def _sequence(seed: int, key: tuple[Key, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else int(part) for part in key]
    if all(0 <= word < 2**32 for word in (seed, *words)):
        # the words that numpy makes of the two, in a third of the time
        return np.random.SeedSequence(np.array([seed, 0, 0, 0, *words], np.uint32))
    return np.random.SeedSequence(entropy=seed, spawn_key=words)


def generator(seed: int, *key: Key) -> np.random.Generator:
    """A numpy generator for one purpose.

    >>> int(generator(0, "select", 3).integers(100)) == int(generator(0, "select", 3).integers(100))
    True
    """
    return np.random.Generator(np.random.Philox(_sequence(seed, key)))


def number(seed: int, *key: Key) -> int:
    """A whole number for one purpose, that another generator can begin with: below 2⁶³."""
    return int(_sequence(seed, key).generate_state(1, np.uint64)[0]) >> 1


def torch_generator(seed: int, *key: Key) -> torch.Generator:
    """A torch generator for one purpose (initial weights, noise)."""
    return torch.Generator().manual_seed(number(seed, *key))
