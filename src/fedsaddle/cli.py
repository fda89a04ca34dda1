"""The command line. Every command has --help with examples and --json for machines."""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedsaddle import cli_audit, cli_bench, cli_compare, cli_data, cli_deploy, cli_reproduce
from fedsaddle.errors import UserError, nearest
from fedsaddle.terminal import number as _number
from fedsaddle.terminal import say as _say
from fedsaddle.terminal import show as _print
from fedsaddle.terminal import show_result
from fedsaddle.terminal import table as _table

app = typer.Typer(
    help="Federated minimax learning: many sites, one model, nobody's data leaves home.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

app.add_typer(cli_data.app, name="data")
app.command(name="compare")(cli_compare.compare)
app.command(name="bench")(cli_bench.bench)
app.command(name="reproduce")(cli_reproduce.reproduce)
app.add_typer(cli_deploy.app, name="deploy")
app.command(name="audit")(cli_audit.audit)

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Best = Annotated[bool, typer.Option("--best", help="The best evaluated round, not the last.")]
Split = Annotated[
    str | None,
    typer.Option(help="Of an NPZ file like MedMNIST's: train, val or test (by default test)."),
]
ModelFolder = Annotated[Path, typer.Argument(help="A run's model folder.", metavar="RUN/model")]


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file; every setting has a default.")
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
    algorithm: Annotated[str | None, typer.Option(help="Which method.")] = None,
    model: Annotated[str | None, typer.Option(help="Which network.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Every random choice follows from it.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder (by default a new one under runs/).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    write_config: Annotated[
        Path | None, typer.Option(help="Write the settings, commented, to this file and stop.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Train one model across the sites.

    Examples:

        fedsaddle train

        fedsaddle train --data patients.csv --label died --client hospital

        fedsaddle train --data xrays.csv --label Edema --label Mass --problem multilabel-auc

        fedsaddle train --data heart-disease --set data.root=data --algorithm codasca

        fedsaddle train --write-config run.toml

        fedsaddle train run.toml --set algorithm.learning_rate=0.1 --out runs/mine

        fedsaddle train --resume --out runs/mine
    """
    from fedsaddle.runs import config as settings
    from fedsaddle.runs.api import train_config
    from fedsaddle.runs.folder import disk_errors, free_folder, write_text
    from fedsaddle.runs.progress import watch
    from fedsaddle.runs.watching import Interrupted

    if resume and out is None:
        raise UserError("--resume: say which run with --out RUN.")
    if resume and out is not None and config is None:
        config = out / "config.toml"
    flags = {
        "data.source": data,
        "data.label": label,
        "data.client": client,
        "problem.name": problem,
        "algorithm.name": algorithm,
        "model.name": model,
        "run.rounds": rounds,
        "run.seed": seed,
    }
    resolved = settings.resolve(settings.collect(config, set_, flags))
    if write_config:
        if write_config.exists():
            raise UserError(f"{write_config}: the file exists; choose another name.")
        with disk_errors(str(write_config)):
            write_text(write_config, settings.write_commented(resolved))
        _say({"config": str(write_config)}, f"wrote {write_config}", as_json)
        return
    source = resolved.data.source if isinstance(resolved.data.source, str) else "sites"
    stem = f"{Path(source).stem}-{resolved.algorithm['name']}"
    out = out or free_folder(Path("runs"), stem)
    try:
        result = train_config(resolved, out, resume, watch(quiet=as_json))
    except Interrupted as stopped:
        print(f"{stopped}; continue with: fedsaddle train --resume --out {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    report = result.report(out / "report.html")
    if as_json:
        _say({"run": str(out), "report": str(report), **result.evaluation}, "", True)
    else:
        show_result(result.record, out, result.best_round)
    if result.stopped:
        print(f"fedsaddle: {result.stopped}", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, shown side by side.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file (by default in the first run).")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Write the HTML report of one or several runs.

    Examples:

        fedsaddle report runs/mine

        fedsaddle report runs/codasca runs/fedavg --out compare.html
    """
    from fedsaddle.runs.folder import disk_errors
    from fedsaddle.runs.record import RunRecord
    from fedsaddle.runs.report import write_report

    target = out or runs[0] / "report.html"
    records = [RunRecord.load(run) for run in runs]
    with disk_errors(str(target)):
        write_report(records, target)
    _say({"report": str(target)}, f"wrote {target}", as_json)


@app.command()
def predict(
    model: ModelFolder,
    file: Annotated[
        Path, typer.Argument(help="CSV, Parquet or NPZ; for images a CSV with a column path.")
    ],
    out: Annotated[Path, typer.Option(help="Where the rows with their scores go.")] = Path(
        "scores.csv"
    ),
    best: Best = False,
    split: Split = None,
    as_json: JSON = False,
) -> None:
    """Score new rows: the file's rows in order, with a score column added (one per finding).

    Example:

        fedsaddle predict runs/mine/model new.csv --out scores.csv
    """
    from fedsaddle.runs.predicting import predict_file

    rows = predict_file(model, file, out, best, split)
    _say({"scores": str(out), "rows": rows}, f"wrote {rows} rows to {out}", as_json)


@app.command()
def evaluate(
    model: ModelFolder,
    file: Annotated[Path, typer.Argument(help="CSV, Parquet or NPZ with labels.")],
    label: Annotated[
        list[str] | None,
        typer.Option(help="Column with the label; for findings several (by default all)."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Column that names the site.")] = None,
    best: Best = False,
    split: Split = None,
    as_json: JSON = False,
) -> None:
    """Measure a saved model on a labelled file.

    Example:

        fedsaddle evaluate runs/mine/model labelled.csv --label died --client hospital
    """
    from fedsaddle.runs.predicting import evaluate_file

    metrics = evaluate_file(model, file, label or [], client, best, split)
    if as_json:
        _say(metrics, "", True)
        return
    table = _table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, _number(value))
    _print(table)


@app.command(name="list")
def list_(
    what: Annotated[
        str | None, typer.Argument(help="algorithms, problems, data or models.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """What there is to choose from.

    Examples:

        fedsaddle list

        fedsaddle list algorithms --json
    """
    from fedsaddle.runs.catalogue import catalogue

    known = catalogue()
    if what is not None and what not in known:
        raise UserError(f"list: there are no '{what}'; {nearest(what, list(known))}")
    chosen = {what: known[what]} if what else known
    if as_json:
        _say(chosen, "", True)
        return
    for name, rows in chosen.items():
        table = _table(*rows[0], title=name)
        for row in rows:
            table.add_row(*row.values())
        _print(table)


def _fail(message: str) -> NoReturn:
    print(f"fedsaddle: {message}", file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    """Run a command; a UserError is one sentence on standard error and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
