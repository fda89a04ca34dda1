"""What the commands print: tables, numbers, JSON."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def table(*columns: str, title: str | None = None) -> "Table":
    """An empty table with these columns."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(shown: "Table") -> None:
    """Print a table, as wide as the terminal, or 140 columns into a file."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=140)).print(shown)


def number(value: Any) -> str:
    """A number for a table's cell.

    >>> number(0.25), number(3), number(None)
    ('0.2500', '3', '-')
    """
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def say(value: Any, text: str, as_json: bool) -> None:
    """Print the value as one JSON object, or the text."""
    print(json.dumps(value) if as_json else text)
