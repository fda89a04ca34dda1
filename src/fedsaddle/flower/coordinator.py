"""The Flower server app: a whole run, from the greeting of the sites to the report."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
from flwr.app import Context
from flwr.common.config import get_project_dir
from flwr.serverapp import Grid, ServerApp

from fedsaddle.data import Preprocessing
from fedsaddle.data.facts import Facts
from fedsaddle.data.site import Agreement, agree, check_remote, combine, gathered_facts, settle
from fedsaddle.errors import UserError
from fedsaddle.flower.engine import FlowerEngine, Versions, versions_in
from fedsaddle.flower.network import Network
from fedsaddle.flower.wire import Header, Parcel
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.config import (
    Config,
    described,
    make_algorithm,
    make_problem,
    parse,
    read,
    resolve,
    write_sections,
)
from fedsaddle.runs.folder import RunFolder, write_json
from fedsaddle.runs.progress import watch
from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report import write_report
from fedsaddle.runs.result import Result, Settings
from fedsaddle.runs.rounds import Plan
from fedsaddle.runs.saved import outputs_for, starting_network
from fedsaddle.runs.training import Training

SETUP = "setup.json"
"""In the run folder: what was agreed with the sites, so that a resumed run asks nobody again."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the app's settings say; a failure marks the Flower run as failed."""
    settings = context.run_config
    for key in ("config", "out"):
        if not str(settings.get(key, "")).strip():
            raise UserError(f"[tool.flwr.app.config]: '{key}' is missing.")
    config = read_config(str(settings["config"]), _app_folder(grid))
    result = coordinate(grid, config, Path(str(settings["out"])), bool(settings.get("resume")))
    if result.stopped:
        raise UserError(result.stopped)


def _app_folder(grid: Grid) -> Path:
    run = grid.run
    return get_project_dir(run.fab_id, run.fab_version, run.fab_hash)


def read_config(given: str, app_folder: Path) -> Config:
    """The configuration of a file in the app folder, of another file, or of the text itself."""
    sections = parse(given, "config") if "\n" in given else read(app_folder / given)
    return resolve({**sections, "engine": {**sections.get("engine", {}), "name": "flower"}})


def coordinate(grid: Grid, config: Config, out: Path, resume: bool) -> Result:
    """The run of a configuration with the sites that the grid reaches."""
    check_remote(config.data)
    if config.federation.availability != "always":
        raise UserError(
            f"federation.availability = '{config.federation.availability}' is for simulations; "
            "across a network sites answer or do not."
        )
    folder = RunFolder(out)
    sections = config.sections()
    folder.begin(write_sections(sections), sections, resume)
    network = Network(grid, config.engine)
    agreed = SetUp.of(folder, network, config)
    start = starting_network(config.model, agreed.facts, config.run.seed)
    settings = Settings(
        config.federation,
        config.engine,
        config.evaluation,
        config.run,
        sections,
        config.model,
    )

    def engine(plan: Plan) -> FlowerEngine:
        if not agreed.prepared:
            network.ask_all(dict.fromkeys(plan.names, agreed.preparation(plan, config)))
        agreed.begin_session(folder)
        first, retained = agreed.sessions << 32, retained_versions(folder)
        return FlowerEngine(plan, agreed.facts, network, agreed.experiment, first, retained)

    training = Training(
        make_problem(config.problem, start),
        agreed.facts,
        make_algorithm(config.algorithm),
        settings,
        engine,
        folder,
        resume=True,  # the folder was begun above
        observer=watch(),
    )
    try:
        result = training.execute()
    except Exception:
        write_report([RunRecord.load(out)], out / "report.html")
        raise
    result.report(out / "report.html")
    return result


def task_of(config: Config, problem: dict[str, Any]) -> Header:
    """What a site has to know of the configuration; paths are not among it."""
    model = config.model.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"init", "init_skip"}
    )
    data = config.data.model_dump(mode="json", exclude_none=True, exclude={"source", "root"})
    return {
        "data": data,
        "model": model,
        "problem": problem,
        "algorithm": config.algorithm,
        "seed": config.run.seed,
        "dtype": config.engine.dtype,
    }


class SetUp:
    """What the coordinator and the sites have agreed on before the first round."""

    def __init__(self, saved: dict[str, Any], config: Config, prepared: bool) -> None:
        self._saved, self.prepared = saved, prepared
        self.agreement = Agreement(**saved["agreement"])
        fitted = saved["preprocessing"]
        self._preprocessing = None if fitted is None else Preprocessing.from_json(fitted)
        self.facts: Facts = gathered_facts(
            self.agreement, saved["looks"], saved["counts"], self._preprocessing, config.data
        )

    @property
    def experiment(self) -> str:
        """The name under which sites keep their part of the run."""
        return str(self._saved["experiment"])

    @property
    def sessions(self) -> int:
        """How often a coordinator began or took up the run: versions of memory count on."""
        return int(self._saved["sessions"])

    @classmethod
    def of(cls, folder: RunFolder, network: Network, config: Config) -> "SetUp":
        """As the run folder has it, or else in three exchanges with all sites."""
        path = folder.path / SETUP
        if path.is_file():
            setup = cls(json.loads(path.read_text(encoding="utf-8")), config, prepared=True)
            network.rejoin(setup.agreement.names)
            return setup
        names, options = network.gather(), config.data
        binary = PROBLEMS[config.problem["name"]].task == "binary"
        experiment = uuid.uuid4().hex
        common = {"experiment": experiment, "task": task_of(config, config.problem)}

        def exchange(kind: str, **more: Any) -> dict[str, Header]:
            request = Parcel({"kind": kind, **common, **more})
            replies = network.ask_all(dict.fromkeys(names, request))
            return {name: replies[name].header for name in names}

        looks = exchange("look")
        agreement = agree(looks, options, binary)
        told = agreement.model_dump(mode="json")
        counts = exchange("count", agreement=told)
        totals = combine(counts, agreement, options)
        squares = {}
        if totals:
            replies = exchange("squares", agreement=told, totals=totals)
            squares = {name: header["squares"] for name, header in replies.items()}
        fitted = settle(totals, squares, agreement, options)
        saved = {
            "experiment": experiment,
            "sessions": 0,
            "agreement": told,
            "looks": looks,
            "counts": counts,
            "preprocessing": None if fitted is None else fitted.to_json(),
        }
        return cls(saved, config, prepared=False)

    def preparation(self, plan: Plan, config: Config) -> Parcel:
        """The request after which a site is ready to train."""
        members, fitted = plan.members, self._saved["preprocessing"]
        return Parcel(
            {
                "kind": "prepare",
                "experiment": self.experiment,
                "task": task_of(config, described(plan.problem)),
                "agreement": self._saved["agreement"],
                "preprocessing": fitted,
                "input_shape": list(self.facts.input_shape),
                "outputs": outputs_for(self.facts),
                "members": {
                    "able": members.able.tolist(),
                    "group_names": list(members.group_names),
                    "group_of": members.group_of.tolist(),
                },
            }
        )

    def begin_session(self, folder: RunFolder) -> None:
        """Write the agreement down, once all sites are ready."""
        self._saved["sessions"] += 1
        write_json(folder.path / SETUP, self._saved)


def retained_versions(folder: RunFolder) -> Callable[[], list[Versions]]:
    """A function that tells which versions of sites' memory the checkpoints on disk need."""
    known: dict[Path, Versions] = {}

    def retained() -> list[Versions]:
        paths = folder.checkpoints()
        for path in paths:
            if path not in known:
                with safetensors.safe_open(path, framework="pt") as file:
                    names = ("clients", "versions")
                    known[path] = versions_in({n: file.get_tensor(f"memory.{n}") for n in names})
        return [known[path] for path in paths]

    return retained
