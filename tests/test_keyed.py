import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.keyed import generator, number, torch_generator

keys = st.lists(st.one_of(st.integers(0, 2**31), st.text(max_size=8)), max_size=4).map(tuple)


@given(st.integers(0, 2**31), keys)
def test_the_same_key_gives_the_same_numbers(seed, key):
    assert np.array_equal(generator(seed, *key).random(4), generator(seed, *key).random(4))
    first, second = torch_generator(seed, *key), torch_generator(seed, *key)
    assert torch.equal(torch.rand(4, generator=first), torch.rand(4, generator=second))


def test_another_seed_purpose_round_or_client_gives_other_numbers():
    variants = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 2), (0, "a", 1, 3)]
    drawn = [tuple(generator(*variant).integers(2**60, size=2)) for variant in variants]
    assert len(set(drawn)) == len(variants)
    torch_drawn = {torch_generator(*variant).initial_seed() for variant in variants}
    assert len(torch_drawn) == len(variants)


@given(st.integers(0, 2**70), st.lists(st.integers(0, 2**40) | st.integers(0, 9), max_size=5))
def test_numbers_are_those_of_numpys_seed_sequence(seed, key):
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=key)
    expected = np.random.Generator(np.random.Philox(sequence)).random(4)
    assert np.array_equal(generator(seed, *key).random(4), expected)
    assert number(seed, *key) == int(sequence.generate_state(1, np.uint64)[0]) >> 1
