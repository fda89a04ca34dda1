"""The stored results as a picture: a bar for each contestant, a panel for each network."""

from collections.abc import Iterator
from html import escape
from typing import Any

WIDTH, LABELS, BAR, GAP, PANEL = 760, 230, 18, 8, 62
ROOM = 150
"""Space right of the longest bar, for its numbers."""
OURS, PEERS, PLAIN, INK, FAINT = "#0072b2", "#d55e00", "#8a8a8a", "#1a1a1a", "#6b6b6b"
TITLES = {"lenet-5": "LeNet-5", "mlp": "MLP 784-200-200-10"}


def colour(row: dict[str, Any]) -> str:
    if row["peer"]:
        return PEERS
    return OURS if row["contestant"].startswith("fedsaddle") else PLAIN


def text(x: float, y: float, words: str, ink: str = INK, size: int = 13, **style: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}" fill="{ink}" font-size="{size}"{more}>{escape(words)}</text>'


def panel(network: str, rows: list[dict[str, Any]], limit: float, top: float) -> Iterator[str]:
    """One network's bars, fastest first, and the arithmetic limit as a line across them."""
    rows = sorted(rows, key=lambda row: row["median_ms"])
    scale = (WIDTH - LABELS - ROOM) / max(row["median_ms"] for row in rows)
    yield text(16, top + 24, TITLES.get(network, network), size=15, font_weight="600")
    first = top + PANEL - 16
    for place, row in enumerate(rows):
        y, length = first + place * (BAR + GAP), scale * row["median_ms"]
        least = LABELS + scale * row["minimum_ms"]
        middle = y + BAR / 2
        yield text(LABELS - 10, y + 14, row["contestant"], text_anchor="end")
        yield (
            f'<rect x="{LABELS}" y="{y:g}" width="{length:.1f}" height="{BAR}" rx="2" '
            f'fill="{colour(row)}"/>'
        )
        yield (
            f'<line x1="{least:.1f}" x2="{least:.1f}" y1="{middle - 6:g}" y2="{middle + 6:g}" '
            'stroke="white" stroke-width="2"/>'
        )
        numbers = f"{row['median_ms']:.0f} ms (at best {row['minimum_ms']:.0f})"
        yield text(LABELS + length + 8, y + 14, numbers, FAINT, 12)
    x, bottom = LABELS + scale * limit, first + len(rows) * (BAR + GAP)
    yield (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{first - 6:g}" y2="{bottom:g}" stroke="{INK}" '
        'stroke-dasharray="3 3"/>'
    )
    yield text(x + 4, first - 10, f"arithmetic limit {limit:.0f} ms", FAINT, 11)


def plot(result: dict[str, Any]) -> str:
    """The picture, as SVG."""
    parts, top = [], 58.0
    for network, limit in result["limit_ms"].items():
        rows = [row for row in result["results"] if row["network"] == network]
        rows = [row for row in rows if "median_ms" in row]
        if rows:
            parts += panel(network, rows, limit, top)
            top += PANEL + len(rows) * (BAR + GAP) + 10
    machine = f"{result['cpu']}, {result['cores']} cores, {result['date'][:10]}"
    height = top + 24
    key, x = [], 16.0
    for words, ink in (("fedsaddle", OURS), ("peers", PEERS), ("plain PyTorch loop", PLAIN)):
        key.append(f'<rect x="{x:g}" y="{height - 25:g}" width="12" height="12" fill="{ink}"/>')
        key.append(text(x + 18, height - 14, words, FAINT, 12))
        x += 40 + 7 * len(words)
    key.append(text(WIDTH - 16, height - 14, machine, FAINT, 12, text_anchor="end"))
    lines = "\n".join(
        [
            f'<rect width="{WIDTH}" height="{height:g}" fill="white"/>',
            text(16, 30, "Milliseconds a round of FedAvg", size=18, font_weight="600"),
            text(
                16, 50, "median of rounds taken in turns; the white mark is the best round", FAINT
            ),
            *parts,
            *key,
        ]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" font-family="system-ui, sans-serif" role="img" '
        f'aria-label="Milliseconds a round of FedAvg, by contestant">\n{lines}\n</svg>\n'
    )
