"""Where each row may have several findings: how well each is ranked, at every site."""

from collections.abc import Iterable

from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.markup import Html, join, note, table, tag
from fedsaddle.runs.report.reading import Runs, sites, summary
from fedsaddle.runs.report.words import MISSING, Row, bounds, finite, number, plural

MOST_SITES = 200
COUNTS = ("n_positive", "n_negative")


def finding_tables(runs: Runs) -> Html | None:
    """A table per run: AUC by site and finding, on darker ground where it is higher."""
    tables = [
        finding_table(found, summary(run), f", {label}" if len(runs) > 1 else "")
        for label, run in runs.items()
        if (found := site_findings(run))
    ]
    if not tables:
        return None
    return join(
        [
            note(
                "The darker the ground, the nearer to 1. Below it stand positive and negative test "
                f"rows, of those whose label is known; {MISSING} is undefined: there is one class."
            ),
            *tables,
        ]
    )


def site_findings(run: RunRecord) -> dict[str, dict[str, Row]]:
    """For each site that has been evaluated its findings."""
    return {name: site["findings"] for name, site in sites(run).items() if site.get("findings")}


def finding_table(found: dict[str, dict[str, Row]], pooled: Row, which: str) -> Html:
    names = list(dict.fromkeys(name for site in found.values() for name in site))
    everywhere = {
        name: everyone(pooled, name, (site.get(name, {}) for site in found.values()))
        for name in names
    }
    listed = {"All sites": everywhere} | dict(list(found.items())[:MOST_SITES])
    rows = [[site, *(cell(of.get(name, {})) for name in names)] for site, of in listed.items()]
    left = len(found) - MOST_SITES
    return join(
        [
            table(f"Test AUC by site and finding{which}", ["Site", *names], rows),
            note(f"{plural(left, 'further site')} not shown.") if left > 0 else None,
        ]
    )


def everyone(pooled: Row, name: str, of_sites: Iterable[Row]) -> Row:
    """A finding over all sites: the pooled AUC, and the sums of the counts."""
    known = list(of_sites)
    totals = {count: sum(finite(row.get(count)) or 0 for row in known) for count in COUNTS}
    return totals | {f"auc{end}": pooled.get(f"auc_{name}{end}") for end in ("", "_low", "_high")}


def cell(finding: Row) -> Html:
    """An AUC on a ground that shows it, over the two counts; its interval on hovering."""
    value = finite(finding.get("auc"))
    counts = " / ".join(number(finding.get(count), ",.0f") for count in COUNTS)
    share = 0.0 if value is None else max(0.0, 2 * value - 1)  # 0.5 is chance
    return tag(
        "span",
        number(value),
        tag("span", counts, class_="quiet"),
        class_="heat",
        style=f"--share:{50 * share:.0f}%",
        title=bounds(finding),
    )
