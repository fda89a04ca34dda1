"""The site's record of all that left it, one JSON object a line, written before it is sent."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError
from fedsaddle.flower.wire import Parcel

NAME = "egress.jsonl"


def record(state: Path, request: Parcel, reply: Parcel) -> None:
    """Note a reply that is about to be sent."""
    asked, told = request.header, dict(reply.header)
    entry: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "experiment": asked.get("experiment"),
        "run": asked.get("run"),
        "request": asked.get("kind"),
        "status": told.pop("status"),
        "bytes": len(json.dumps(reply.header)) + len(reply.payload),
    }
    entry |= {key: asked[key] for key in ("round", "phase", "split") if key in asked}
    if reply.payload:
        entry["vectors"] = reply.lengths()
    if told:
        entry["told"] = sorted(told)
    with (state / NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def entries(state: Path) -> Iterator[dict[str, Any]]:
    """The record of a site's state folder, oldest first."""
    path = state / NAME
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give the state folder of a site.")
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)
