"""Every setting, from the models that check them.

Run: python examples/configuration.py > docs/configuration.md
"""

import json
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import DataOptions
from fedsaddle.engines import EngineOptions
from fedsaddle.federation import FederationOptions
from fedsaddle.models import ModelOptions
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.options import EvaluationOptions, RunOptions

INTRODUCTION = """# Configuration

A run is described by a TOML file with eight sections, all of them optional. On the command line
any setting is `--set section.key=value`; `fedsaddle train --write-config run.toml` writes the file
with every setting of the chosen problem and method. An unknown section or key is an error that
names the nearest right one. Made by `python examples/configuration.py` from the models that check
the settings.

`[problem]` and `[algorithm]` take a `name` and the settings listed under that name."""

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataOptions,
    "model": ModelOptions,
    "federation": FederationOptions,
    "engine": EngineOptions,
    "evaluation": EvaluationOptions,
    "run": RunOptions,
}


def default(field: Any) -> str:
    """A field's default, as TOML writes it; empty where there is none."""
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`" if value != {} else "`{}`"


def table(model: type[BaseModel]) -> None:
    """Print a model's own settings, sentence by sentence."""
    fields = {
        field.alias or name: field
        for name, field in model.model_fields.items()
        if not field.exclude
    }
    if not fields:
        print("\nNo settings of its own.")
        return
    print("\n| setting | default | meaning |\n|---|---|---|")
    for name, field in fields.items():
        meaning = (field.description or "").replace("|", "\\|").rstrip(".")
        print(f"| `{name}` | {default(field)} | {meaning} |")


def first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def main() -> None:
    print(INTRODUCTION)
    for name, model in SECTIONS.items():
        print(f"\n## `[{name}]`\n\n{first_line(model)}")
        table(model)
    for section, classes in (("problem", PROBLEMS), ("algorithm", ALGORITHMS)):
        print(f"\n## `[{section}]`")
        for name, found in classes.items():
            print(f'\n### `name = "{name}"`\n\n{first_line(found)}')
            table(found)


if __name__ == "__main__":
    main()
