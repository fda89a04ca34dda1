"""Lines between processes: whole messages, in order, until an end is closed."""

import gc
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsaddle.engines.line import AT_ONCE, Line, packed


@pytest.fixture
def line():
    ends = Line.pair()
    yield ends
    for end in ends:
        end.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3 * AT_ONCE), min_size=1, max_size=4), st.booleans())
def test_messages_of_all_lengths_arrive_whole_and_in_order(lengths, awake):
    """Some are sent before anyone looks, and end anywhere in what is read at once."""
    here, there = Line.pair()
    for length in lengths:
        here.send(packed(b"x" * length))
    here.send(packed("the last one"))
    assert [len(there.receive(awake)) for _ in lengths] == lengths
    assert there.receive() == "the last one"


def test_a_message_that_is_longer_than_what_the_system_holds(line):
    here, there = line
    long = os.urandom(2**22)
    sending = threading.Thread(target=lambda: [here.send(packed(k)) for k in (long, 1, long)])
    sending.start()
    assert there.receive() == long
    assert there.receive(awake=True) == 1
    assert there.receive(awake=True) == long
    sending.join()


@pytest.mark.parametrize("awake", [True, False])
def test_who_waits_is_there_when_it_comes(line, awake):
    here, there = line

    def answer() -> None:
        question = there.receive(awake)
        time.sleep(0.05)  # longer than anyone stays awake
        there.send(packed(question + 1))

    answering = threading.Thread(target=answer)
    answering.start()
    here.send(packed(1))
    assert here.receive(awake) == 2
    answering.join()


def test_both_ways_at_once(line):
    here, there = line
    here.send(packed("a"))
    there.send(packed("b"))
    assert (here.receive(), there.receive()) == ("b", "a")


@pytest.mark.parametrize("awake", [True, False])
def test_a_closed_end_is_an_end_of_file_and_what_was_sent_arrives_before(line, awake):
    here, there = line
    here.send(packed("good-bye"))
    here.close()
    assert there.receive(awake) == "good-bye"
    with pytest.raises(EOFError):
        there.receive(awake)
    with pytest.raises(ConnectionError):
        there.send(packed("still there?"))


def test_half_a_message_is_no_message(line):
    here, there = line
    os.write(here._outgoing, packed("a message")[:-3])
    here.close()
    with pytest.raises(EOFError):
        there.receive()


def test_a_line_that_nobody_holds_is_closed():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    ends = Line.pair()
    assert len(os.listdir("/proc/self/fd")) == before + 4
    ends[0].close()
    ends[0].close()  # harmless
    del ends
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
