"""The files that a comparison leaves beside its runs."""

from pathlib import Path

from fedsaddle.runs.compare import tables
from fedsaddle.runs.compare.comparison import Comparison, run_folder
from fedsaddle.runs.compare.tables import Findings
from fedsaddle.runs.config import read, resolve, write_commented
from fedsaddle.runs.folder import atomic, disk_errors, write_json, write_text
from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.charts import colour
from fedsaddle.runs.report.curves import curves
from fedsaddle.runs.report.markup import Html, anchor, join, note, swatch, table, tag
from fedsaddle.runs.report.page import document
from fedsaddle.runs.report.settings import configuration


def write_results(comparison: Comparison, metric: str, higher: bool) -> Findings:
    """Tables, report and settings, in the comparison's folder."""
    out, found = comparison.out, tables.findings(comparison, metric, higher)
    with disk_errors(str(out)):
        write_text(out / "comparison.csv", tables.as_csv(found))
        write_text(out / "comparison.md", tables.as_markdown(found))
        write_text(out / "comparison.tex", tables.as_latex(found))
        write_json(out / "comparison.json", tables.as_json(found))
        write_report(comparison, found, out / "report.html")
        for label in comparison.labels:
            settings = read(run_folder(out, label, comparison.seeds[0]) / "config.toml")
            settings["engine"].pop("workers")  # one, since others ran beside it
            write_text(out / "best" / f"{label}.toml", write_commented(resolve(settings)))
    return found


def write_report(comparison: Comparison, found: Findings, path: Path) -> None:
    """The HTML report: the table, mean curves with bands, differences, settings."""
    records = {label: _mean_record(comparison, label) for label in comparison.labels}
    sections = {
        "Result": _result(found),
        "Learning curves": join([_about_curves(found), curves(records, bands=True)]),
        "Differences": _differences(found),
        "Configuration": configuration(records),
    }
    first = comparison.records[comparison.labels[0]][comparison.seeds[0]]
    facts = f"Data: {first.data.get('source', '')} · Seeds: {', '.join(map(str, found.seeds))}"
    header = tag(
        "header",
        tag("p", "Federated methods compared", class_="kicker"),
        tag("h1", f"{len(records)} entrants, {len(found.seeds)} seeds"),
        tag("p", facts, class_="facts"),
        tag("p", tables.caption(found), class_="lead"),
        *(tag("div", tag("p", text), class_="banner", role="alert") for text in found.notes),
        tag("nav", *(tag("a", t, href=f"#{anchor(t)}") for t in sections), aria_label="Sections"),
    )
    title = "comparison of " + ", ".join(records)
    with atomic(path) as temporary:
        temporary.write_text(document(title, header, sections), encoding="utf-8")


def _mean_record(comparison: Comparison, label: str) -> RunRecord:
    """An entrant's runs as one: the means over the seeds, and the settings of the first."""
    first = comparison.records[label][comparison.seeds[0]]
    config = {section: dict(values) for section, values in first.config.items()}
    config["run"].pop("seed", None)
    return RunRecord(label, config, history=comparison.over_seeds(label))


def _about_curves(found: Findings) -> Html:
    text = f"Lines are means over {len(found.seeds)} seeds, bands 95 % t-intervals of the mean. "
    text += "A run that was stopped counts on with the model that it kept."
    if len({line.problem for line in found.lines}) > 1:
        text += " The training objectives of different problems cannot be compared."
    return note(text)


def _result(found: Findings) -> Html:
    told = tables.columns(found)
    names = [join([swatch(colour(i)), name]) for i, name in enumerate(told["method"])]
    rows = zip(*(told | {"method": names}).values(), strict=True)
    return table("The returned models", [*told], rows, text=1)


def _differences(found: Findings) -> Html:
    if not found.differences:
        return note("There is one entrant only.")
    told = tables.difference_columns(found)
    about = note(
        "Each pair is compared seed by seed. The p-value says how often a difference as large "
        "would come about by chance if the two were alike; Holm's correction accounts for the "
        "number of pairs. Significant: the corrected p-value of the t-test is below 0.05."
    )
    rows = zip(*told.values(), strict=True)
    return join([about, table("Differences, paired by seed", [*told], rows)])
