"""Who is asked, whose reply counts, and who is refused: with a grid that is a list of messages."""

from dataclasses import dataclass, field
from importlib.metadata import version
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedsaddle.engines import EngineOptions
from fedsaddle.errors import UserError
from fedsaddle.flower.network import Network
from fedsaddle.flower.wire import Parcel, from_records, to_records


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """As in a server app's process."""
    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


HELLO = {"status": "ok", "fedsaddle": version("fedsaddle")}


@dataclass
class Grid:
    """Nodes by id: what they answer to a greeting; the test answers everything else."""

    nodes: dict = field(default_factory=dict)
    sent: dict = field(default_factory=dict)
    arrived: list = field(default_factory=list)

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=node, last_activated_at=started)
            for node, (_, _, started) in self.nodes.items()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            number = str(len(self.sent) + 1)
            message.metadata.__dict__["_message_id"] = number
            self.sent[number] = message
            ids.append(number)
            if from_records(message.content).header["kind"] == "hello":
                site, home, _ = self.nodes[message.metadata.dst_node_id]
                self.reply(number, {**HELLO, "site": site, "home": home})
        return ids

    def pull_messages(self, ids):
        found = [m for m in self.arrived if m.metadata.reply_to_message_id in ids]
        self.arrived = [m for m in self.arrived if m not in found]
        return found

    def reply(self, number, header):
        content = to_records(Parcel(header))
        self.arrived.append(Message(content, reply_to=self.sent[number]))

    def fail(self, number, code):
        self.arrived.append(Message(Error(code, "gone"), reply_to=self.sent[number]))

    def requests(self, kind="phase"):
        """Message number, node and round of every request of a kind."""
        opened = {n: from_records(m.content).header for n, m in self.sent.items()}
        return [
            (number, self.sent[number].metadata.dst_node_id, header.get("round"))
            for number, header in opened.items()
            if header["kind"] == kind
        ]


class Story:
    """A network whose clock runs only while it waits, and what happens at which second."""

    def __init__(self, nodes, **options):
        self.grid = Grid(dict(nodes))
        self.now = 0.0
        self.events = []
        settings = {"sites": ["a", "b"], "grace_seconds": 10, "poll_seconds": 1, "wait_seconds": 5}
        options = EngineOptions(**{**settings, **options})
        self.network = Network(self.grid, options, lambda: self.now, self.sleep)

    def at(self, second, event):
        self.events.append((second, event))

    def sleep(self, seconds):
        self.now += seconds
        due = [event for second, event in self.events if second <= self.now]
        self.events = [(second, event) for second, event in self.events if second > self.now]
        for event in due:
            event()

    def ask(self, number, enough=2, needed=1):
        requests = {
            site: Parcel({"kind": "phase", "phase": "steps", "round": number}) for site in "ab"
        }
        return sorted(self.network.ask(requests, enough, needed))

    def answer(self, node, number):
        """The node's reply to its request of a round."""
        (message,) = (n for n, to, r in self.grid.requests() if (to, r) == (node, number))
        self.grid.reply(message, {"status": "ok"})


BOTH = {1: ("a", "home-a", "t0"), 2: ("b", "home-b", "t0")}


def test_sites_are_known_by_name():
    story = Story(BOTH)
    assert story.network.gather() == ["a", "b"]
    story.at(1, lambda: story.answer(2, 0))
    story.at(2, lambda: story.answer(1, 0))
    assert story.ask(0) == ["a", "b"]


def test_missing_unknown_and_repeated_names_are_refused():
    with pytest.raises(UserError, match=r"nothing from b"):
        Story({1: BOTH[1], 2: ("c", "home-c", "t0")}).network.gather()
    twice = {1: BOTH[1], 2: ("a", "another home", "t0")}
    with pytest.raises(UserError, match=r"two nodes call themselves 'a'"):
        Story(twice).network.gather()
    with pytest.raises(UserError, match=r"3 sites are needed, after 5 s there were 2"):
        Story(BOTH, sites=[], min_sites=3).network.gather()
    assert Story(BOTH, sites=[]).network.gather() == ["a", "b"]


def test_another_version_of_the_library_is_refused():
    story = Story(BOTH)
    story.grid.reply = lambda number, header: Grid.reply(
        story.grid, number, {**header, "fedsaddle": "0.0.1"}
    )
    with pytest.raises(UserError, match=r"has fedsaddle 0\.0\.1"):
        story.network.gather()


def test_a_node_that_missed_its_greeting_is_greeted_again():
    story = Story(BOTH)
    missed = []

    def reply(number, header):
        if len(missed) < 2:
            missed.append(number)
            story.grid.fail(number, ErrorCode.NODE_UNAVAILABLE)
        else:
            Grid.reply(story.grid, number, header)

    story.grid.reply = reply
    assert story.network.gather() == ["a", "b"]
    assert len(story.grid.requests("hello")) == 4


def test_enough_replies_end_the_wait_and_late_ones_are_dropped(caplog):
    story = Story(BOTH)
    story.network.gather()
    story.at(story.now + 1, lambda: story.answer(1, 0))
    assert story.ask(0, enough=1) == ["a"]
    story.at(story.now + 1, lambda: story.answer(1, 1))
    story.at(story.now + 2, lambda: story.answer(2, 0))
    story.at(story.now + 4, lambda: story.answer(2, 1))
    with caplog.at_level("WARNING", logger="flwr.fedsaddle"):
        assert story.ask(1) == ["a", "b"]
    assert "phase 'steps' of round 1 came too late" in caplog.text


def test_a_stalled_site_gets_no_second_message_and_costs_one_grace_time():
    story = Story(BOTH)
    story.network.gather()
    for number, waited in enumerate((10, 1, 1)):
        story.at(story.now + 1, lambda number=number: story.answer(1, number))
        started = story.now
        assert story.ask(number) == ["a"]
        assert story.now - started == waited
    started = story.now
    story.at(story.now + 1, lambda: story.answer(1, 3))
    assert story.ask(3, needed=2) == ["a"]
    assert story.now - started == 10  # without it there is no quorum
    assert [r for _, node, r in story.grid.requests() if node == 2] == [0]
    story.at(story.now + 3, lambda: story.answer(1, 4))
    story.at(story.now + 2, lambda: story.answer(2, 0))
    story.at(story.now + 5, lambda: story.answer(2, 4))
    assert story.ask(4) == ["a", "b"]


@pytest.mark.parametrize("node", [3, 2], ids=["new id", "same id"])
def test_a_site_started_anew_is_asked_again(node):
    story = Story(BOTH)
    story.network.gather()
    story.at(story.now + 1, lambda: story.answer(1, 0))

    def restart():
        del story.grid.nodes[2]
        story.grid.nodes[node] = ("b", "home-b", "t1")

    story.at(story.now + 2, restart)

    def answer_second():
        last = [n for n, to, _ in story.grid.requests() if to == node][-1]
        story.grid.reply(last, {"status": "ok"})

    story.at(story.now + 6, answer_second)
    assert story.ask(0) == ["a", "b"]
    assert len(story.grid.requests()) == 3


def test_another_site_under_the_same_name_does_not_take_its_place():
    story = Story(BOTH)
    story.network.gather()
    story.grid.nodes[3] = ("b", "another home", "t5")
    story.at(story.now + 3, lambda: story.answer(1, 0))
    story.at(story.now + 3, lambda: story.answer(2, 0))
    assert story.ask(0) == ["a", "b"]
    assert {node for _, node, _ in story.grid.requests()} == {1, 2}


def test_a_lost_message_is_sent_again_a_few_times_and_a_refusal_is_not():
    story = Story(BOTH)
    story.network.gather()

    def fail_again():
        for number, node, _ in story.grid.requests():
            if node == 2 and number in story.network._flights:
                story.grid.fail(number, ErrorCode.NODE_UNAVAILABLE)
        story.at(story.now + 1, fail_again)

    story.at(story.now + 1, lambda: story.answer(1, 0))
    story.at(story.now + 1, fail_again)
    started = story.now
    assert story.ask(0) == ["a"]
    assert story.now - started < 10
    assert len([1 for _, node, _ in story.grid.requests() if node == 2]) == 4


def test_all_are_asked_and_a_refusal_reaches_the_coordinator():
    story = Story(BOTH)
    story.network.gather()

    def refuse():
        (number,) = (n for n, node, _ in story.grid.requests("look") if node == 2)
        story.grid.reply(number, {"status": "refused", "reason": "not this method"})

    story.at(story.now + 1, refuse)
    with pytest.raises(UserError, match=r"site 'b': not this method"):
        story.network.ask_all(dict.fromkeys("ab", Parcel({"kind": "look"})))


def test_an_answer_of_another_program_is_a_failure():
    story = Story(BOTH)
    story.network.gather()

    def nonsense():
        from flwr.app import RecordDict

        for number, node, _ in story.grid.requests():
            content = RecordDict() if node == 2 else to_records(Parcel({"status": "ok"}))
            story.grid.arrived.append(Message(content, reply_to=story.grid.sent[number]))

    story.at(story.now + 1, nonsense)
    assert story.ask(0) == ["a"]
