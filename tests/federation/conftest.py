"""Rounds and phases to select for, without a problem or data."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedsaddle.algorithms import Members, Phase, Round
from fedsaddle.layout import Layout
from fedsaddle.problems import Problem


@pytest.fixture(scope="session")
def layout() -> Layout:
    return Layout(primal={"w": (3,)}, dual={"alpha": ()})


@pytest.fixture(scope="session")
def round_at(layout: Layout) -> Callable[..., Round]:
    """Round `number` of a run with `clients` clients (a number, or their own numbers)."""

    def make(clients: int | list[int] = 10, number: int = 0, seed: int = 0) -> Round:
        able = torch.tensor(list(range(clients)) if isinstance(clients, int) else clients)
        names = tuple(f"client-{client}" for client in able.tolist())
        members = Members(able, names, torch.arange(len(able)))
        return Round(number, seed, layout, Problem(), members)

    return make


@pytest.fixture(scope="session")
def phase_of() -> Callable[..., Phase]:
    def unused(*_: Any) -> Any:
        raise AssertionError("nothing is computed here")

    def make(name: str = "steps", **fields: Any) -> Phase:
        wire = {"down": {"z": "point"}, "up": {"z": "point"}} | fields
        return Phase(name, client=unused, server=unused, **wire)

    return make
