"""What a site answers: its part of the set-up, of every phase, and of every measurement.

A site's experiment is a simulation of the whole federation in which only its own client has rows;
clients keep their numbers, so every random choice is the same as in a simulation of all of them.
"""

import json
import logging
import math
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsaddle.algorithms.base import Members, Vectors
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.data import DataOptions, FederatedData, Preprocessing, Rows
from fedsaddle.data.site import Agreement, SiteRows
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.engines.clients import Setup
from fedsaddle.engines.tasks import passes
from fedsaddle.errors import UserError
from fedsaddle.flower import egress
from fedsaddle.flower.evaluations import NOT_FINITE, pack
from fedsaddle.flower.memory import VersionedMemory, read_vectors, write_vectors
from fedsaddle.flower.node import Node
from fedsaddle.flower.policy import Policy, Refusal, read_policy
from fedsaddle.flower.wire import Header, Parcel, Unreadable, parcel
from fedsaddle.models import ModelOptions, build
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.config import make_algorithm, make_problem
from fedsaddle.runs.folder import write_text

log = logging.getLogger(__name__)

Told = tuple[Header, Vectors]


class Site:
    """One site, for as long as its process lives."""

    def __init__(self, node: Node) -> None:
        self._node, self._state = node, node.folder
        self._rows: dict[str, SiteRows] = {}
        self._experiments: dict[str, Experiment] = {}

    def answer(self, request: Parcel) -> Parcel:
        """The reply to a request. What a failure says about data stays in the site's own log."""
        try:
            header, vectors = self._answer(request)
            reply = parcel({"status": "ok", **header}, vectors)
        except Refusal as refusal:
            log.warning("refused '%s': %s", request.header.get("kind"), refusal)
            reply = Parcel({"status": "refused", "reason": str(refusal)})
        except Exception as error:
            log.exception("could not answer '%s'", request.header.get("kind"))
            kind = "its data or settings are not usable" if isinstance(error, UserError) else "bug"
            reason = (
                f"it could not answer ({kind}); the reason is in worker.log of its state folder"
            )
            reply = Parcel({"status": "failed", "reason": reason})
        egress.record(self._state, request, reply)
        return reply

    def _answer(self, request: Parcel) -> Told:
        header = request.header
        try:
            kind, vectors = str(header["kind"]), request.vectors()
            if kind == "hello":
                from importlib.metadata import version

                known = {"site": self._node.site, "home": self._node.home}
                return {**known, "fedsaddle": version("fedsaddle")}, {}
            experiment = str(header["experiment"])
            if not experiment.isalnum():
                raise Unreadable("an experiment's name has letters and digits only")
            if kind in ("look", "count", "squares", "prepare"):
                return self._set_up(kind, experiment, header), {}
            running = self._experiment(experiment)
            if kind == "phase":
                return {}, running.phase(header, vectors)
            if kind == "measure":
                return running.measure(vectors["z"], vectors["carried"])
            if kind == "total":
                return {}, running.total(str(header["split"]), vectors)
        except (Unreadable, KeyError) as error:
            raise Refusal(f"the request cannot be read ({error})") from None
        raise Refusal(f"there is no request '{kind}'")

    def _set_up(self, kind: str, experiment: str, header: Header) -> Header:
        """Look at the rows, count them, add up their squares, get ready to train."""
        task, policy = header["task"], self._policy()
        model = ModelOptions(**task["model"])
        policy.check(task["problem"]["name"], task["algorithm"]["name"], model.factory)
        rows = self._rows_for(experiment, task, policy)
        if rows.n_rows < policy.min_rows:
            raise Refusal(f"it has fewer rows than its policy wants (min_rows {policy.min_rows})")
        if kind == "look":
            look = rows.look()
            if len(look.get("labels", ())) > policy.max_categories:
                raise Refusal(
                    f"its label has more values than its policy tells ({policy.max_categories})"
                )
            return look
        rows.agree(Agreement(**header["agreement"]), policy.min_rows)
        if kind == "count":
            count = rows.count()
            if 0 < count["rows"]["train"] < policy.min_rows:
                raise Refusal(
                    f"it has fewer training rows than its policy wants (min_rows {policy.min_rows})"
                )
            return count
        if kind == "squares":
            return {"squares": rows.squares(header["totals"])}
        folder = self._state / experiment
        folder.mkdir(mode=0o700, exist_ok=True)
        write_text(folder / "prepared.json", json.dumps(header))
        self._experiments = {experiment: Experiment(folder, header, rows, self._node.site)}
        self._rows = {}
        return {}

    def _policy(self) -> Policy:
        try:
            return read_policy(None if self._node.policy is None else Path(self._node.policy))
        except UserError as error:
            log.error("%s", error)
            raise Refusal("its policy file cannot be read") from None

    def _rows_for(self, experiment: str, task: Header, policy: Policy) -> SiteRows:
        if experiment not in self._rows:
            options = DataOptions(**{**task["data"], "source": self._node.data})
            limit = min(options.max_categories, policy.max_categories)
            options = options.model_copy(update={"max_categories": limit})
            binary = PROBLEMS[task["problem"]["name"]].task == "binary"
            self._rows = {experiment: SiteRows(options, self._node.site, binary, task["seed"])}
        return self._rows[experiment]

    def _experiment(self, name: str) -> "Experiment":
        """A prepared experiment; read again from disk after a restart."""
        if name not in self._experiments:
            folder = self._state / name
            try:
                header = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
            except FileNotFoundError:
                raise Refusal("the site knows nothing of this run; start a new one") from None
            rows = self._rows_for(name, header["task"], self._policy())
            rows.agree(Agreement(**header["agreement"]), self._policy().min_rows)
            self._experiments = {name: Experiment(folder, header, rows, self._node.site)}
            self._rows = {}
        return self._experiments[name]


class Experiment:
    """A run as its site sees it."""

    def __init__(self, folder: Path, header: Header, rows: SiteRows, site: str) -> None:
        task, fitted, members = header["task"], header["preprocessing"], header["members"]
        preprocessing = None if fitted is None else Preprocessing.from_json(fitted)
        self._data: FederatedData = rows.data(preprocessing)
        self._client, self._site = rows.client, site
        network = build(
            ModelOptions(**task["model"]), tuple(header["input_shape"]), header["outputs"]
        )
        problem, algorithm = (
            make_problem(task["problem"], network),
            make_algorithm(task["algorithm"]),
        )
        options = EngineOptions(dtype=task["dtype"], workers=1)  # one client: one process
        layout = problem.layout({"float32": torch.float32, "float64": torch.float64}[options.dtype])
        known = Members(
            torch.tensor(members["able"]),
            tuple(members["group_names"]),
            torch.tensor(members["group_of"]),
        )
        self._setup = Setup(problem, algorithm, self._data, layout, known, task["seed"])
        self._engine = Simulation(
            problem, algorithm, self._data, layout, known, options, task["seed"], binned=True
        )
        self._blank = self._engine.memory_state()
        self._folder, self._memory = folder, VersionedMemory(folder)

    def phase(self, header: Header, received: Vectors) -> Vectors:
        """The client's part of a phase, from one version of its memory to another."""
        number, setup = int(header["round"]), self._setup
        phases = phases_of_round(setup.algorithm, setup.problem, number)
        phase = next((phase for phase in phases if phase.name == header["phase"]), None)
        if phase is None:
            raise Refusal(f"round {number + 1} has no phase '{header['phase']}'")
        kept = tuple(name for name in phase.kept if name in phase.down)
        if kept:
            received |= self._kept(kept, setup.algorithm.era(number), received)
        self._engine.load_memory(self._memory.read(int(header["base"])) or self._blank)
        client = np.array([self._client])
        (answer,) = self._engine.ask(phase, number, client, received)
        if setup.algorithm.memory():
            self._engine.commit(torch.from_numpy(client))
            self._memory.write(int(header["version"]), self._engine.memory_state())
            self._memory.keep(header["keep"], int(header["version"]))
        return dict(answer.vectors)

    def _kept(self, names: tuple[str, ...], era: int, received: Vectors) -> Vectors:
        """The vectors that come once an era, now or earlier."""
        path = self._folder / "kept.safetensors"
        if all(name in received for name in names):
            kept = {name: received[name] for name in names}
            write_vectors(path, {**kept, "era": torch.tensor([era])})
            return kept
        stored = read_vectors(path)
        if stored is None or int(stored.pop("era")) != era:
            raise Refusal("it does not hold the vectors that are sent once a stage")
        return stored

    def measure(self, z: Tensor, carried: Tensor) -> Told:
        """The training objective and, of validation and test rows, counts in public bins."""
        header: Header = {"splits": {}}
        vectors: Vectors = {}
        objective = self._engine.objective(z, carried)
        header["objective"] = objective if math.isfinite(objective) else None
        for split in ("validation", "test"):
            rows: Rows = getattr(self._data, split)
            if not len(rows.indices):
                continue
            try:
                found = self._engine.evaluate(z, carried, split)
            except ValueError:
                header["splits"][split] = NOT_FINITE
                continue
            own = next(site for site in found if site.name == self._site)
            header["splits"][split], counts = pack(own, split)
            vectors |= counts
        return header, vectors

    def total(self, split: str, vectors: Vectors) -> Vectors:
        """The site's share of the next sum that the problem's own metrics ask for.

        The sums of all sites before it are given; the computation is repeated up to the one that
        is not known yet.
        """
        setup = self._setup
        known = [vectors[f"total.{k}"] for k in range(len(vectors) - 2)]
        x, y = setup.layout.unflatten(vectors["z"], vectors["carried"].clone())
        asked = 0

        def total(function: Any) -> Tensor:
            nonlocal asked
            asked += 1
            if asked <= len(known):
                return known[asked - 1]
            rows: Rows = getattr(self._data, split)
            parts = (function(batch) for batch in passes(setup, rows.indices))
            raise _Found(reduce(torch.add, parts))

        try:
            with torch.no_grad():
                setup.problem.extra_metrics(x, y, total, None)
        except _Found as found:
            return {"sum": found.value}
        raise Refusal("the problem's metrics need no further sum")


class _Found(Exception):
    """Carries a sum out of the problem's own code."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value
