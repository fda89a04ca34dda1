"""What a sweep searches: for every method a range or a list of choices by setting.

A table `[sweep]` in the configuration names settings of `[algorithm]`:

    [sweep]                                     # of every method that has the setting
    learning_rate = { low = 0.01, high = 1.0 }  # numbers from low > 0 on, on a logarithmic scale
    [sweep.codasca]                             # of one method, or one entrant, alone
    local_steps = [4, 8, 16]                    # choices
    prox = { low = 0.0, high = 0.1, log = false }

A method of which the table names no setting is searched over its step sizes.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.errors import UserError, nearest
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.config import Config, make_algorithm, sentence

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

STEP_SIZES = ("learning_rate", "dual_rate")
SMALLEST, LARGEST = 1 / 30, 10.0
"""A step size is searched from this to that many times its default."""

Space = dict[str, "Range | list[Any]"]


class Range(BaseModel):
    """Numbers between two; whole ones when both are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: int | float
    high: int | float
    log: bool | None = None
    """By default fractions above 0 are searched on a logarithmic scale, all else evenly."""

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def logarithmic(self) -> bool:
        return (not self.whole and self.low > 0) if self.log is None else self.log


def spaces(table: Mapping[str, Any], configs: Mapping[str, Config]) -> dict[str, Space]:
    """By label, what is searched; a UserError names what is wrong in `[sweep]`."""
    methods = {label: config.algorithm["name"] for label, config in configs.items()}
    own = {key for key in table if key in methods or key in methods.values()}
    for key in table:
        known = {field for name in methods.values() for field in ALGORITHMS[name].model_fields}
        if key not in own and key not in known:
            hint = nearest(key, sorted({*known, *methods, *methods.values()}))
            raise UserError(f"sweep.{key}: no method here has such a setting; {hint}")
    found = {}
    for label, config in configs.items():
        fields = ALGORITHMS[methods[label]].model_fields
        given = {f"sweep.{key}": (key, table[key]) for key in table if key in fields}
        for key in dict.fromkeys((methods[label], label)):
            if key in own:
                given |= {f"sweep.{key}.{name}": (name, v) for name, v in table[key].items()}
        space = {name: _setting(where, value) for where, (name, value) in given.items()}
        _check(given, space, config)
        found[label] = space or default_space(config)
    return found


def default_space(config: Config) -> Space:
    """The method's step sizes, around their defaults."""
    method = ALGORITHMS[config.algorithm["name"]]
    defaults = described_defaults(config)
    dual = PROBLEMS[config.problem["name"]].kind != "risk" or "dual_rate" not in _optional(method)
    names = [name for name in STEP_SIZES if name in method.model_fields]
    return {
        name: Range(low=defaults[name] * SMALLEST, high=defaults[name] * LARGEST)
        for name in names
        if name != "dual_rate" or dual
    }


def described_defaults(config: Config) -> dict[str, Any]:
    """The entrant's own settings; a dual step size that is not set is the primal one."""
    own = dict(config.algorithm)
    return {"dual_rate": own.get("learning_rate")} | own


def distributions(space: Space) -> "dict[str, BaseDistribution]":
    """The space as optuna has it."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    made: dict[str, BaseDistribution] = {}
    for name, setting in space.items():
        if isinstance(setting, list):
            made[name] = CategoricalDistribution(setting)
        elif setting.whole:
            made[name] = IntDistribution(
                int(setting.low), int(setting.high), log=setting.logarithmic
            )
        else:
            made[name] = FloatDistribution(setting.low, setting.high, log=setting.logarithmic)
    return made


def contains(space: Space, point: Mapping[str, Any]) -> bool:
    """Whether a point of settings lies in the space."""
    return all(
        point.get(name) in setting
        if isinstance(setting, list)
        else point.get(name) is not None and setting.low <= point[name] <= setting.high
        for name, setting in space.items()
    )


def grid(label: str, space: Space, most: int) -> list[dict[str, Any]]:
    """At most so many points: all choices, and equally many of every range, ends included.

    >>> space = {"learning_rate": Range(low=0.01, high=1.0), "local_steps": [1, 8]}
    >>> [point["learning_rate"] for point in grid("fedavg", space, 7)[::2]]
    [0.01, 0.1, 1.0]
    """
    ranges = [name for name, setting in space.items() if isinstance(setting, Range)]
    choices = math.prod(len(setting) for setting in space.values() if isinstance(setting, list))
    each = 2
    while ranges and choices * (each + 1) ** len(ranges) <= most:
        each += 1
    least = choices * 2 ** len(ranges)
    if least > most:
        raise UserError(
            f"{label}: a grid over {', '.join(space)} has at least {least} points; "
            f"use --sweep {least} or more, or another --sampler."
        )
    axes = [s if isinstance(s, list) else _points(s, each) for s in space.values()]
    return [dict(zip(space, point, strict=True)) for point in product(*axes)]


def _points(setting: Range, number: int) -> list[Any]:
    spread = np.geomspace if setting.logarithmic else np.linspace
    values = spread(setting.low, setting.high, number)
    if setting.whole:
        return sorted({round(value) for value in values.tolist()})
    return [float(f"{value:.6g}") for value in values.tolist()]


def _setting(where: str, value: Any) -> "Range | list[Any]":
    if isinstance(value, list) and value:
        return value
    if not isinstance(value, Mapping):
        raise UserError(
            f"{where}: a list of choices, or {{ low = …, high = … }}, is wanted, not {value!r}."
        )
    try:
        found = Range(**value)
    except ValidationError as error:
        raise UserError(sentence(error, where, Range)) from None
    if found.low >= found.high:
        raise UserError(f"{where}: low ({found.low}) must be below high ({found.high}).")
    if found.logarithmic and found.low <= 0:
        raise UserError(f"{where}: a logarithmic scale starts above 0, not at {found.low}.")
    return found


def _check(given: Mapping[str, tuple[str, Any]], space: Space, config: Config) -> None:
    """The ends of every range, and all choices, must be settings that the method takes."""
    for where, (name, _) in given.items():
        setting = space[name]
        values: Sequence[Any] = (
            setting if isinstance(setting, list) else (setting.low, setting.high)
        )
        for value in values:
            try:
                make_algorithm(config.algorithm | {name: value})
            except UserError as error:
                raise UserError(f"{where}: {error}") from None


def _optional(method: type[BaseModel]) -> set[str]:
    return {name for name, field in method.model_fields.items() if field.default is None}
