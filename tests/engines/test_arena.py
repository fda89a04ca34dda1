"""The arena: one block of numbers that a run's processes see, and that leaves nothing behind."""

import gc
import os
import tempfile
from pathlib import Path

import pytest
import torch

from fedsaddle.engines.arena import Arena
from fedsaddle.engines.workers import Workers, can_fork

forks = pytest.mark.skipif(not can_fork(), reason="this system cannot fork processes")


def files() -> set[str]:
    """What lies in shared memory and among temporary files, of whose making it may be."""
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    names = {str(f) for d in folders if d.is_dir() for f in d.iterdir()}
    return {name for name in names if "fedsaddle" in name or f"_{os.getpid()}_" in name}


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=["memfd", "temporary file"])
def arena(request, monkeypatch):
    if request.param == "temporary file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memfd_create")
    made = Arena(torch.float64)
    yield made
    made.close()


def test_vectors_and_matrices_come_back_as_they_were_put(arena):
    vectors = {"z": torch.arange(5.0).double(), "m": torch.arange(12.0).double().view(3, 4)}
    places = arena.put(vectors)
    assert torch.equal(arena[places["z"]], vectors["z"].unsqueeze(0))
    assert torch.equal(arena[places["m"]], vectors["m"])
    assert torch.equal(arena.row(places["z"]), vectors["z"])
    assert torch.equal(arena.row(places["m"], 1), vectors["m"][1])
    vectors["z"].zero_()
    assert arena[places["z"]][0, 4] == 4, "it must be a copy"


def test_places_do_not_overlap_and_start_at_cache_lines(arena):
    places = [arena.place(rows, 3) for rows in (1, 7, 2, 40, 0, 1)]
    for k, place in enumerate(places):
        arena[place].fill_(k)
    for k, place in enumerate(places):
        assert arena[place].shape == (place.rows, 3)
        assert bool((arena[place] == k).all())
        assert place.first * 8 % 64 == 0


def test_nothing_at_all_has_a_place_too(arena):
    places = arena.put({"carried": torch.zeros(0), "no rows": torch.zeros(0, 4)})
    assert arena[places["carried"]].shape == (1, 0)
    assert arena[places["no rows"]].shape == (0, 4)


def test_what_was_seen_before_the_arena_grew_is_still_there(arena):
    first = arena.place(2, 2)
    seen = arena[first].fill_(1.0)
    later = arena[arena.place(1000, 1000)].fill_(2.0)
    assert bool((seen == 1).all())
    arena[first][0, 0] = 5.0
    assert seen[0, 0] == 5.0, "both are the same memory"
    assert float(later.sum()) == 2e6


def test_after_clear_the_room_is_used_again(arena):
    first = arena.place(100, 100)
    arena[first].fill_(1.0)
    arena.clear()
    assert arena.place(100, 100) == first
    size = os.fstat(arena._numbers._file).st_size
    for _ in range(50):
        arena.clear()
        arena[arena.place(100, 100)].fill_(2.0)
    assert os.fstat(arena._numbers._file).st_size == size


def add(arena, place, number):
    return float(arena[place].add_(number).sum())


@forks
def test_growth_is_seen_by_both_sides(arena):
    small = arena.place(2, 3)
    arena[small].fill_(1.0)
    workers = Workers(2, lambda worker: (arena,))
    try:
        assert workers.run([(add, (small, 1.0))]) == [12.0]
        assert float(arena[small].sum()) == 12.0
        for rows in (1000, 50_000):  # larger than what the workers saw when they began
            large = arena.place(rows, 10)
            arena[large].fill_(3.0)
            halves = [large._replace(rows=rows // 2)]
            halves.append(halves[0]._replace(first=large.first + 5 * rows))
            assert workers.run([(add, (half, 1.0)) for half in halves]) == [20.0 * rows] * 2
            assert bool((arena[large] == 4).all())
        assert workers.run([(add, (small, 0.0))] * 2) == [12.0] * 2
    finally:
        workers.close()


def test_no_file_and_no_handle_is_left_behind():
    gc.collect()
    before, open_before = files(), handles()
    for _ in range(5):
        arena = Arena(torch.float32)
        arena[arena.place(1000, 100)].fill_(1.0)
        assert files() == before
        arena.close()
        arena.close()  # harmless
        del arena
    forgotten = Arena(torch.float32)
    forgotten[forgotten.place(10, 10)].fill_(1.0)
    del forgotten
    gc.collect()
    assert handles() == open_before


def test_numbers_outlive_the_arena():
    arena = Arena(torch.float32)
    numbers = arena[arena.place(10, 10)].fill_(1.0)
    arena.close()
    del arena
    gc.collect()
    assert float(numbers.sum()) == 100.0
