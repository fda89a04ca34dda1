"""The document: which sections there are, in which order, and the file they are written to."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from fedsaddle.errors import UserError
from fedsaddle.runs.folder import atomic
from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.curves import curves, weights
from fedsaddle.runs.report.findings import finding_tables
from fedsaddle.runs.report.markup import Html, anchor, join, tag
from fedsaddle.runs.report.overview import comparison, opening
from fedsaddle.runs.report.samples import samples
from fedsaddle.runs.report.settings import configuration
from fedsaddle.runs.report.sites import discrimination, site_table
from fedsaddle.runs.report.traffic import communication, participation
from fedsaddle.runs.report.words import distinct


def write_report(records: Sequence[RunRecord], path: Path) -> Path:
    """Write the report of `records` to `path`, whole or not at all."""
    text = render_report(records)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render_report(records: Sequence[RunRecord]) -> str:
    """The report of `records` as one self-contained HTML document."""
    if not records:
        raise UserError("a report needs at least one run; none was given.")
    runs = dict(zip(distinct(record.name for record in records), records, strict=True))
    parts = {
        "Comparison": comparison(runs) if len(runs) > 1 else None,
        "Learning curves": curves(runs),
        "Weights": weights(runs),
        "Sites": site_table(runs),
        "Findings": finding_tables(runs),
        "Discrimination and calibration": discrimination(runs),
        "Generated samples": samples(runs),
        "Communication": communication(runs),
        "Participation": participation(runs),
        "Configuration": configuration(runs),
    }
    sections = {title: content for title, content in parts.items() if content}
    return document(", ".join(runs), opening(runs, list(sections)), sections)


def document(title: str, header: Html, sections: Mapping[str, Html]) -> str:
    """One self-contained HTML document: a header, and sections under their titles."""
    from plotly.offline import get_plotlyjs

    own = files("fedsaddle.runs.report")
    # The policy makes the promise binding: the browser refuses to fetch anything.
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{tag("title", "fedsaddle: " + title)}
<link rel="icon" href="data:,">
<style>{own.joinpath("report.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
{header}
{join(tag("section", tag("h2", t), part, id=anchor(t)) for t, part in sections.items())}
</main>
<noscript>The charts need JavaScript; the tables do not.</noscript>
<script>{get_plotlyjs()}</script>
<script>{own.joinpath("report.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""
