"""What was sent, counted by hand."""

import numpy as np
import torch

from fedsaddle.federation import Ledger
from fedsaddle.federation.ledger import wire_down, wire_up
from fedsaddle.layout import Layout

TOTALS = ("floats_down", "floats_up", "bytes_down", "bytes_up")


def charge(ledger, phase, selected, arrived, number=0, era=0, refused=None, **more):
    clients = np.array(selected)
    return ledger.charge(phase, number, era, 0, clients, arrived, refused or {}, **more)


def test_down_counts_the_selected_and_up_the_answers(layout, phase_of):
    ledger = Ledger(layout)  # d = 4
    phase = phase_of(up={"z": "point", "loss": 1, "x": "primal", "y": "dual"})
    entry = charge(ledger, phase, [1, 2, 5], [2, 5], refused={5: "'z' is not finite"})
    up = 2 * (4 + 1 + 3 + 1)
    assert [entry[name] for name in TOTALS] == [12, up, 48, 4 * up]
    assert entry["round"] == 1
    assert entry["selected"] == [1, 2, 5]
    assert entry["answered"] == [2, 5]
    assert entry["refused"] == {"5": "'z' is not finite"}
    charge(ledger, phase, [1], [])
    assert [ledger.totals[name] for name in TOTALS] == [16, up, 64, 4 * up]


def test_doubles_are_eight_bytes(phase_of):
    ledger = Ledger(Layout(primal={"w": (5,)}, dtype=torch.float64))
    entry = charge(ledger, phase_of(), [0], [0])
    assert (entry["floats_up"], entry["bytes_up"]) == (5, 40)


def test_carried_values_go_down_and_come_back_from_training_only(phase_of):
    layout = Layout(primal={"w": (5,)}, carried={"mean": (2,)})
    assert wire_down(phase_of(), layout) == {"z": 5, "carried": 2}
    assert wire_up(phase_of(), layout) == {"z": 5, "carried": 2}
    assert wire_up(phase_of(trains=False), layout) == {"z": 5}


def test_kept_vectors_are_sent_once_an_era(layout, phase_of):
    ledger = Ledger(layout)
    phase = phase_of(down={"z": "point", "anchor": "primal"}, kept=("anchor",))
    assert charge(ledger, phase, [0, 1, 2], [0, 1])["floats_down"] == 3 * (4 + 3)
    # 2 did not answer, so nothing is known of what it holds; 3 is new
    assert ledger.floats_down(phase, 0, np.array([0, 1, 2, 3])) == [4, 4, 7, 7]
    assert charge(ledger, phase, [0, 1, 2, 3], [0, 1, 2, 3])["floats_down"] == 4 * 4 + 2 * 3
    assert charge(ledger, phase, [0, 1, 2, 3], [], era=1)["floats_down"] == 4 * (4 + 3)


def test_seconds_are_booked_when_there_is_a_clock(layout, phase_of):
    ledger = Ledger(layout)
    assert "simulated_seconds" not in charge(ledger, phase_of(), [0], [0])
    assert "simulated_seconds" not in ledger.totals
    assert charge(ledger, phase_of(), [0], [0], seconds=1.5)["simulated_seconds"] == 1.5
    charge(ledger, phase_of(), [0], [0], seconds=0.25)
    assert ledger.totals["simulated_seconds"] == 1.75
