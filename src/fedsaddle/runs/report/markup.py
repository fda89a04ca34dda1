"""HTML of which all text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """Markup. Any other string is text, and is escaped when it is put into markup."""


def join(parts: Iterable[Any]) -> Html:
    """Parts one after the other: markup as it is, all else escaped, None left out."""
    given = (part for part in parts if part is not None)
    return Html("".join(p if isinstance(p, Html) else escape(str(p)) for p in given))


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """An element; the attribute `class_` is written class, `aria_label` aria-label.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    written = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    given = "".join(
        f' {key}="{escape(str(value))}"' for key, value in written.items() if value != ""
    )
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def note(text: str) -> Html:
    return tag("p", text, class_="note")


def swatch(colour: str) -> Html:
    return tag("i", class_="swatch", style=f"background:{colour}")


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def table(
    caption: str, header: Sequence[Any], rows: Iterable[Sequence[Any]], text: int = 0
) -> Html:
    """A table that scrolls by itself when it is wide; `text` columns after the first hold words."""

    def cells(name: str, scope: str, row: Sequence[Any]) -> Html:
        given = {"scope": scope} if name == "th" else {}
        rest = (tag(name, c, class_="text" * (i < text), **given) for i, c in enumerate(row[1:]))
        return tag("tr", tag("th", row[0], scope=scope), *rest)

    inside = tag(
        "table",
        tag("caption", caption),
        tag("thead", cells("th", "col", header)),
        tag("tbody", *(cells("td", "row", row) for row in rows)),
    )
    return tag("div", inside, class_="scroll", tabindex=0, role="region", aria_label=caption)
