"""An experiment: one figure or table of a paper, as a TOML file.

The file has the paper's settings (`[base.*]`, the sections of a configuration), who takes part
(`[[entrants]]`, each with the settings that differ), how much of it is run (`[scale.*]`), what is
drawn (`[figure]`) and what the paper says (`[[claims]]`).
"""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsaddle.errors import UserError, nearest
from fedsaddle.runs.config import SECTIONS, Sections
from fedsaddle.runs.reproduce.claims import Claim

ScaleName = Literal["quick", "cpu", "paper"]
SCALES: tuple[ScaleName, ...] = ("quick", "cpu", "paper")
Settings = dict[str, Any]


class Part(BaseModel):
    """A table of an experiment's file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Differences(Part):
    """Settings laid over the base configuration, by section."""

    data: Settings = {}
    model: Settings = {}
    problem: Settings = {}
    algorithm: Settings = {}
    federation: Settings = {}
    engine: Settings = {}
    evaluation: Settings = {}
    run: Settings = {}

    @property
    def sections(self) -> Sections:
        """Those that are given."""
        return {name: getattr(self, name) for name in SECTIONS if getattr(self, name)}


class Participant(Differences):
    """A method with the paper's hyper-parameters; its `[algorithm]` replaces the base's."""

    label: str = Field(description="its name in tables, figures and claims")


class Vary(Part):
    """One setting that every participant takes part with at several values."""

    setting: str = Field(description="section.key, such as algorithm.local_steps")
    symbol: str = Field(description="the paper's name for it, which becomes part of the labels")
    values: tuple[int | float, ...]


class Scale(Differences):
    """How much of an experiment is run; its settings go over the participants', too."""

    reduced: str = Field(description="one sentence: what differs from the paper, and why")
    seeds: int = Field(ge=1, description="how many seeds, from 0")
    only: tuple[str, ...] = Field((), description="participants that run (by default all)")
    values: tuple[int | float, ...] = Field((), description="values of [vary] (by default all)")
    evaluations: int = Field(20, ge=1, description="about how often each run is measured")
    iterations: int | None = Field(
        None, ge=1, description="local steps of a client in all: rounds are these / local_steps"
    )
    stage_iterations: int | None = Field(
        None, ge=1, description="the same for a stage: stage_rounds are these / local_steps"
    )


class Panel(Part):
    """A metric that is drawn."""

    metric: str
    title: str


class Figure(Part):
    """What is drawn."""

    x: Literal["round", "iterations", "floats_up", "vary"] = Field(
        "round", description="the horizontal axis; vary: the last values against those of [vary]"
    )
    panels: tuple[Panel, ...] = Field(min_length=1)


class Experiment(Part):
    """One figure or table of a paper."""

    name: str
    title: str
    paper: str = Field(description="authors, venue, figure or table")
    notes: str = Field(description="what the paper leaves open or what differs at every scale")
    base: Differences
    entrants: tuple[Participant, ...] = Field(min_length=1)
    vary: Vary | None = None
    scale: dict[ScaleName, Scale]
    figure: Figure
    claims: tuple[Claim, ...] = Field(min_length=1)


def experiment_names() -> list[str]:
    """The experiments that come with fedsaddle."""
    folder = files("fedsaddle").joinpath("experiments")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def read_experiment(name: str) -> Experiment:
    """An experiment by its name, or from a file of one's own (a path that ends in .toml)."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{name}: there is no such file.")
        text, name = path.read_text(encoding="utf-8"), path.stem
    else:
        known = experiment_names()
        if name not in known:
            raise UserError(f"there is no experiment '{name}'; {nearest(name, known)}")
        text = files("fedsaddle").joinpath("experiments", f"{name}.toml").read_text("utf-8")
    try:
        return Experiment(name=name, **tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"experiment {name}: not a TOML file: {error}.") from None
    except ValidationError as error:
        raise UserError(f"experiment {name}: {_mistake(error)}") from None


def _mistake(error: ValidationError) -> str:
    """What is wrong with a file; a key that is misspelt comes before one that is missing."""
    found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")[0]
    field = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"{field}: there is no such key."
    if found["type"] == "missing":
        return f"{field} is missing."
    return f"{field}: {found['msg'].removeprefix('Input ')}."
