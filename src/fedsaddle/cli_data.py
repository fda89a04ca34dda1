"""`fedsaddle data`: fetch data sets, list them, and look at a partition before training on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsaddle.errors import UserError
from fedsaddle.terminal import number, say, show, table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from fedsaddle.data import FederatedData
    from fedsaddle.data.fetch import Progress

app = typer.Typer(
    help="Data sets: fetch them, list them, look at a partition.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
MOST_CLIENTS = 64
BAR = 50
SHADES = "█▓▒░"
COLOURS = ("blue", "red", "green", "yellow", "magenta", "cyan", "bright_blue", "bright_red")


@app.command(name="list")
def list_(as_json: JSON = False) -> None:
    """The data sets known by name, and where they come from.

    Example:

        fedsaddle data list
    """
    from fedsaddle.data.fetch import DOWNLOADS, came_from
    from fedsaddle.data.sources import SOURCES

    rows = [
        {
            "name": name,
            "what": source.description,
            "from": came_from(name),
            "fetch": "yes" if name in DOWNLOADS else "no",
        }
        for name, source in SOURCES.items()
    ]
    if as_json:
        say(rows, "", True)
        return
    listed = table("name", "what", "from", "fetch")
    for row in rows:
        listed.add_row(*row.values())
    show(listed)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set; see fedsaddle data list.")],
    dest: Annotated[
        Path | None,
        typer.Option(help="Folder for data sets (default: $FEDSADDLE_DATA, else 'data')."),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Download from here, not from the publisher.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Download a data set from its publisher, or continue an interrupted download.

    Examples:

        fedsaddle data fetch adult

        fedsaddle data fetch mnist --dest /srv/data --mirror http://files.example.org/mnist
    """
    from fedsaddle.data import DataOptions
    from fedsaddle.data.fetch import fetch as download

    folder = dest or DataOptions().folder
    with _progress(quiet=as_json) as progress:
        found = download(name, folder, mirror, progress)
    paths = [str(path) for path in found]
    text = "\n".join(paths) + f"\nuse it with: --data {name} --set data.root={folder}"
    say({"name": name, "root": str(folder), "files": paths}, text, as_json)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(file=sys.stderr)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as shown:
        tasks: dict[str, Any] = {}

        def update(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(file, total=total)
            shown.update(tasks[file], completed=done, total=total)

        yield update


@app.command()
def describe(
    config: Annotated[Path | None, typer.Argument(help="A TOML file, as for train.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="A data set's name, or files, as for train.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Column with the label; several times for several findings."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="Column that names the site.")] = None,
    problem: Annotated[
        str | None, typer.Option(help="As for train; without one, classes stay as they are.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="As for train.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the picture as an HTML page.")] = None,
    as_json: JSON = False,
) -> None:
    """Who has what: clients, rows and classes under the given settings.

    Examples:

        fedsaddle data describe --data digits --set data.partition=sorted

        fedsaddle data describe run.toml --out partition.html
    """
    from fedsaddle.data import describe as describing
    from fedsaddle.data import load
    from fedsaddle.problems import PROBLEMS
    from fedsaddle.runs import config as settings

    flags = {
        "data.source": data,
        "data.label": label,
        "data.client": client,
        "problem.name": problem,
        "run.seed": seed,
    }
    sections = settings.collect(config, set_, flags)
    resolved = settings.resolve(sections)
    named = "name" in sections.get("problem", {})
    binary = named and PROBLEMS[resolved.problem["name"]].task == "binary"
    loaded = load(resolved.data, seed=resolved.run.seed, binary=binary)
    facts = describing.describe(loaded)
    if out is not None:
        try:
            describing.write_page(loaded, out)
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror}).") from None
        facts["page"] = str(out)
    if as_json:
        say(facts, "", True)
        return
    _show_facts(facts)
    show(_picture(loaded))
    if out is not None:
        print(f"wrote {out}")


def _show_facts(facts: dict[str, Any]) -> None:
    shape = "x".join(map(str, facts["input_shape"]))
    positives = f", {facts['positives']} positive" if "positives" in facts else ""
    print(
        f"{facts['source']}: {facts['n_clients']} clients, {facts['rows']} rows of shape {shape}"
        f"{positives} (train {facts['train_rows']}, validation {facts['validation_rows']}, "
        f"test {facts['test_rows']})"
    )
    if facts["n_clients"] > MOST_CLIENTS:
        _show_quantiles(facts["quantiles"])
        return
    binary, grouped = "positives" in facts, "groups" in facts
    columns = ["client", *(["group"] if grouped else []), "rows", "train", "validation", "test"]
    listed = table(*columns, *(["n+", "positive"] if binary else ["classes"]))
    for client in facts["clients"]:
        cells = [client["name"], *([client["group"]] if grouped else [])]
        cells += [str(client[key]) for key in ("rows", "train_rows", "validation_rows")]
        cells.append(str(client["test_rows"]))
        if binary:
            share = client["positives"] / client["rows"] if client["rows"] else None
            cells += [str(client["positives"]), "-" if share is None else f"{share:.1%}"]
        else:
            cells.append(str(sum(rows > 0 for rows in client["class_rows"])))
        listed.add_row(*cells)
    show(listed)


def _show_quantiles(quantiles: dict[str, dict[str, float]]) -> None:
    shares = list(quantiles["rows"])
    names = {"0": "least", "0.5": "median", "1": "most"}
    listed = table("per client", *(names.get(q, f"{float(q):.0%}") for q in shares))
    listed.add_row("rows", *(str(int(value)) for value in quantiles["rows"].values()))
    if "positive_share" in quantiles:
        shown = [f"{value:.1%}" for value in quantiles["positive_share"].values()]
        listed.add_row("positive", *shown)
    show(listed)


def _picture(data: FederatedData) -> Table:
    """One bar per client, split by class, the largest client being BAR cells wide."""
    from rich.text import Text

    from fedsaddle.data.describe import class_counts, row_counts, sample, segments

    counts, rows = class_counts(data), row_counts(data)
    most = max(int(counts.sum(axis=1).max()), 1)
    chosen = sample(rows, MOST_CLIENTS // 2 if data.n_clients > MOST_CLIENTS else MOST_CLIENTS)
    drawn = table("client", "rows by class", "rows")
    for client in chosen:
        bar = Text()
        for label, width in enumerate(segments(counts[client], most, BAR)):
            bar.append_text(_cells(label, width, data.n_classes))
        drawn.add_row(data.names[client], bar, number(int(rows[client])))
    if 2 <= data.n_classes <= 20:
        key = Text()
        for label, name in enumerate(data.classes):
            key.append_text(_cells(label, 1, data.n_classes)).append(f" {name}  ")
        drawn.add_row("", key, "")
    return drawn


def _cells(label: int, width: int, n_classes: int) -> Text:
    from rich.text import Text

    # Two classes: the positives stand out, also without colour.
    shade = "░█"[label] if n_classes == 2 else SHADES[label % len(SHADES)]
    return Text(shade * width, style=COLOURS[label % len(COLOURS)])
