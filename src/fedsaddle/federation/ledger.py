"""The ledger: what was sent, in floats and bytes, up and down, in every phase of every round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsaddle.algorithms.base import Phase, Size, length
from fedsaddle.layout import Layout

Entry = dict[str, Any]


def wire_down(phase: Phase, layout: Layout) -> dict[str, int]:
    """Length of every vector that goes to a client in this phase."""
    return _sizes(phase.down, layout, carried=True)


def wire_up(phase: Phase, layout: Layout) -> dict[str, int]:
    """Length of every vector that a client sends back in this phase."""
    return _sizes(phase.up, layout, carried=phase.trains)


def _sizes(declared: Mapping[str, Size], layout: Layout, carried: bool) -> dict[str, int]:
    sizes = {name: length(size, layout) for name, size in declared.items()}
    if carried and layout.n_carried:
        sizes["carried"] = layout.n_carried
    return sizes


@dataclass
class Ledger:
    """Running totals. Down counts every selected client, up every reply that arrived.

    `holders` notes in which era a client received the kept vectors, which are sent once an era.
    With a simulated clock the seconds that phases took are added up too.
    """

    layout: Layout
    totals: Entry = field(
        default_factory=lambda: dict.fromkeys(
            ("floats_down", "floats_up", "bytes_down", "bytes_up"), 0
        )
    )
    holders: dict[int, int] = field(default_factory=dict)

    def floats_down(self, phase: Phase, era: int, clients: np.ndarray) -> list[int]:
        """What each of these clients is sent: kept vectors go only to those without them."""
        down = wire_down(phase, self.layout)
        if not phase.kept:
            return [sum(down.values())] * len(clients)
        once = sum(down[name] for name in phase.kept if name in down)
        again = sum(down.values()) - once
        return [again + once * (self.holders.get(c) != era) for c in clients.tolist()]

    def floats_up(self, phase: Phase) -> int:
        """What each client sends back."""
        return sum(wire_up(phase, self.layout).values())

    def charge(
        self,
        phase: Phase,
        number: int,
        era: int,
        attempt: int,
        selected: np.ndarray,
        arrived: Sequence[int],
        refused: Mapping[int, str],
        seconds: float | None = None,
    ) -> Entry:
        """Book one attempt at a phase; the entry says who was asked, who answered, what it cost."""
        answered = sorted(arrived)
        floats_down = sum(self.floats_down(phase, era, selected))
        floats_up = self.floats_up(phase) * len(answered)
        if phase.kept:
            self.holders.update(dict.fromkeys(answered, era))
        width = self.layout.dtype.itemsize
        cost: Entry = {
            "floats_down": floats_down,
            "floats_up": floats_up,
            "bytes_down": floats_down * width,
            "bytes_up": floats_up * width,
        }
        if seconds is not None:
            cost["simulated_seconds"] = seconds
        for name, amount in cost.items():
            self.totals[name] = self.totals.get(name, 0) + amount
        return {
            "round": number + 1,
            "phase": phase.name,
            "attempt": attempt,
            "selected": selected.tolist(),
            "answered": answered,
            "refused": {str(client): reason for client, reason in refused.items()},
            **cost,
        }
