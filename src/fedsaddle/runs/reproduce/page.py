"""A reproduction as an HTML page, and all stored ones as docs/results.md."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError
from fedsaddle.runs.compare import Summary
from fedsaddle.runs.report.markup import Html, join, note, table, tag
from fedsaddle.runs.report.words import duration
from fedsaddle.runs.reproduce.claims import WORDS
from fedsaddle.runs.reproduce.outcomes import said

Row = dict[str, Any]

INTRODUCTION = """# The papers' results, rerun

Every figure and table below is one command, `fedsaddle reproduce NAME --scale SCALE`. `quick` shows
in minutes that everything runs, `cpu` is an honest reduced version, `paper` is the full setting;
`fedsaddle reproduce --list` names all experiments. The settings, the claims in our words and the
rules that check them are in `experiments/NAME.toml`.

A difference counts when its 95 % interval over at least three seeds (Student's t, paired by seed)
lies on one side of zero. A claim is **reproduced** when every comparison that it makes comes out as
it says, **not reproduced** when at least one comes out the other way, **undecided** when the seeds
do not tell, and **out of reach** when it was not tried, with the reason. In figures a line is the
mean over seeds and its band goes from the smallest to the largest.

This page is made by `make docs` from the files in `experiments/results/`; nothing in it is typed by
hand."""


def render(result: Row, figure: str) -> str:
    """The page of one reproduction: claims, figure, numbers, settings."""
    style = files("fedsaddle.runs.report").joinpath("report.css").read_text(encoding="utf-8")
    claims = [[c["text"], c["paper"], c["ours"], c["verdict"]] for c in result["claims"]]
    header = ["Claim", "Paper", "Ours", "Verdict"]
    body = join(
        [
            tag("h1", result["title"]),
            tag("p", result["paper"], class_="lead"),
            note(f"Scale {result['scale']}. {result['reduced']}"),
            tag("section", tag("h2", "Claims"), table("What the paper says", header, claims, 3)),
            tag("section", tag("h2", "Figure"), Html(figure)),
            tag("section", tag("h2", "Numbers"), _numbers(result)),
            tag("section", tag("h2", "How it was run"), note(result["notes"]), *_facts(result)),
        ]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{tag("title", result["title"])}
<link rel="icon" href="data:,">
<style>{style}
figure, svg {{ max-width: 100%; height: auto; }}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _facts(result: Row) -> list[Html]:
    return [tag("p", tag("code", result["command"])), note(how(result))]


def how(result: Row) -> str:
    """Seeds, data, machine and time in one sentence each."""
    machine, data, seeds = result["machine"], result["data"], result["seeds"]
    return (
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))}); "
        f"{data['source']}, {data['training_rows']:,} training rows of {data['clients']} clients "
        f"and {data['test_rows']:,} test rows. Run on {result['date']} with {machine['cores']} "
        f"cores of {machine['cpu']} ({machine['system']}; Python {machine['python']}, "
        f"torch {machine['torch']}, fedsaddle {machine['fedsaddle']}); the runs' times, "
        f"{machine['cores']} at once, add up to {duration(result['seconds_of_runs'])}."
    )


def _ends(result: Row) -> list[tuple[str, str, str]]:
    """What is shown of each entrant: a metric, at the end or its best, and the column's title."""
    when = (
        "best" if any(p["metric"].endswith("inception_score") for p in result["panels"]) else "end"
    )
    words = {"end": "at the end", "best": "best"}
    return [(p["metric"], when, f"{p['title']}, {words[when]}") for p in result["panels"]]


def _cells(result: Row) -> Iterable[list[str]]:
    for entrant in result["entrants"]:
        numbers = []
        for metric, when, _ in _ends(result):
            found = entrant["metrics"][metric][when]
            mean, low, high = (found[key] for key in ("mean", "low", "high"))
            numbers.append(said(Summary(mean, low, high, None, len(found["seeds"]))))
        gone = entrant["diverged"]
        if gone:
            numbers[0] += (
                f" (diverged with seed{'s' * (len(gone) > 1)} {', '.join(map(str, gone))})"
            )
        yield [entrant["label"], f"{entrant['rounds']:,}", f"{entrant['floats_up']:,}", *numbers]


def _header(result: Row) -> list[str]:
    return ["Method", "Rounds", "Floats received", *(title for *_, title in _ends(result))]


def _numbers(result: Row) -> Html:
    return table("Means over seeds, with 95 % intervals", _header(result), _cells(result))


def read_results(folder: Path) -> list[Row]:
    """The stored results, in the order of their names."""
    found = []
    for path in sorted(folder.glob("*/result.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise UserError(f"{path}: not a result file ({error}).") from None
    return found


def results_page(results: Sequence[Row], known: Sequence[str], folder: str) -> str:
    """docs/results.md: every stored result, and the experiments without one.

    known: the names of all experiments. folder: where the figures are, seen from the page.
    """
    parts = [INTRODUCTION, "## At a glance\n\n" + _markdown(_glance_header(), _glance(results))]
    for result in results:
        parts += _section(result, folder)
    without = [name for name in known if name not in {result["name"] for result in results}]
    if without:
        listed = "\n".join(f"- `fedsaddle reproduce {name} --scale cpu`" for name in without)
        parts.append(f"## Not run yet\n\nNo result of these is stored:\n\n{listed}")
    return "\n\n".join(parts) + "\n"


def _glance_header() -> list[str]:
    return ["experiment", "scale", "seeds", *WORDS]


def _glance(results: Iterable[Row]) -> Iterable[list[str]]:
    for result in results:
        words = Counter(claim["verdict"] for claim in result["claims"])
        counts = (str(words[word] or "") for word in WORDS)
        link = f"[{result['name']}](#{result['name']}-{result['scale']})"
        yield [link, result["scale"], str(len(result["seeds"])), *counts]


def _section(result: Row, folder: str) -> list[str]:
    name = f"{result['name']}-{result['scale']}"
    claims = ([c["text"], c["paper"], c["ours"], f"**{c['verdict']}**"] for c in result["claims"])
    return [
        f'<a id="{name}"></a>\n\n## {result["title"]}',
        f"{result['paper']}.",
        f"```\n{result['command']}\n```",
        f"Reduced: {result['reduced']} {how(result)}",
        _markdown(["claim", "paper", "ours", "verdict"], claims),
        f"![{result['title']}]({folder}/{name}/figure.svg)",
        _markdown(
            [word.lower() if k else word for k, word in enumerate(_header(result))], _cells(result)
        ),
        result["notes"],
    ]


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)
