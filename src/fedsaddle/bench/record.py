"""What is stored of a measurement, so that a number can be traced to a day and a machine."""

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsaddle.bench.measure import PLAIN, Measured


def processor() -> str:
    """The processor's name, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe_machine() -> dict[str, Any]:
    """Date, versions, processor and load."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("fedsaddle", "torch", "numpy")},
        },
        "cpu": processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def record(measured: Iterable[list[Measured]], rounds: int) -> dict[str, Any]:
    """Everything about a run of the benchmark, case by case."""
    rows = []
    for group in measured:
        base = next(line.median for line in group if line.runner == PLAIN)
        rows += [line.row(base) for line in group]
    return describe_machine() | {"rounds": rounds, "results": rows}
