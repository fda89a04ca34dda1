"""Who takes part in a comparison, and the settings of each: one base, a few differences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsaddle.algorithms import ALGORITHMS, ALIASES
from fedsaddle.data import FederatedData, load
from fedsaddle.errors import UserError, nearest
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.config import Config, Sections, resolve


@dataclass(frozen=True)
class Entrant:
    """One line of a comparison.

    overrides: by section, what differs from the base configuration. `[algorithm]` takes the place
    of the base's section, and so does any other section that is given another `name`; the rest is
    laid over the base's settings.
    """

    label: str
    overrides: Mapping[str, Mapping[str, Any]]


def merged(base: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> Sections:
    """The base configuration with an entrant's differences.

    >>> base = {"problem": {"name": "auc", "margin": 0.5}, "run": {"rounds": 9, "seed": 1}}
    >>> merged(base, {"problem": {"name": "risk"}, "run": {"rounds": 5}})
    {'problem': {'name': 'risk'}, 'run': {'rounds': 5, 'seed': 1}}
    """
    sections = {name: dict(values) for name, values in base.items()}
    for name, values in overrides.items():
        before = sections.get(name, {})
        other = "name" in values and values["name"] != before.get("name")
        replaces = name == "algorithm" or (other and name in ("problem", "model"))
        sections[name] = dict(values) if replaces else before | dict(values)
    return sections


def named_entrants(base: Mapping[str, Any], names: Sequence[str]) -> list[Entrant]:
    """Entrants from `method` or `method:problem`, each with its defaults.

    Settings of the base's `[algorithm]` are the named method's own; where that section names none
    they hold for every method that knows them (the same `local_steps` for all, say).

    >>> [entrant.label for entrant in named_entrants({}, ["codasca", "fedavg:risk"])]
    ['codasca', 'fedavg-risk']
    """
    known = [*ALGORITHMS, *ALIASES]
    given = dict(base.get("algorithm", {}))
    owner = given.pop("name", None)
    entrants = []
    for text in names:
        method, colon, problem = text.partition(":")
        if method not in known:
            raise UserError(f"--algorithms: there is no '{method}'; {nearest(method, known)}")
        if colon and problem not in PROBLEMS:
            hint = nearest(problem, list(PROBLEMS))
            raise UserError(f"--algorithms {text}: there is no problem '{problem}'; {hint}")
        fields = ALGORITHMS[ALIASES.get(method, method)].model_fields
        shared = {key: value for key, value in given.items() if owner is None and key in fields}
        own = given if method == owner else shared
        overrides: dict[str, dict[str, Any]] = {"algorithm": {"name": method, **own}}
        if colon:
            overrides["problem"] = {"name": problem}
        entrants.append(Entrant(text.replace(":", "-"), overrides))
    _check_shared(given if owner is None else {}, entrants)
    return entrants


def _check_shared(given: Mapping[str, Any], entrants: Sequence[Entrant]) -> None:
    """Refuse a setting for all methods that none of them knows."""
    for key in given:
        if not any(key in entrant.overrides["algorithm"] for entrant in entrants):
            methods = [entrant.overrides["algorithm"]["name"] for entrant in entrants]
            fields = [f for m in methods for f in ALGORITHMS[ALIASES.get(m, m)].model_fields]
            raise UserError(
                f"algorithm.{key}: none of these methods has such a setting; {nearest(key, fields)}"
            )


def settle(base: Sections, entrants: Sequence[Entrant], seed: int) -> dict[str, Config]:
    """Every entrant's configuration by label, checked; all of them see the same labels.

    A problem with two classes (AUC) reads a data set of many as one class against the rest, a
    problem such as `risk` reads it as it is. Where entrants of both sorts meet, `data.positive` is
    written down for all.
    """
    _check_labels(entrants)
    configs = {entrant.label: _config(base, entrant, seed) for entrant in entrants}
    binary = {label: _binary(config) for label, config in configs.items()}
    if len(set(binary.values())) > 1:
        first = next(configs[label] for label, two in binary.items() if two)
        if first.data.positive is None:
            positive = load(first.data, seed=seed, binary=True).classes[1].strip("{}")
            data = {**base.get("data", {}), "positive": positive}
            configs = {e.label: _config({**base, "data": data}, e, seed) for e in entrants}
    return configs


def seeded(config: Config, seed: int) -> Config:
    """The same settings for another seed."""
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def data_of(config: Config) -> FederatedData:
    """The data that a configuration's run sees."""
    return load(config.data, seed=config.run.seed, binary=_binary(config))


def with_data(configs: Mapping[str, Config]) -> Iterator[tuple[str, Config, FederatedData]]:
    """Every entrant with the data that it sees; what several share is loaded once."""
    sharing: dict[tuple[str, int, bool], list[str]] = {}
    for label, config in configs.items():
        key = (config.data.model_dump_json(), config.run.seed, _binary(config))
        sharing.setdefault(key, []).append(label)
    for labels in sharing.values():
        data = data_of(configs[labels[0]])
        for label in labels:
            yield label, configs[label], data


def _binary(config: Config) -> bool:
    return PROBLEMS[config.problem["name"]].task == "binary"


def _config(base: Sections, entrant: Entrant, seed: int) -> Config:
    sections = merged(base, entrant.overrides)
    sections["run"] = {**sections.get("run", {}), "seed": seed}
    try:
        return resolve(sections)
    except UserError as error:
        raise UserError(f"{entrant.label}: {error}") from None


def _check_labels(entrants: Sequence[Entrant]) -> None:
    if not entrants:
        raise UserError("a comparison needs at least one method; none was given.")
    seen: set[str] = set()
    for label in (entrant.label for entrant in entrants):
        if not label or label.startswith(".") or "/" in label or len(label) > 100:
            raise UserError(f"'{label}': an entrant's label must do as the name of a folder.")
        if label in seen:
            raise UserError(f"'{label}' takes part twice; give every entrant a label of its own.")
        seen.add(label)
