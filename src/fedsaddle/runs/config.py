"""Configuration: eight sections, defaults for all of it, and errors that name the field.

A section is a pydantic model; `[problem]` and `[algorithm]` take a `name` and that class's fields.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError
from torch import nn

from fedsaddle.algorithms import ALGORITHMS, ALIASES, Algorithm
from fedsaddle.data import DataOptions
from fedsaddle.data.sources import SOURCES
from fedsaddle.engines import EngineOptions
from fedsaddle.errors import UserError, nearest
from fedsaddle.federation import FederationOptions
from fedsaddle.models import ModelOptions
from fedsaddle.problems import PROBLEMS, Problem
from fedsaddle.problems.base import Kind
from fedsaddle.runs.options import EvaluationOptions, RunOptions

Sections = dict[str, dict[str, Any]]

DEFAULT_ALGORITHM: dict[Kind, str] = {
    "auc": "codasca",
    "minimax": "local-sgda",
    "compositional": "local-scgdam",
    "risk": "fedavg",
    "agnostic": "drfa",
    "ratio": "local-sgdm-rl",
}
"""The usual method for each kind of problem."""
_PLAIN: dict[str, type[BaseModel]] = {
    "data": DataOptions,
    "model": ModelOptions,
    "federation": FederationOptions,
    "engine": EngineOptions,
    "evaluation": EvaluationOptions,
    "run": RunOptions,
}
SECTIONS = ("data", "model", "problem", "algorithm", "federation", "engine", "evaluation", "run")


class Config(BaseModel):
    """The resolved settings of a run."""

    data: DataOptions
    model: ModelOptions
    problem: dict[str, Any]
    algorithm: dict[str, Any]
    federation: FederationOptions
    engine: EngineOptions
    evaluation: EvaluationOptions
    run: RunOptions

    def sections(self) -> Sections:
        """Plain values, with everything that is not set left out."""
        dumped: Sections = self.model_dump(mode="json", exclude_none=True, by_alias=True)
        return {name: dumped[name] for name in SECTIONS}


def sentence(error: ValidationError, section: str, model: type[BaseModel]) -> str:
    """The first mistake a validation found, as one sentence that names the field."""
    first, *others = error.errors()
    where = first["loc"]
    # a setting of one kind or another is refused once for each of them
    kinds = [e for e in others if e["loc"][:-1] == where[:-1] and e["input"] is first["input"]]
    either = len(where) > 1 and isinstance(where[-1], str) and bool(kinds)
    field = ".".join([section, *(str(part) for part in (where[:-1] if either else where))])
    if first["type"] == "extra_forbidden":
        fields = model.model_fields.items()
        known = [part.alias or name for name, part in fields if name != "model"]
        return f"{field}: there is no such setting; {nearest(str(first['loc'][-1]), known)}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if either:
        wanted = [e["msg"].partition(", ")[0] for e in (first, *kinds)]
        message = "should be " + " or ".join(w.removeprefix("Input should be ") for w in wanted)
    given = "" if first["type"] == "value_error" else f", not {first['input']!r}"
    return f"{field}: {message}{given}."


def validated(model: type[BaseModel], values: Mapping[str, Any], section: str) -> Any:
    """The section's model, or a UserError naming the field."""
    try:
        return model(**values)
    except ValidationError as error:
        raise UserError(sentence(error, section, model)) from None


def _named(section: str, values: Mapping[str, Any], classes: Mapping[str, Any]) -> type[BaseModel]:
    name = values["name"]
    if name not in classes:
        raise UserError(
            f"{section}.name: there is no '{name}'; {nearest(str(name), list(classes))}"
        )
    found: type[BaseModel] = classes[name]
    return found


def make_algorithm(values: Mapping[str, Any]) -> Algorithm:
    """The method a section describes."""
    options = {key: value for key, value in values.items() if key != "name"}
    known = ALGORITHMS | {alias: ALGORITHMS[name] for alias, name in ALIASES.items()}
    method: Algorithm = validated(_named("algorithm", values, known), options, "algorithm")
    return method


def make_problem(values: Mapping[str, Any], network: nn.Module) -> Problem:
    """The problem a section describes, for a network."""
    options = {key: value for key, value in values.items() if key != "name"} | {"model": network}
    problem: Problem = validated(_named("problem", values, PROBLEMS), options, "problem")
    return problem


def resolve(sections: Mapping[str, Any]) -> Config:
    """Check a configuration and fill in every default.

    >>> resolve({"problem": {"name": "auc"}}).algorithm["name"]
    'codasca'
    """
    for name, values in sections.items():
        if name not in SECTIONS:
            raise UserError(f"[{name}]: there is no such section; {nearest(name, SECTIONS)}")
        if not isinstance(values, Mapping):
            raise UserError(f"[{name}]: a section of settings is wanted, not {values!r}.")
    problem = make_problem({"name": "auc", **sections.get("problem", {})}, nn.Identity())
    named = {"name": DEFAULT_ALGORITHM[problem.kind], **sections.get("algorithm", {})}
    method = make_algorithm(named)
    check_solves(method, problem)
    plain = {name: validated(model, sections.get(name, {}), name) for name, model in _PLAIN.items()}
    return Config(problem=described(problem), algorithm=described(method), **plain)


def described(part: Problem | Algorithm) -> dict[str, Any]:
    """A problem or method as its section: name and options."""
    options = part.model_dump(mode="json", exclude_none=True)
    return {"name": part.name or type(part).__name__, **options}


def check_solves(method: Algorithm, problem: Problem) -> None:
    """Refuse a method for a problem it was not made for, naming those that were."""
    if problem.kind in method.solves:
        return
    able = [name for name, other in ALGORITHMS.items() if problem.kind in other.solves]
    raise UserError(
        f"algorithm.name: '{method.name}' does not solve '{problem.name}'; "
        f"these do: {', '.join(able)}."
    )


def read(path: Path) -> Sections:
    """The sections of a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = f" The data set of that name is '--data {path}'." if str(path) in SOURCES else ""
        raise UserError(f"{path}: there is no such file.{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}.") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> Sections:
    """The sections of a TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not a TOML file: {error}.") from None


def collect(
    config: Path | None, settings: Iterable[str] | None, flags: Mapping[str, Any]
) -> Sections:
    """A file's sections, then `--set`, then flags: `section.key` to a value, or to several.

    >>> collect(None, ["run.rounds=5"], {"run.seed": 3, "data.label": ["died"], "data.x": None})
    {'run': {'rounds': 5, 'seed': 3}, 'data': {'label': 'died'}}
    """
    sections = override(read(config) if config else {}, settings or [])
    for name, value in flags.items():
        section, _, key = name.partition(".")
        if isinstance(value, list) and len(value) < 2:
            value = value[0] if value else None
        if value is not None:
            sections.setdefault(section, {})[key] = value
    return sections


def override(sections: Mapping[str, Any], settings: Iterable[str]) -> Sections:
    """Sections with `section.key=value` settings applied; values are TOML, or else plain text.

    >>> override({}, ["run.rounds=5", "data.source=digits"])
    {'run': {'rounds': 5}, 'data': {'source': 'digits'}}
    """
    merged: Sections = {name: dict(values) for name, values in sections.items()}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, key = path.strip().partition(".")
        if not (equals and dot and key):
            raise UserError(f"--set {setting}: write it as section.key=value.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        place = merged.setdefault(section, {})
        *tables, last = key.split(".")
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    return merged


def write_sections(sections: Mapping[str, Any]) -> str:
    """A resolved configuration as TOML."""
    return tomli_w.dumps(sections)


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        parts = [arg for arg in get_args(annotation) if arg is not type(None)]
        return " or ".join(_type_name(part) for part in parts)
    if origin is Literal:
        return " | ".join(repr(value) for value in get_args(annotation))
    if origin is not None:
        return f"{origin.__name__} of {_type_name(get_args(annotation)[-1])}"
    return getattr(annotation, "__name__", str(annotation))


def write_commented(config: Config) -> str:
    """The configuration with a comment on every setting: a file to start from."""
    models = _PLAIN | {
        "problem": PROBLEMS[config.problem["name"]],
        "algorithm": ALGORITHMS[config.algorithm["name"]],
    }
    sections = config.sections()
    blocks = []
    for name in SECTIONS:
        model, values = models[name], sections[name]
        lines = [f"[{name}]"]
        if name in ("problem", "algorithm"):
            lines += [f"# {(model.__doc__ or '').strip().splitlines()[0]}", _line(values, "name")]
        for key, field in model.model_fields.items():
            if not field.exclude:
                lines += [f"# {field.description} ({_type_name(field.annotation)})"]
                lines += [_line(values, field.alias or key)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _line(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return f"# {key} ="
    value = values[key]
    if isinstance(value, dict):  # one line, for a table of its own would end the section
        inner = ", ".join(tomli_w.dumps({name: item}).strip() for name, item in value.items())
        return f"{key} = {{ {inner} }}" if inner else f"{key} = {{}}"
    return tomli_w.dumps({key: value}).strip()
