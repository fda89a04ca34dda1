"""A run as its report sees it: all that was written down, nothing that has to be computed."""

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError


@dataclass(frozen=True)
class RunRecord:
    """What a finished or running run has written, from its folder or from memory.

    config: the resolved configuration, by section.
    environment: versions, seed, machine, start time.
    data: source, classes, and per client the name, training rows and training positives.
    history: one row of metrics per evaluated round.
    ledger: one entry per attempt at a phase.
    evaluation: the returned model on the test rows: summary, per-site table, ROC, reliability.
    """

    name: str
    config: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, ledger: bool = True) -> "RunRecord":
        """The record of a run folder, with or without its ledger, which may be long."""
        if not (folder / "config.toml").is_file():
            raise UserError(f"{folder}: this is no run folder (there is no config.toml in it).")
        try:
            return cls(
                name=folder.resolve().name,
                config=tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")),
                environment=_json(folder / "environment.json"),
                data=_json(folder / "data.json"),
                history=read_lines(folder / "metrics.jsonl"),
                ledger=read_lines(folder / "ledger.jsonl") if ledger else [],
                evaluation=_json(folder / "evaluation.json"),
            )
        except (ValueError, OSError) as error:
            raise UserError(f"{folder}: cannot be read as a run folder: {error}.") from None


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line cut short by a kill is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        rows.append(json.loads(line))
    return rows
