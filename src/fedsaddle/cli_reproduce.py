"""`fedsaddle reproduce`: a paper's figure or table, rerun, with a verdict on each of its claims."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsaddle.errors import UserError, nearest
from fedsaddle.terminal import say, show, table

if TYPE_CHECKING:
    from fedsaddle.runs.reproduce.experiment import ScaleName


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="An experiment (see --list), or a TOML file of one's own."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="quick: minutes; cpu: reduced, within a night; paper: all of it.")
    ] = "quick",
    list_: Annotated[bool, typer.Option("--list", help="Name the experiments and stop.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder (by default runs/NAME-SCALE).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the reproduction in the folder.")
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also keep the small result files in DIR/NAME-SCALE (make docs)."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once (0: one per core).")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Rerun a figure or table of a paper and judge what the paper claims.

    Examples:

        fedsaddle reproduce --list

        fedsaddle reproduce drfa-fig4

        fedsaddle reproduce drfa-fig4 --scale cpu --out runs/fig4

        fedsaddle reproduce drfa-fig4 --scale cpu --out runs/fig4 --resume

        fedsaddle reproduce drfa-fig4 --scale cpu --store experiments/results
    """
    from fedsaddle.runs import reproduce as library
    from fedsaddle.runs.compare.progress import watch

    if list_:
        _list(as_json)
        return
    if name is None:
        raise UserError("reproduce: say which experiment; --list names them.")
    experiment = library.read_experiment(name)
    plan = library.plan(experiment, _scale(scale))
    out = out or Path("runs") / f"{experiment.name}-{scale}"
    if not as_json:
        runs = len(plan.entrants) * len(plan.seeds)
        print(f"{experiment.title}\n{scale}: {plan.reduced}\n{runs} runs in {out}", file=sys.stderr)
    try:
        result = library.reproduce(
            plan, out, resume=resume, jobs=jobs, observer=watch(quiet=as_json)
        )
    except KeyboardInterrupt:
        command = f"fedsaddle reproduce {name} --scale {scale} --out {out} --resume"
        print(f"stopped; continue with: {command}", file=sys.stderr)
        raise typer.Exit(130) from None
    kept = library.store(out, store) if store else None
    if as_json:
        say({"folder": str(out), "stored": str(kept) if kept else None, **result}, "", True)
        return
    _show(result)
    print(f"figure: {out / 'figure.svg'}; report: {out / 'report.html'}")
    if kept:
        print(f"stored: {kept}; docs/results.md has it after: make docs")


def _scale(given: str) -> "ScaleName":
    from fedsaddle.runs.reproduce import SCALES

    for scale in SCALES:
        if given == scale:
            return scale
    raise UserError(f"--scale: there is no '{given}'; {nearest(given, list(SCALES))}")


def _list(as_json: bool) -> None:
    from fedsaddle.runs.reproduce import experiment_names, read_experiment

    found = [read_experiment(name) for name in experiment_names()]
    rows: list[dict[str, Any]] = [
        {
            "name": experiment.name,
            "title": experiment.title,
            "claims": len(experiment.claims),
            "scales": {name: scale.reduced for name, scale in experiment.scale.items()},
        }
        for experiment in found
    ]
    if as_json:
        say(rows, "", True)
        return
    listed = table("name", "what", "cpu")
    for row in rows:
        listed.add_row(row["name"], row["title"], row["scales"]["cpu"])
    show(listed)


def _show(result: dict[str, Any]) -> None:
    verdicts = table("claim", "paper", "ours", "verdict")
    for claim in result["claims"]:
        verdicts.add_row(claim["text"], claim["paper"], claim["ours"], claim["verdict"])
    show(verdicts)
