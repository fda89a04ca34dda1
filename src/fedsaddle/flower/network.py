"""Requests to named sites and their replies, over a Flower grid.

A site has at most one request at a time: one that does not answer gets no second message until it
has, until its message is given up, or until it was started anew. A reply that comes after the
coordinator went on is dropped and logged. A site that did not answer in time once is not waited for
again until it takes part: its silence costs the run one grace time, not one in every phase.

A site is known by the name in its node config, not by Flower's node id, which may change. Every new
node is greeted first. A name that is not expected, or that another site has already, is refused;
the same site started anew, told by the secret in its state folder, takes its old place.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedsaddle.engines.options import EngineOptions
from fedsaddle.errors import UserError
from fedsaddle.flower.wire import KINDS, Parcel, Unreadable, from_records, to_records

log = logging.getLogger("flwr.fedsaddle")  # below Flower's logger: its handlers serve us too

LOOK_SECONDS = 1.0
"""How often the coordinator looks for new nodes while it waits."""

LOST = (
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)
"""Errors of Flower's that say that a request was not answered, and may be if it is sent again."""
MOST_LOST = 3
"""How often it is sent again before the site counts as failed."""

NodeKey = tuple[int, str]
"""Flower's node id, and when the node was last started: it may keep its id when started anew."""


@dataclass(frozen=True)
class Flight:
    """A message on its way."""

    node: NodeKey
    site: str | None
    """None for a greeting."""
    parcel: Parcel
    asked: "Asked | None"
    """Which call of `ask` it belongs to."""


@dataclass(eq=False)
class Asked:
    """One call of `ask` in progress."""

    unsent: dict[str, Parcel]
    replies: dict[str, Parcel] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)


class Network:
    """The sites of a federation, by name."""

    def __init__(
        self,
        grid: Grid,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._options, self._clock, self._sleep = grid, options, clock, sleep
        self._flights: dict[str, Flight] = {}
        self._greeted: set[NodeKey] = set()
        self._online: set[NodeKey] = set()
        self._nodes: dict[str, NodeKey] = {}
        self._homes: dict[str, str] = {}
        self._refused: list[str] = []
        self._expected = set(options.sites)
        self._asked: Asked | None = None
        self._late: set[str] = set()
        self._looked = float("-inf")

    # Who is there.

    def gather(self) -> list[str]:
        """Wait for the sites of the configuration; their names, or a UserError."""
        missing = self._wait()
        if missing:
            raise UserError(
                f"engine.sites: after {self._options.wait_seconds:g} s there was nothing from "
                f"{', '.join(missing)}."
            )
        if len(self._nodes) < self._options.min_sites and not self._expected:
            raise UserError(
                f"engine.min_sites: {self._options.min_sites} sites are needed, after "
                f"{self._options.wait_seconds:g} s there were {len(self._nodes)}."
            )
        self._expected = set(self._nodes)
        return sorted(self._nodes)

    def rejoin(self, names: Iterable[str]) -> None:
        """Wait for the sites of a run that is continued; those that are late may come later."""
        self._expected = set(names)
        missing = self._wait()
        if missing:
            log.warning("the run goes on without %s", ", ".join(missing))

    def _wait(self) -> list[str]:
        """Look for sites until all are there or the time is over; the names of the missing."""
        deadline = self._clock() + self._options.wait_seconds
        while self._clock() < deadline:
            self._look_around()
            self._collect()
            if self._refused:
                raise UserError("; ".join(self._refused))
            if self._expected and self._expected <= set(self._nodes):
                break
            self._sleep(self._options.poll_seconds)
        return sorted(self._expected - set(self._nodes))

    def _look_around(self) -> None:
        """See which nodes are connected, and greet new ones."""
        if self._clock() - self._looked < LOOK_SECONDS:
            return
        self._looked = self._clock()
        self._online = {(info.node_id, info.last_activated_at) for info in self._grid.get_nodes()}
        for node in self._online - self._greeted:
            self._greeted.add(node)
            self._drop([m for m, flight in self._flights.items() if flight.node[0] == node[0]])
            self._push({node: (None, Parcel({"kind": "hello"}))}, None)

    def _drop(self, messages: list[str]) -> None:
        """Give up messages to a node that was started anew: it knows nothing of them."""
        for message in messages:
            self._lose(self._flights.pop(message), "it was started anew")

    def _lose(self, flight: Flight, why: str) -> None:
        """Note that a message was not answered; it is sent again if its reply is still wanted."""
        if flight.site is None:
            self._greeted.discard(flight.node)  # to be greeted again
            return
        log.warning("site '%s': no reply to %s (%s)", flight.site, describe(flight.parcel), why)
        asked = flight.asked
        if asked is None or asked is not self._asked:
            return
        asked.lost[flight.site] += 1
        if asked.lost[flight.site] > MOST_LOST:
            asked.failed[flight.site] = why
        else:
            asked.unsent[flight.site] = flight.parcel

    def _introduce(self, node: NodeKey, header: Mapping[str, Any]) -> None:
        """Take up a site that answered a greeting, or refuse it."""
        name, home, installed = (str(header.get(key)) for key in ("site", "home", "fedsaddle"))
        if self._expected and name not in self._expected:
            log.error("a node calls itself '%s', which no site of this run is called", name)
            return
        if installed != version("fedsaddle"):
            self._refuse(f"site '{name}' has fedsaddle {installed}, not {version('fedsaddle')}")
            return
        known = self._nodes.get(name)
        if known is not None and known in self._online and self._homes[name] != home:
            self._refuse(f"two nodes call themselves '{name}': a site's name must be its own")
            return
        if known is not None and known != node:
            self._drop([m for m, flight in self._flights.items() if flight.site == name])
        self._nodes[name], self._homes[name] = node, home
        log.info("site '%s' is connected", name)

    def _refuse(self, reason: str) -> None:
        log.error("%s", reason)
        self._refused.append(reason)

    # Requests and replies.

    def ask_all(self, requests: Mapping[str, Parcel]) -> dict[str, Parcel]:
        """Replies from all of them, or a UserError that names one that gave none."""
        everyone = len(requests)
        asked = self._ask(requests, everyone, everyone, self._options.message_seconds)
        for site, reason in asked.failed.items():
            raise UserError(f"site '{site}': {reason}")
        silent = sorted(set(requests) - set(asked.replies))
        if silent:
            raise UserError(f"no reply from {', '.join(silent)}")
        return asked.replies

    def ask(self, requests: Mapping[str, Parcel], enough: int, needed: int) -> dict[str, Parcel]:
        """The first `enough` replies, or those that came within the grace time.

        Sites that were late before are waited for only where without them fewer than `needed`
        would answer.
        """
        return self._ask(requests, enough, needed, self._options.grace_seconds).replies

    def _ask(
        self, requests: Mapping[str, Parcel], enough: int, needed: int, seconds: float
    ) -> Asked:
        asked = self._asked = Asked(dict(requests))
        deadline = self._clock() + seconds
        while True:
            self._look_around()
            self._send(asked)
            self._collect()
            out = {site for site in requests if site not in asked.replies | asked.failed}
            punctual = out - (self._late & set(asked.unsent))
            came = len(asked.replies)
            over = self._clock() >= deadline
            if came >= enough or not out or (not punctual and came >= needed) or over:
                break
            self._sleep(self._options.poll_seconds)
        for site in sorted(set(requests) - set(asked.replies)):
            log.warning("site '%s': %s", site, asked.failed.get(site, "no reply in time"))
        if came < enough:
            self._late |= out
        self._late -= set(asked.replies)
        return asked

    def _send(self, asked: Asked) -> None:
        """Send what was not sent yet to sites that are there and have no other request."""
        busy = {flight.site for flight in self._flights.values()}
        ready: dict[NodeKey, tuple[str | None, Parcel]] = {
            self._nodes[site]: (site, request)
            for site, request in asked.unsent.items()
            if site not in busy and self._nodes.get(site) in self._online
        }
        for site in self._push(ready, asked):
            del asked.unsent[site]

    def _push(
        self, parcels: Mapping[NodeKey, tuple[str | None, Parcel]], asked: Asked | None
    ) -> list[str]:
        """Hand messages to Flower; the names of the sites whose message was taken."""
        if not parcels:
            return []
        messages = [
            Message(
                to_records(request),
                node[0],
                KINDS[request.header["kind"]],
                ttl=self._options.message_seconds,
            )
            for node, (_, request) in parcels.items()
        ]
        ids = list(self._grid.push_messages(messages)) or [""] * len(messages)
        sent = []
        for message, (node, (site, request)) in zip(ids, parcels.items(), strict=True):
            if message:
                self._flights[message] = Flight(node, site, request, asked)
                sent += [site] if site is not None else []
            else:
                log.warning("Flower did not take %s for site '%s'", describe(request), site)
        return sent

    def _collect(self) -> None:
        """Take in the replies that have arrived."""
        if not self._flights:
            return
        for message in self._grid.pull_messages(list(self._flights)):
            flight = self._flights.pop(message.metadata.reply_to_message_id, None)
            if flight is None:
                continue
            if message.has_error() and message.error.code in LOST:
                self._lose(flight, message.error.reason or "lost")
            else:
                self._receive(flight, _opened(message))

    def _receive(self, flight: Flight, reply: Parcel) -> None:
        good, asked = reply.header.get("status") == "ok", flight.asked
        reason = str(reply.header.get("reason", "an empty reply"))
        if flight.site is None:
            if good:
                self._introduce(flight.node, reply.header)
            else:
                self._refuse(f"a node answered its greeting with: {reason}")
        elif asked is None or asked is not self._asked:
            what = describe(flight.parcel)
            log.warning("site '%s': the reply to %s came too late, dropped", flight.site, what)
        elif good:
            asked.replies[flight.site] = reply
        else:
            asked.failed[flight.site] = reason


def describe(request: Parcel) -> str:
    """A request in the words of a log."""
    header = request.header
    if header["kind"] == "phase":
        return f"phase '{header['phase']}' of round {header['round'] + 1}"
    return f"'{header['kind']}'"


def _opened(message: Message) -> Parcel:
    if message.has_error():
        reason = f"{message.error.reason} (Flower error {message.error.code})"
        return Parcel({"status": "failed", "reason": reason})
    try:
        return from_records(message.content)
    except Unreadable as error:
        return Parcel({"status": "failed", "reason": str(error)})
