"""`fedsaddle compare`: several methods on the same data, seeds and budget."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsaddle.errors import UserError
from fedsaddle.terminal import say, show, table

if TYPE_CHECKING:
    from rich.table import Table

    from fedsaddle.runs.compare.tables import Findings


def compare(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file as for train, with tables [compare] and [sweep] or none."),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Methods, each alone or as METHOD:PROBLEM (a baseline for another problem).",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N", help="How many seeds (by default 5), or which: 0,3,7."),
    ] = None,
    budget_mb: Annotated[
        float | None, typer.Option(help="Megabytes that each run may send, up and down.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Or: rounds of each run.")] = None,
    sweep: Annotated[
        int | None,
        typer.Option(help="Trials per method to find its settings on the validation rows."),
    ] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, random or grid.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What is compared (by default test/auc or test/accuracy).")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A data set's name, or CSV, Parquet or NPZ files: one, a folder, or one per site."
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Column with the label; several times for several findings."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Column that names the site.")] = None,
    problem: Annotated[str | None, typer.Option(help="What to optimise.")] = None,
    model: Annotated[str | None, typer.Option(help="Which network.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once (0: one per core).")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder (by default a new one under runs/).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the comparison in --out.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Compare methods on the same data, initial point, draws of clients and budget.

    Examples:

        fedsaddle compare --data digits --algorithms codasca,cdma-one,fedavg:risk --seeds 3

        fedsaddle compare run.toml --algorithms codasca,coda-plus --budget-mb 20

        fedsaddle compare run.toml --algorithms codasca,coda-plus --sweep 20 --sampler tpe

        fedsaddle compare --resume --out runs/digits-compare-1

        fedsaddle train runs/digits-compare-1/best/codasca.toml
    """
    from fedsaddle.runs import config as settings
    from fedsaddle.runs.compare.progress import watch
    from fedsaddle.runs.compare.request import REQUEST, carry_out
    from fedsaddle.runs.folder import free_folder

    if resume and out is None:
        raise UserError("--resume: say which comparison with --out DIR.")
    if budget_mb is not None and rounds is not None:
        raise UserError("--budget-mb and --rounds: give one of them, not both.")
    if resume and out is not None and config is None:
        config = out / REQUEST
    flags = {
        "data.source": data,
        "data.label": label,
        "data.client": client,
        "problem.name": problem,
        "model.name": model,
        "run.rounds": rounds,
        "compare.algorithms": algorithms,
        "compare.seeds": seeds,
        "compare.budget_mb": budget_mb,
        "compare.sweep": sweep,
        "compare.sampler": sampler,
        "compare.metric": metric,
    }
    sections = settings.collect(config, set_, flags)
    if rounds is not None:
        sections.get("compare", {}).pop("budget_mb", None)
    source = sections.get("data", {}).get("source", "breast-cancer")
    stem = Path(source).stem if isinstance(source, str) else "sites"
    out = out or free_folder(Path("runs"), f"{stem}-compare")
    try:
        found = carry_out(sections, out, resume=resume, jobs=jobs, observer=watch(quiet=as_json))
    except KeyboardInterrupt:
        print(f"stopped; continue with: fedsaddle compare --resume --out {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    _tell(found, out, as_json)


def _tell(found: "Findings", out: Path, as_json: bool) -> None:
    from fedsaddle.runs.compare import tables

    if as_json:
        say({"comparison": str(out), **tables.as_json(found)}, "", True)
        return
    print(tables.caption(found))
    show(_table(tables.columns(found)))
    if found.differences:
        show(_table(tables.difference_columns(found)))
    for note in found.notes:
        print(note)
    print(f"settings: {out / 'best'}; tables: {out / 'comparison'}.csv, .md, .tex, .json")
    print(f"report: {out / 'report.html'}")


def _table(columns: dict[str, list[str]]) -> "Table":
    made = table(*columns)
    for cells in zip(*columns.values(), strict=True):
        made.add_row(*cells)
    return made
