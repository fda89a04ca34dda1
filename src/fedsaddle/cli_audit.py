"""`fedsaddle audit`: what left a site."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsaddle.terminal import say, show, table


def audit(
    state: Annotated[Path, typer.Argument(help="The state folder of a site.", metavar="STATE")],
    every: Annotated[bool, typer.Option("--all", help="Every reply, not one line a kind.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Show what a site has sent: which vectors, how many bytes, when, in which run.

    Examples:

        fedsaddle audit /var/lib/fedsaddle

        fedsaddle audit /var/lib/fedsaddle --all
    """
    from fedsaddle.flower.egress import entries

    sent = list(entries(state))
    if as_json:
        say({"replies": sent}, "", True)
        return
    lines = sent if every else _by_kind(sent)
    shown = table("last sent", "experiment", "request", "replies", "what", "bytes")
    for line in lines:
        when = line["time"]
        shown.add_row(
            when,
            (line["experiment"] or "-")[:8],
            _request(line),
            str(line.get("replies", 1)),
            _contents(line),
            f"{line['bytes']:,}",
        )
    show(shown)
    print(f"{len(sent)} replies, {sum(entry['bytes'] for entry in sent):,} bytes in all")


def _by_kind(sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for all replies of a kind in an experiment."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in sent:
        key = (entry["experiment"], entry["request"], entry.get("phase"), entry["status"])
        line = lines.setdefault(key, {**entry, "replies": 0, "bytes": 0})
        line["replies"] += 1
        line["bytes"] += entry["bytes"]
        line["time"] = entry["time"]
    return list(lines.values())


def _request(line: dict[str, Any]) -> str:
    phase = f" {line['phase']}" if "phase" in line else ""
    answered = "" if line["status"] == "ok" else f" ({line['status']})"
    return f"{line['request']}{phase}{answered}"


def _contents(line: dict[str, Any]) -> str:
    vectors = [f"{name} {length}" for name, length in sorted(line.get("vectors", {}).items())]
    return ", ".join([*line.get("told", ()), *vectors])
