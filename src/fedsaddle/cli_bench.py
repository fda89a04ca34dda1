"""`fedsaddle bench`: milliseconds a round, against a plain loop."""

import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsaddle.terminal import say, show, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table


def bench(
    networks: Annotated[
        list[str] | None, typer.Option(help="Which networks, with commas or several times.")
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option(help="Which methods, with commas or several times.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds measured of each; of short ones more.")
    ] = 9,
    workers: Annotated[
        int | None, typer.Option(min=1, help="The most worker processes (by default all cores).")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Measure compiled steps too.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny rounds: does it run? The numbers mean nothing.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Store the results in this JSON file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Measure rounds of the simulator against a plain PyTorch loop, taking turns.

    A round is 16 clients with 12 steps on batches of 10. By default FedAvg is measured on every
    network, and every method on LeNet-5; cdma-mnist is CDMA's own setting, 8 of 500 clients.

    Examples:

        fedsaddle bench

        fedsaddle bench --networks lenet-5,mlp --methods fedavg,codasca

        fedsaddle bench --methods cdma-mnist --rounds 30 --out cdma.json
    """
    from fedsaddle.bench import cases, measure, record
    from fedsaddle.bench.measure import runners
    from fedsaddle.runs.folder import disk_errors, write_json

    if out is not None:
        with disk_errors(str(out)):
            out.parent.mkdir(parents=True, exist_ok=True)
    chosen = cases(_listed(networks), _listed(methods), quick)
    options = runners(workers or os.cpu_count() or 1, compiled)
    groups = []
    with _progress(len(chosen), quiet=as_json) as begin:
        for case in chosen:
            groups.append(measure(case, rounds, options, begin(f"{case.network}, {case.method}")))
    result = record(groups, rounds)
    if out is not None:
        with disk_errors(str(out)):
            write_json(out, result)
    if as_json:
        say(result, "", True)
        return
    show(_times(result["results"]))
    show(_profiles(result["results"]))
    print(f"{result['cpu']}, {result['cores']} cores, load {result['load'][0]}, {result['date']}")


def _listed(given: list[str] | None) -> list[str]:
    return [name for part in given or [] for name in part.split(",") if name]


@contextmanager
def _progress(count: int, quiet: bool) -> "Iterator[Callable[[str], Callable[[str], None]]]":
    """Says on standard error what is being measured: a live line on a terminal, else one a case."""
    from rich.console import Console

    console, done = Console(stderr=True, quiet=quiet), 0

    def begin(title: str) -> Callable[[str], None]:
        nonlocal done
        done += 1
        text = f"{done}/{count} {title}"
        if not console.is_terminal:
            console.print(text, highlight=False)
        return lambda runner: status.update(f"{text}: {runner}")

    with console.status("") as status:
        yield begin


def _times(rows: list[dict[str, Any]]) -> "Table":
    times = table("network", "method", "runner", "median ms", "minimum ms", "× plain", "first s")
    for row in rows:
        times.add_row(
            row["network"],
            row["method"],
            row["runner"],
            f"{row['median_ms']:.1f}",
            f"{row['minimum_ms']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['first_ms'] / 1000:.1f}",
        )
    return times


def _profiles(rows: list[dict[str, Any]]) -> "Table":
    profiled = [row for row in rows if row["profile"]]
    parts = list(profiled[0]["profile"])
    shares = table("network", "method", "runner", *(f"{part} %" for part in parts))
    for row in profiled:
        cells = [f"{100 * row['profile'][part]:.1f}" for part in parts]
        shares.add_row(row["network"], row["method"], row["runner"], *cells)
    return shares
