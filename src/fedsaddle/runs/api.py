"""`fedsaddle.train`: a run from Python, or from a configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedsaddle.algorithms import Algorithm
from fedsaddle.data import DataOptions, FederatedData, load
from fedsaddle.data.facts import facts_of
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.errors import UserError
from fedsaddle.federation import FederationOptions
from fedsaddle.models import ModelOptions
from fedsaddle.problems import PROBLEMS, Problem
from fedsaddle.runs.config import (
    DEFAULT_ALGORITHM,
    Config,
    described,
    make_algorithm,
    make_problem,
    read,
    resolve,
    validated,
)
from fedsaddle.runs.folder import RunFolder
from fedsaddle.runs.options import EvaluationOptions, RunOptions
from fedsaddle.runs.result import Result, Settings
from fedsaddle.runs.rounds import Plan
from fedsaddle.runs.saved import starting_network
from fedsaddle.runs.training import MakeEngine, Training
from fedsaddle.runs.watching import Observer


def train(
    problem: str | Problem = "auc",
    data: str | FederatedData | DataOptions = "breast-cancer",
    algorithm: str | Algorithm | None = None,
    *,
    model: str | nn.Module | ModelOptions = "logistic",
    rounds: int = 100,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    federation: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    checkpoint_every: int = 10,
    observer: Observer | None = None,
) -> Result:
    """Solve `min_x max_y mean_i f_i(x, y)` over the clients of `data`.

    problem: "auc", "risk", or any Problem. data: a source's name, a file, DataOptions, or
    FederatedData. algorithm: a method's name or an Algorithm (by default the problem's usual one).
    model: a network's name, an nn.Module, or ModelOptions. federation, engine, evaluation: settings
    of those sections. out: the run folder; nothing is written without it.

    >>> result = train("auc", "breast-cancer", "codasca", rounds=3)
    >>> float(result.metrics["test/auc"][-1]) > 0.8
    True
    """
    federated = _data(problem, data, seed)
    if isinstance(problem, str):
        problem, model_options = _named_problem(problem, model, federated, seed)
    else:
        model_options = None
    if algorithm is None:
        algorithm = DEFAULT_ALGORITHM[problem.kind]
    method = make_algorithm({"name": algorithm}) if isinstance(algorithm, str) else algorithm
    options = {
        "federation": validated(FederationOptions, federation or {}, "federation"),
        "engine": validated(EngineOptions, engine or {}, "engine"),
        "evaluation": validated(EvaluationOptions, evaluation or {}, "evaluation"),
        "run": validated(
            RunOptions,
            {"rounds": rounds, "seed": seed, "checkpoint_every": checkpoint_every},
            "run",
        ),
    }
    sections = {
        "data": _data_section(data, federated),
        "model": _model_section(model, model_options),
        "problem": described(problem),
        "algorithm": described(method),
        **{name: part.model_dump(mode="json", exclude_none=True) for name, part in options.items()},
    }
    settings = Settings(**options, sections=sections, model=model_options)
    folder = None if out is None else RunFolder(Path(out))
    simulate = simulation(federated, settings)
    return Training(
        problem, facts_of(federated), method, settings, simulate, folder, resume, observer
    ).execute()


def train_config(
    config: Config, out: Path, resume: bool = False, observer: Observer | None = None
) -> Result:
    """The run that a configuration describes, in a folder."""
    binary = PROBLEMS[config.problem["name"]].task == "binary"
    data = load(config.data, seed=config.run.seed, binary=binary)
    network = starting_network(config.model, data, config.run.seed)
    settings = Settings(
        config.federation,
        config.engine,
        config.evaluation,
        config.run,
        config.sections(),
        config.model,
    )
    training = Training(
        make_problem(config.problem, network),
        facts_of(data),
        make_algorithm(config.algorithm),
        settings,
        simulation(data, settings),
        RunFolder(out),
        resume,
        observer,
    )
    return training.execute()


def simulation(data: FederatedData, settings: Settings) -> MakeEngine:
    """All clients on this machine."""
    if settings.engine.name == "flower":
        raise UserError(
            "engine.name: a run across machines is started by Flower, with the app folder that "
            "`fedsaddle deploy new` writes."
        )

    def engine(plan: Plan) -> Simulation:
        binned = settings.evaluation.auc == "binned"
        return Simulation(
            plan.problem,
            plan.algorithm,
            data,
            plan.layout,
            plan.members,
            settings.engine,
            plan.seed,
            binned,
            plan.federation.clients_per_round,
            settings.run.rounds,
        )

    return engine


def config_of(folder: Path) -> Config:
    """The configuration of a run folder."""
    return resolve(read(folder / "config.toml"))


def _data(problem: str | Problem, data: Any, seed: int) -> FederatedData:
    if isinstance(data, FederatedData):
        return data
    options = data if isinstance(data, DataOptions) else DataOptions(source=data)
    task = PROBLEMS[problem].task if problem in PROBLEMS else getattr(problem, "task", "none")
    return load(options, seed=seed, binary=task == "binary")


def _named_problem(
    name: str, model: Any, data: FederatedData, seed: int
) -> tuple[Problem, ModelOptions | None]:
    if isinstance(model, nn.Module):
        return make_problem({"name": name}, model), None
    options = model if isinstance(model, ModelOptions) else ModelOptions(name=model)
    network = starting_network(options, data, seed)
    return make_problem({"name": name}, network), options


def _data_section(given: Any, data: FederatedData) -> dict[str, Any]:
    if isinstance(given, FederatedData):
        return {"source": data.source, "clients": data.n_clients, "rows": len(data.inputs)}
    options = given if isinstance(given, DataOptions) else DataOptions(source=given)
    return options.model_dump(mode="json", exclude_none=True)


def _model_section(model: Any, options: ModelOptions | None) -> dict[str, Any]:
    if options is not None:
        return options.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"name": type(model).__name__ if isinstance(model, nn.Module) else "of the problem"}
