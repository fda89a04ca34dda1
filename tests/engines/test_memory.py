import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.engines.memory import ClientMemory

writes = st.lists(
    st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True), min_size=1, max_size=12
)


@given(writes, st.sampled_from([float("inf"), 100.0]))
def test_it_remembers_the_last_write_of_every_client(batches, limit):
    """Against a plain dictionary; a limit of 100 bytes puts all but the first rows on disk."""
    memory = ClientMemory({"control": 3, "count": 1}, torch.float64, limit)
    expected: dict[int, np.ndarray] = {}
    for number, clients in enumerate(batches):
        rows = np.array([[number + client / 100] * 4 for client in clients])
        expected |= dict(zip(clients, rows, strict=True))
        vectors = {"control": torch.tensor(rows[:, :3]), "count": torch.tensor(rows[:, 3:])}
        memory.write(np.array(clients), vectors)
    asked = np.arange(41)
    read = memory.read(asked)
    for client in asked:
        row = expected.get(int(client), np.zeros(4))
        assert read["control"][client].tolist() == row[:3].tolist()
        assert read["count"][client].tolist() == row[3:].tolist()
    copy = ClientMemory({"control": 3, "count": 1}, torch.float64, limit)
    copy.load(memory.state())
    again = copy.read(asked)
    assert all(torch.equal(again[name], read[name]) for name in read)
    assert copy.state()["clients"].tolist() == sorted(expected)


def test_a_new_era_forgets_and_the_same_era_does_not():
    memory = ClientMemory({"control": 1}, torch.float32)
    memory.write(np.array([5]), {"control": torch.ones(1, 1)})
    memory.enter(0)
    assert memory.read(np.array([5]))["control"].item() == 1
    memory.enter(1)
    assert memory.read(np.array([5]))["control"].item() == 0
    assert len(memory.state()["clients"]) == 0


def test_only_clients_that_took_part_are_stored():
    memory = ClientMemory({"control": 1000}, torch.float32)
    memory.write(np.array([999_999]), {"control": torch.ones(1, 1000)})
    assert memory.state()["rows"].shape == (1, 1000)


def test_a_method_without_memory_stores_nothing():
    memory = ClientMemory({}, torch.float32)
    memory.write(np.array([1, 2]), {})
    assert memory.read(np.array([1, 2])) == {}
    assert len(memory.state()["clients"]) == 0
