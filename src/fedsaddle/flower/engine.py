"""The engine for real machines: the same questions as a simulation's, asked over a network."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms import Phase
from fedsaddle.algorithms.base import Vectors
from fedsaddle.data.facts import Facts
from fedsaddle.errors import UserError
from fedsaddle.federation import Answer
from fedsaddle.federation.participation import enough_of
from fedsaddle.flower.evaluations import NOT_FINITE, unpack
from fedsaddle.flower.network import Network, log
from fedsaddle.flower.wire import Header, Parcel, Unreadable, parcel
from fedsaddle.metrics import SiteEvaluation
from fedsaddle.runs.rounds import Plan

Versions = dict[int, int]
"""Client to version of its memory."""


class FlowerEngine:
    """Sites by their names; a client's number is its place among them.

    Clients keep their memory themselves, in versions (see `memory.py`). The coordinator knows which
    version of each client counts: the one whose reply was used last. `retained` tells which of them
    the checkpoints on disk still need.
    """

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        network: Network,
        experiment: str,
        first_version: int,
        retained: Callable[[], list[Versions]],
    ) -> None:
        self._plan, self._facts, self._network = plan, facts, network
        self._experiment, self._retained = experiment, retained
        self._next_version = first_version
        self._versions: Versions = {}
        self._held: dict[int, int] = {}
        """The era in which a client was sent the vectors that it keeps."""
        self._staged: Versions = {}
        self._measured: tuple[Tensor, Tensor, dict[str, Parcel]] | None = None

    def ask(
        self,
        phase: Phase,
        number: int,
        clients: np.ndarray,
        received: Vectors,
        weights: Tensor | None = None,
        measured: bool = False,
    ) -> list[Answer]:
        plan, era = self._plan, self._plan.algorithm.era(number)
        kept = [name for name in phase.kept if name in received]
        short = {name: vector for name, vector in received.items() if name not in kept}
        payloads = {False: parcel({}, received).payload, True: parcel({}, short).payload}
        retained = self._retained()
        requests, asked = {}, {}
        for client in clients.tolist():
            self._next_version += 1
            asked[client] = self._next_version
            base = self._versions.get(client, 0)
            header: Header = {
                "kind": "phase",
                "experiment": self._experiment,
                "phase": phase.name,
                "round": number,
                "base": base,
                "version": asked[client],
                "keep": sorted({base, *(versions.get(client, 0) for versions in retained)} - {0}),
            }
            holds = self._held.get(client) == era
            requests[plan.names[client]] = Parcel(header, payloads[holds])
        enough = enough_of(plan.federation, len(clients))
        quorum = min(plan.federation.quorum, plan.federation.enough)
        replies = self._network.ask(requests, enough, math.ceil(quorum * len(clients)))
        self._staged, answers = {}, []
        for client, version in asked.items():
            reply = replies.get(plan.names[client])
            if reply is None:
                self._held.pop(client, None)  # it may have been started anew, with nothing
                continue
            self._staged[client] = version
            if kept:
                self._held[client] = era
            answers.append(Answer(np.array([client]), self._vectors(reply)))
        return answers

    def _vectors(self, reply: Parcel) -> Vectors:
        """A reply's vectors in the run's precision; unreadable ones are missing ones."""
        try:
            vectors = reply.vectors()
        except Unreadable as error:
            log.warning("a reply was unreadable: %s", error)
            return {}
        dtype = self._plan.layout.dtype
        return {n: v.to(dtype) for n, v in vectors.items() if v.is_floating_point()}

    def commit(self, clients: Tensor) -> None:
        if self._plan.algorithm.memory():
            self._versions |= {client: self._staged[client] for client in clients.tolist()}
        self._staged = {}

    def evaluate(self, z: Tensor, carried: Tensor, split: str) -> list[SiteEvaluation]:
        replies = self._measure(z, carried)
        return [self._evaluation(name, replies.get(name), split) for name in self._plan.names]

    def _evaluation(self, name: str, reply: Parcel | None, split: str) -> SiteEvaluation:
        """A site's report; one that is absent, or tells what cannot be, is without rows."""
        absent = SiteEvaluation(name, 0, math.nan)
        told = {} if reply is None else reply.header.get("splits", {})
        if reply is None or split not in told:
            return absent
        if told[split] == NOT_FINITE:
            raise ValueError(f"site '{name}': its scores are not finite")
        try:
            return unpack(name, told[split], reply.vectors(), split)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("site '%s': its evaluation is refused (%s)", name, error)
            return absent

    def objective(self, z: Tensor, carried: Tensor) -> float:
        losses = [reply.header.get("objective") for reply in self._measure(z, carried).values()]
        finite = [loss for loss in losses if isinstance(loss, float) and math.isfinite(loss)]
        return float(np.mean(finite)) if finite else math.nan

    def _measure(self, z: Tensor, carried: Tensor) -> dict[str, Parcel]:
        """Every site's measurements at a point, asked for once, in the order of the sites."""
        if self._measured is not None:
            same_z, same_carried, replies = self._measured
            if torch.equal(same_z, z) and torch.equal(same_carried, carried):
                return replies
        request = {"kind": "measure", "experiment": self._experiment}
        found = self._ask(list(self._plan.names), parcel(request, {"z": z, "carried": carried}))
        replies = {name: found[name] for name in self._plan.names if name in found}
        self._measured = (z.clone(), carried.clone(), replies)
        return replies

    def _ask(self, names: list[str], request: Parcel) -> dict[str, Parcel]:
        """The replies of these sites, as of a phase: below the quorum, the others are asked again.

        A reply is as good the second time: the question is the same.
        """
        federation, replies = self._plan.federation, dict[str, Parcel]()
        needed = max(1, math.ceil(federation.quorum * len(names)))
        for _ in range(federation.retries + 1):
            missing = [name for name in names if name not in replies]
            requests = dict.fromkeys(missing, request)
            replies |= self._network.ask(requests, len(missing), needed - len(replies))
            if len(replies) >= needed:
                return replies
        absent = ", ".join(name for name in names if name not in replies)
        raise UserError(
            f"only {len(replies)} of {len(names)} sites answered '{request.header['kind']}', "
            f"{federation.retries + 1} times in a row; federation.quorum is {federation.quorum:g}. "
            f"No reply from: {absent}."
        )

    def extra(self, z: Tensor, carried: Tensor, split: str) -> dict[str, float]:
        problem, layout = self._plan.problem, self._plan.layout
        if not problem.extra:
            return {}
        known: Vectors = {"z": z, "carried": carried}
        rows = self._facts.rows[split]
        able = [name for name, n in zip(self._plan.names, rows, strict=True) if n]

        def total(function: object) -> Tensor:
            """The next sum over all sites; what is summed each site finds out by itself."""
            header = {"kind": "total", "experiment": self._experiment, "split": split}
            replies = self._ask(able, parcel(header, known))
            shares = [replies[name].vectors()["sum"] for name in able if name in replies]
            sum_ = torch.stack(shares).sum(dim=0)
            known[f"total.{len(known) - 2}"] = sum_
            return sum_

        x, y = layout.unflatten(z, carried.clone())
        with torch.no_grad():
            return problem.extra_metrics(x, y, total, None)

    def memory_state(self) -> Vectors:
        clients = sorted(self._versions)
        return {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "versions": torch.tensor([self._versions[c] for c in clients], dtype=torch.int64),
        }

    def load_memory(self, vectors: Mapping[str, Tensor]) -> None:
        self._versions = versions_in(vectors)

    def close(self) -> None:
        """Sites go on without a coordinator; there is nothing to close."""


def versions_in(memory: Mapping[str, Tensor]) -> Versions:
    """The versions that a checkpoint needs."""
    pairs = zip(memory["clients"].tolist(), memory["versions"].tolist(), strict=True)
    return dict(pairs)
