"""Every setting and version; where runs differ, the row is marked."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from fedsaddle.runs.report.markup import Html, join, table, tag
from fedsaddle.runs.report.reading import Runs
from fedsaddle.runs.report.words import MISSING


def configuration(runs: Runs) -> Html:
    """One table per section of the configuration, and one for the environment."""
    every = [run.config | {"environment": run.environment} for run in runs.values()]
    head = ["Setting", *(["Value"] if len(runs) == 1 else runs)]
    tables = []
    for section in dict.fromkeys(name for config in every for name in config):
        columns = [dict(flat(config.get(section))) for config in every]
        names = dict.fromkeys(name for values in columns for name in values)
        cells = {name: [values.get(name, MISSING) for values in columns] for name in names}
        rows = [[join([name, mark(values)]), *values] for name, values in cells.items()]
        if rows:
            tables.append(table(section.capitalize(), head, rows, text=len(runs)))
    return tag("div", *tables, class_="settings" if len(runs) == 1 else "")


def mark(values: Sequence[str]) -> Html | None:
    return tag("em", " differs", class_="differs") if len(set(values)) > 1 else None


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names with their values as text.

    >>> dict(flat({"step": {"size": 0.5, "kind": "fixed"}, "unset": None}))
    {'step.size': '0.5', 'step.kind': 'fixed'}
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(inner, f"{path}.{name}" if path else str(name))
    elif value is not None:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield path or "value", text
