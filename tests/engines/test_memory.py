import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.engines.memory import ClientMemory
from fedsaddle.engines.workers import Workers, can_fork
from fedsaddle.errors import UserError

some_clients = st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True)
phases = st.lists(st.tuples(some_clients, st.integers(0, 5)), min_size=1, max_size=12)


def remembered(memory, clients):
    now, _ = memory.stage(clients)
    return memory.read(now)


def remember(memory, clients, **vectors):
    _, then = memory.stage(clients)
    memory.write(then, vectors)
    memory.commit(clients)


@given(phases, st.sampled_from([sys.maxsize, 100]))
def test_it_remembers_what_was_last_used_of_every_client(asked, limit):
    """Against a plain dictionary; a limit of 100 bytes puts all but the first rows on disk."""
    memory = ClientMemory({"control": 3, "count": 1}, torch.float64, limit)
    expected: dict[int, list[float]] = {}
    for number, (clients, used) in enumerate(asked):
        now, then = memory.stage(clients)
        read = torch.cat([*memory.read(now).values()], dim=1).tolist()
        assert read == [expected.get(client, [0.0] * 4) for client in clients]
        rows = torch.tensor([[number + client / 100] * 4 for client in clients]).double()
        memory.write(then, {"control": rows[:, :3], "count": rows[:, 3:]})
        memory.commit(clients[:used])
        expected |= dict(zip(clients[:used], rows.tolist(), strict=False))
    everyone = list(range(41))
    found = remembered(memory, everyone)
    for client in everyone:
        row = expected.get(client, [0.0] * 4)
        assert found["control"][client].tolist() == row[:3]
        assert found["count"][client].tolist() == row[3:]
    copy = ClientMemory({"control": 3, "count": 1}, torch.float64, limit)
    copy.load(memory.state())
    again = remembered(copy, everyone)
    assert all(torch.equal(again[name], found[name]) for name in found)
    assert copy.state()["clients"].tolist() == sorted(expected)


def test_what_is_staged_is_not_remembered_before_it_is_committed():
    memory = ClientMemory({"control": 1}, torch.float32)
    remember(memory, [4, 5], control=torch.tensor([[1.0], [2.0]]))
    _, then = memory.stage([4, 5])
    memory.write(then, {"control": torch.tensor([[7.0], [8.0]])})
    assert remembered(memory, [4, 5])["control"].tolist() == [[1.0], [2.0]], "asked once more"
    read = remembered(memory, [4, 5])
    read["control"] += 1  # a copy: methods may do with it what they like
    assert memory.state()["rows"].tolist() == [[1.0], [2.0]]


def test_slots_are_used_again():
    memory = ClientMemory({"control": 1}, torch.float32)
    for number in range(100):
        remember(memory, [number % 7, 7 + number % 3], control=torch.full((2, 1), float(number)))
        memory.stage([20, 21])  # who never answer
    assert memory._made <= 10 + 2 + 2


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork processes")
@pytest.mark.parametrize("limit", [sys.maxsize, 100])
def test_other_processes_read_and_write_it(limit):
    memory = ClientMemory({"control": 2}, torch.float64, limit)
    workers = Workers(2, lambda worker: (memory,))
    try:
        clients = list(range(50))
        for number in range(3):
            now, then = memory.stage(clients)
            tasks = [(_add_client, (now[j : j + 5], then[j : j + 5])) for j in range(0, 50, 5)]
            assert workers.run(tasks) == [2.0 * 5 * number] * 10
            memory.commit(clients)
        assert bool((memory.state()["rows"] == 3).all())
    finally:
        workers.close()


def _add_client(memory, now, then):
    before = memory.read(now)["control"]
    memory.write(then, {"control": before + 1})
    return float(before.sum())


def test_a_new_era_forgets_and_the_same_era_does_not():
    memory = ClientMemory({"control": 1}, torch.float32)
    remember(memory, [5], control=torch.ones(1, 1))
    memory.enter(0)
    assert remembered(memory, [5])["control"].item() == 1
    memory.enter(1)
    assert remembered(memory, [5])["control"].item() == 0
    assert len(memory.state()["clients"]) == 0


def test_only_clients_that_took_part_are_stored():
    memory = ClientMemory({"control": 1000}, torch.float32)
    remember(memory, [999_999], control=torch.ones(1, 1000))
    assert memory.state()["rows"].shape == (1, 1000)


def test_a_method_without_memory_stores_nothing():
    memory = ClientMemory({}, torch.float32)
    assert memory.stage([1, 2]) == ([], [])
    memory.write([], {})
    memory.commit([1, 2])
    assert len(memory.state()["clients"]) == 0


def test_only_what_is_declared_is_remembered():
    memory = ClientMemory({"control": 1}, torch.float32)
    _, then = memory.stage([1])
    with pytest.raises(UserError, match=r"remember \['cotnrol'\].*declares \['control'\]"):
        memory.write(then, {"cotnrol": torch.ones(1, 1)})
