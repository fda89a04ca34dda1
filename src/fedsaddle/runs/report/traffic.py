"""What was sent, what went wrong on the way, and who took part when."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby

from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.charts import chart, colour, dash, shown
from fedsaddle.runs.report.markup import Html, join, note, swatch, table, tag
from fedsaddle.runs.report.reading import (
    ANSWERED,
    NOT_SELECTED,
    Runs,
    client_name,
    clients,
    statuses,
)
from fedsaddle.runs.report.words import Row, distinct, megabytes, plural

STATUS = {
    "not selected": "rgba(128,140,150,0.16)",
    "answered": "#5aa9d6",
    "selected, no answer": "#e69f00",
    "refused": "#a3241a",
}
MOST_CLIENTS, MOST_ROUNDS, MOST_INCIDENTS = 64, 2000, 200


def communication(runs: Runs) -> Html:
    """What was sent, phase by phase; and replies that were refused, phases that were repeated."""
    rows, traces, events = [], [], []
    for i, (name, run) in enumerate(runs.items()):
        prefix = f"{name}: " if len(runs) > 1 else ""
        phases = dict.fromkeys(entry["phase"] for entry in run.ledger)
        parts = {p: [entry for entry in run.ledger if entry["phase"] == p] for p in phases}
        rows += [bill(f"{prefix}{phase}", entries) for phase, entries in parts.items()]
        rows += [bill(f"{prefix}total", run.ledger)] if len(parts) > 1 else []
        traces += sent_by_round(run, name, i, len(runs) > 1) if run.ledger else []
        events += [[prefix + event[0], *event[1:]] for event in incidents(run)]
    if not rows:
        return note("No messages have been recorded.")
    header = ["Phase", "Requests", "Floats to sites", "Floats back", "To sites", "Back", "Both"]
    what = ["Round", "Phase", "What", "Site", "Reason"]
    caption, listed = "Refused replies and repeated phases", events[:MOST_INCIDENTS]
    hidden = len(events) - len(listed)
    return join(
        [
            table("What was sent, by phase", header, rows),
            chart("Megabytes sent, cumulative", traces, legend=True),
            table(caption, what, listed, text=4)
            if events
            else note("No reply was refused and no phase had to be repeated."),
            note(f"{plural(hidden, 'further incident')} not listed.") if hidden else None,
        ]
    )


def bill(label: str, entries: Sequence[Row]) -> list[str]:
    names = ("floats_down", "floats_up", "bytes_down", "bytes_up")
    floats_down, floats_up, down, up = (sum(e.get(name, 0) for e in entries) for name in names)
    counts = (sum(len(e["selected"]) for e in entries), floats_down, floats_up)
    return [label, *(f"{c:,}" for c in counts), *map(megabytes, (down, up, down + up))]


def sent_by_round(record: RunRecord, name: str, index: int, several: bool) -> list[Row]:
    """Cumulative megabytes: of one run in both directions, of several the sum."""
    rounds = {r: list(e) for r, e in groupby(record.ledger, lambda entry: entry["round"])}
    ways = {"To the sites": ("bytes_down",), "Back": ("bytes_up",)}
    chosen = {name: ("bytes_down", "bytes_up")} if several else ways
    traces = []
    for i, (way, names) in enumerate(chosen.items()):
        steps = (sum(e.get(n, 0) for e in entries for n in names) for entries in rounds.values())
        y = [amount / 1e6 for amount in accumulate(steps)]
        label = f"{way}: {y[-1]:.3g} MB at the end"
        style = {"colour": colour(index + i), "dash": dash(i), "lines": True}
        traces.append({"name": way, "x": [*rounds], "y": y, "label": label} | style)
    return traces


def incidents(record: RunRecord) -> list[list[str]]:
    """Refusals and repetitions in order: round, phase, what, site, reason.

    On a real network also the sites that did not answer; in a simulation they were not meant to.
    """
    real = record.config.get("engine", {}).get("name") == "flower"
    events: list[list[str]] = []
    before: Row = {}
    for entry in record.ledger:
        where = [str(entry["round"]), entry["phase"]]
        if entry["attempt"]:
            good = len(before["answered"]) - len(before["refused"])
            reason = f"only {good} of {len(before['selected'])} replies were usable before"
            events.append([*where, f"repeated, attempt {entry['attempt'] + 1}", "all", reason])
        for client in sorted({*entry["selected"]} - {*entry["answered"]}) if real else ():
            events.append([*where, "no reply", client_name(record, client), ""])
        for client, reason in entry["refused"].items():
            events.append([*where, "reply refused", client_name(record, int(client)), reason])
        before = entry
    return events


def participation(runs: Runs) -> Html:
    """Who took part when: every client in every round, or in numbers when these are too many."""
    parts: list[Html] = []
    for name, run in runs.items():
        parts += [tag("h3", name)] if len(runs) > 1 else []
        n_clients = max((c + 1 for entry in run.ledger for c in entry["selected"]), default=0)
        n_clients = max(n_clients, len(clients(run)))
        if not run.ledger:
            parts.append(note("No round has been recorded."))
        elif n_clients <= MOST_CLIENTS and run.ledger[-1]["round"] <= MOST_ROUNDS:
            parts.append(heat_map(run, n_clients))
        else:
            parts.append(frequencies(run))
    return join(parts)


def heat_map(record: RunRecord, n_clients: int) -> Html:
    """Every client in every round."""
    rounds = dict(statuses(record))
    names = distinct(shown(client_name(record, client)) for client in range(n_clients))
    grid = [[rounds[r].get(client, NOT_SELECTED) for r in rounds] for client in range(n_clients)]
    part = sum(status == ANSWERED for row in grid for status in row) / (n_clients * len(rounds))
    trace = {"kind": "heatmap", "x": [*rounds], "y": names, "z": grid, "words": [*STATUS]}
    trace |= {"colours": [*STATUS.values()], "label": f"answered: {part:.0%} of all cells"}
    words = (tag("li", swatch(ink), word) for word, ink in STATUS.items())
    return join(
        [
            tag("ul", *words, class_="key"),
            chart("Sites by round", [trace], height=90 + max(20 * n_clients, 80)),
            note("A cell shows the worst that happened to a site in any phase of the round."),
        ]
    )


def frequencies(record: RunRecord) -> Html:
    """How many clients answered in each round, and how often each client did."""
    per_round: dict[int, int] = {}
    often = Counter(dict.fromkeys(range(len(clients(record))), 0))
    for at, status in statuses(record):
        answered = [client for client, what in status.items() if what == ANSWERED]
        per_round[at] = len(answered)
        often.update(answered)
    times = sorted(Counter(often.values()).items())
    middle = sum(per_round.values()) / len(per_round)
    line = {"x": [*per_round], "y": [*per_round.values()], "label": f"mean {middle:.1f}"}
    bars = {"x": [t for t, _ in times], "y": [n for _, n in times], "kind": "bar"}
    style = {"colour": colour(0)}
    figures = (
        chart("Sites that answered, by round", [line | style]),
        chart("How often a site answered", [bars | style], "Rounds", y_title="Sites"),
    )
    return tag("div", *figures, class_="grid")
