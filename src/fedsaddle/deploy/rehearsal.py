"""A run of a configuration on a federation on this machine, from the data files to the report."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedsaddle.data.site import check_remote
from fedsaddle.deploy.app import write_app
from fedsaddle.deploy.local import FederationError, LocalFederation, NodeConfig, RunState
from fedsaddle.deploy.sites import site_files
from fedsaddle.errors import UserError
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs.config import Config, write_commented
from fedsaddle.runs.record import read_lines
from fedsaddle.runs.watching import Observer


@dataclass(frozen=True)
class Rehearsal:
    """What is left of a rehearsal besides the run folder."""

    state: RunState
    sites: Path
    """Every site's data file, where it was cut here, and its state folder."""
    logs: Path | None
    """What all processes said; None after a run that completed."""


def rehearse(
    config: Config,
    out: Path,
    observer: Observer,
    *,
    sites: int | None = None,
    plaintext: bool = False,
    resume: bool = False,
) -> Rehearsal:
    """Start a coordinator and sites, run the configuration into `out`, and stop everything."""
    if out.exists() and not resume:
        raise UserError(f"{out}: the folder is there already; choose another, or --resume it.")
    check_remote(config.data.model_copy(update={"partition": None}))  # it says how data are cut
    own = out.with_name(f"{out.name}-sites")
    binary = PROBLEMS[config.problem["name"]].task == "binary"
    files, data = site_files(config.data, own, sites, config.run.seed, binary)
    engine = config.engine.model_copy(update={"name": "flower", "sites": list(files)})
    config = config.model_copy(update={"data": data, "engine": engine})

    temporary = Path(tempfile.mkdtemp(prefix="fedsaddle-"))
    logs = temporary / "federation" / "logs"
    try:
        app = temporary / "app"
        write_app(app, write_commented(config))
        nodes = _nodes(files, own, temporary)
        with LocalFederation(logs.parent, nodes, plaintext) as federation:
            run = federation.submit(app, {"out": str(out), "resume": resume})
            state = _follow(federation, run, out, config.run.rounds, observer)
            if not state.completed:
                (logs / "run.log").write_text(federation.run_log(run), encoding="utf-8")
    except FederationError as error:
        raise FederationError(f"{error}\nlogs: {logs}") from None
    except BaseException:
        shutil.rmtree(temporary)
        raise
    if not state.completed:
        return Rehearsal(state, own, logs)
    shutil.rmtree(temporary)
    return Rehearsal(state, own, None)


def _nodes(files: dict[str, Path], own: Path, temporary: Path) -> dict[str, NodeConfig]:
    """The sites' settings. State folders go by short names: a socket's path is limited."""
    nodes: dict[str, NodeConfig] = {}
    for number, (name, path) in enumerate(files.items()):
        state, short = own / name, temporary / str(number)
        state.mkdir(parents=True, exist_ok=True)
        short.symlink_to(state)
        nodes[name] = {"site": name, "data": str(path), "state": str(short)}
    return nodes


def _follow(
    federation: LocalFederation, run: str, out: Path, rounds: int, observer: Observer
) -> RunState:
    """Watch a run by the metrics that its coordinator writes down."""
    seen = len(read_lines(out / "metrics.jsonl"))

    def look() -> None:
        nonlocal seen
        rows = read_lines(out / "metrics.jsonl")
        for row in rows[seen:]:
            observer.round(row["round"], row, row)
        seen = max(seen, len(rows))

    observer.begin(rounds, 0)
    try:
        return federation.wait(run, meanwhile=look)
    finally:
        observer.end()
