"""What a generator makes up, as the run kept it."""

from html import escape

from fedsaddle.runs.report.markup import Html, join, note, tag
from fedsaddle.runs.report.reading import Runs

PNG = "data:image/png;base64,"


def samples(runs: Runs) -> Html | None:
    """A picture per run that has one: rows that its final model generated."""
    kept = {label: str(run.evaluation.get("samples")) for label, run in runs.items()}
    figures = [picture(label, uri) for label, uri in kept.items() if uri.startswith(PNG)]
    if not figures:
        return None
    text = "Made up by the trained generator, from the same noise in every run: no one’s data."
    return join([note(text), *figures])


def picture(label: str, uri: str) -> Html:
    style = "width:min(100%,32rem);image-rendering:pixelated"
    alt = f"Generated samples of {label}"
    image = Html(f'<img src="{escape(uri)}" alt="{escape(alt)}" style="{style}">')
    return tag("figure", tag("figcaption", label), image)
