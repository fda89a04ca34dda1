"""What a record says: the figures that the sections share."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.words import MISSING, Row, column, finite

Runs = Mapping[str, RunRecord]

NOT_SELECTED, ANSWERED, SILENT, REFUSED = range(4)


def setting(record: RunRecord, section: str, name: str) -> Any:
    values = record.config.get(section)
    return values.get(name) if isinstance(values, dict) else None


def named(record: RunRecord, section: str) -> str:
    return str(setting(record, section, "name") or MISSING)


# How it went


def rounds_done(record: RunRecord) -> int:
    return max((row["round"] for row in (*record.history, *record.ledger)), default=0)


def rounds_planned(record: RunRecord) -> float | None:
    return finite(setting(record, "run", "rounds"))


def stopped(record: RunRecord) -> str:
    """Why the run ended before its last round, or nothing."""
    return str(record.evaluation.get("stopped") or "")


def last(record: RunRecord, name: str) -> float | None:
    """The last known value in the history."""
    return next((v for v in reversed(column(record.history, name)) if v is not None), None)


def measured(runs: Runs) -> set[str]:
    """The metrics of which some run has a number."""
    rows = (row for run in runs.values() for row in run.history)
    return {name for row in rows for name, value in row.items() if finite(value) is not None}


# How good the model is


def summary(record: RunRecord) -> Row:
    """The test metrics of the returned model, or else of the last round that has any."""
    tested = [row for row in record.history if any(name.startswith("test/") for name in row)]
    found = record.evaluation.get("summary") or (tested[-1] if tested else {})
    return {name.removeprefix("test/"): value for name, value in found.items()}


def headline(record: RunRecord) -> str:
    """The metric that judges the model: an auc, or else accuracy, or else nothing."""
    found = summary(record)
    metrics = ("auc", "mean_auc", "accuracy")
    return next((m for m in metrics if finite(found.get(m)) is not None), "")


def worst(record: RunRecord) -> tuple[str, float | None]:
    """The worst site (where its name is known) and its value of the headline."""
    found, metric = summary(record), headline(record)
    value = finite(found.get(f"worst_{metric}"))
    if metric == "auc":
        return str(found.get("worst_site") or ""), value
    listed = record.evaluation.get("sites") or []
    names = (site["name"] for site in listed if site.get(metric) == value)
    return ("" if value is None else str(next(names, ""))), value


# What was sent


def total(record: RunRecord, *names: str) -> float | None:
    """What was sent in all, by the ledger, or else by the history's running totals."""
    if record.ledger:
        return float(sum(entry.get(name, 0) for entry in record.ledger for name in names))
    found = [last(record, name) for name in names]
    return None if None in found else sum(value or 0 for value in found)


def sent(record: RunRecord) -> float | None:
    return total(record, "bytes_up", "bytes_down")


# Who took part


def clients(record: RunRecord) -> list[Row]:
    return list(record.data.get("clients") or [])


def client_name(record: RunRecord, client: int) -> str:
    known = clients(record)
    return str(known[client]["name"]) if client < len(known) else f"client {client}"


def sites(record: RunRecord) -> dict[str, Row]:
    """Per site what the data say and what the evaluation found."""
    merged = {str(row["name"]): {"rows": row.get("test_rows")} | row for row in clients(record)}
    for site in record.evaluation.get("sites") or []:
        merged.setdefault(str(site["name"]), {}).update(site)
    return merged


def one_class(site: Row) -> bool:
    return bool(site.get("rows")) and 0 in (site.get("n_positive"), site.get("n_negative"))


def statuses(record: RunRecord) -> Iterator[tuple[int, dict[int, int]]]:
    """Round by round, the worst that happened to each client that was selected."""
    for at, entries in groupby(record.ledger, lambda entry: entry["round"]):
        status: dict[int, int] = {}
        for entry in entries:
            answered, refused = set(entry["answered"]), {int(client) for client in entry["refused"]}
            for client in entry["selected"]:
                now = REFUSED if client in refused else ANSWERED if client in answered else SILENT
                status[client] = max(now, status.get(client, NOT_SELECTED))
        yield at, status
