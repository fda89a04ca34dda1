"""The opening: what happened, in words and in numbers to remember; and runs side by side."""

from collections.abc import Sequence

from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.charts import colour
from fedsaddle.runs.report.markup import Html, anchor, join, note, swatch, table, tag
from fedsaddle.runs.report.reading import (
    Runs,
    clients,
    headline,
    last,
    named,
    one_class,
    rounds_done,
    rounds_planned,
    sent,
    setting,
    sites,
    stopped,
    summary,
    total,
    worst,
)
from fedsaddle.runs.report.words import (
    MISSING,
    bounds,
    duration,
    finite,
    interval,
    megabytes,
    method_name,
    number,
    plural,
    problem_name,
)


def opening(runs: Runs, titles: Sequence[str]) -> Html:
    """The title, warnings, what happened in plain words, and the numbers to remember."""
    several, (name, first) = len(runs) > 1, next(iter(runs.items()))
    every = runs.values()
    facts = {
        "Data": [run.data.get("source") or "" for run in every],
        "Classes": [", ".join(map(str, run.data.get("classes") or [])) for run in every],
        "Started": [str(run.environment.get("started") or "")[:10] for run in every],
    }
    known = {fact: "; ".join(dict.fromkeys(filter(None, found))) for fact, found in facts.items()}
    lines = [tag("li", tag("strong", label), ": ", sentence(run)) for label, run in runs.items()]
    gloss = note(
        "AUC is the chance that a positive case is ranked above a negative one: 1 is perfect, 0.5 "
        "is guessing. Intervals are 95 % confidence intervals."
    )
    return tag(
        "header",
        tag("p", "Federated training report", class_="kicker"),
        tag("h1", f"{len(runs)} runs compared" if several else name),
        tag("p", " · ".join(f"{k}: {v}" for k, v in known.items() if v), class_="facts"),
        *(banner(run, label if several else "") for label, run in runs.items() if stopped(run)),
        tag("ul", *lines, class_="lead") if several else tag("p", sentence(first), class_="lead"),
        None if several else cards(first),
        gloss if any({"auc", "mean_auc"} & {*summary(run)} for run in every) else None,
        tag("nav", *(tag("a", t, href=f"#{anchor(t)}") for t in titles), aria_label="Sections"),
    )


def banner(record: RunRecord, name: str) -> Html:
    """Why the run was stopped."""
    reason = stopped(record)
    head = f"{name} was stopped early" if name else "This run was stopped early"
    text = reason[:1].upper() + reason[1:]
    return tag("div", tag("strong", head), tag("p", text), class_="banner", role="alert")


def sentence(record: RunRecord) -> str:
    """What happened, in one sentence."""
    done, planned = rounds_done(record), rounds_planned(record)
    answered = {client for entry in record.ledger for client in entry["answered"]}
    able = [site for site in clients(record) if site.get("train_rows")]
    taking_part = len(able) or len(answered)
    who = plural(taking_part, "site") if taking_part else "The sites"
    method = setting(record, "algorithm", "name")
    trained = f"{who} trained one model for {plural(done, 'round')}"
    trained += f" with {method_name(str(method))}" if method else ""
    parts, early = [trained], planned is not None and done < planned
    if stopped(record):
        parts[0] += ", then the run was stopped"
        parts[0] += f" ({planned:g} were planned)" if early else ""
        kept = record.evaluation.get("round")
        parts += [f"the model of round {kept} was kept"] if kept is not None else []
    elif early:
        parts[0] += f" so far ({planned:g} are planned)"
    parts += quality(record)
    undefined = sum(map(one_class, sites(record).values()))
    if undefined:
        have, their = ("has", "its") if undefined == 1 else ("have", "their")
        parts.append(
            f"{plural(undefined, 'site')} {have} one class only and {their} AUC is undefined"
        )
    if sent(record) is not None:
        parts.append(f"{megabytes(sent(record))} were sent")
    return "; ".join(parts) + "."


def quality(record: RunRecord) -> list[str]:
    """How good the model is, for all test rows together and for the worst site."""
    found, metric = summary(record), headline(record)
    parts = []
    if metric == "auc":
        between = f" (95 % interval {bounds(found)})" if bounds(found) else ""
        parts.append(f"pooled test AUC {number(found['auc'])}{between}")
    elif metric == "mean_auc":
        parts.append(f"mean test AUC of the findings {number(found['mean_auc'])}")
    elif metric == "accuracy":
        parts.append(f"test accuracy {number(found['accuracy'])}")
    if worst_cell(record) != MISSING:
        parts.append(f"worst site {worst_cell(record)}")
    return parts


def worst_cell(record: RunRecord) -> str:
    site, value = worst(record)
    return MISSING if value is None else f"{site} {number(value)}".strip()


def cards(record: RunRecord) -> Html:
    """The numbers to remember, each with a remark."""
    found = summary(record)
    between = f"95 % interval {bounds(found)}" if bounds(found) else ""
    calibration = f"ECE {number(found['ece'])}" if finite(found.get("ece")) is not None else ""
    metric, (site, value) = headline(record), worst(record)
    least = ("Worst site’s " + ("AUC" if metric == "auc" else metric), number(value), site)
    accuracy = ("Test accuracy", number(found.get("accuracy")), calibration)
    at = record.evaluation.get("round")
    down, up = (megabytes(total(record, name)) for name in ("bytes_down", "bytes_up"))
    simulated = last(record, "simulated_seconds")
    entries = [
        ("Pooled test AUC", number(found.get("auc")), between),
        ("Mean test AUC", number(found.get("mean_auc")), "over the findings"),
        *((least, accuracy) if metric == "auc" else (accuracy, least)),
        ("Sent", megabytes(sent(record)), f"{down} to the sites, {up} back"),
        ("Rounds", f"{rounds_done(record):,}", f"test numbers of round {at}" if at else ""),
        (
            "Time",
            duration(last(record, "seconds")),
            "" if simulated is None else f"{duration(simulated)} in the simulated federation",
        ),
    ]
    boxes = (
        tag("div", tag("dt", label), tag("dd", value), tag("dd", remark, class_="remark"))
        for label, value, remark in entries
        if value != MISSING
    )
    return tag("dl", *boxes, class_="cards")


def comparison(runs: Runs) -> Html:
    """One row per run, without the columns of which no run knows anything."""
    every = runs.values()
    found = [summary(run) for run in every]
    swatches = (swatch(colour(i)) for i in range(len(runs)))
    metrics = {"Mean AUC": "mean_auc", "AUPRC": "average_precision"}
    metrics |= {"Accuracy": "accuracy", "ECE": "ece"}

    def worst_of(metric: str) -> list[str]:
        return [worst_cell(run) if headline(run) == metric else MISSING for run in every]

    columns: dict[str, list[str]] = {
        "Run": [join(pair) for pair in zip(swatches, runs, strict=True)],
        "Method": [method_name(named(run, "algorithm")) for run in every],
        "Problem": [problem_name(named(run, "problem")) for run in every],
        "Pooled AUC (95 % interval)": [interval(row) for row in found],
        "Worst site’s AUC": worst_of("auc"),
        **{head: [number(row.get(m)) for row in found] for head, m in metrics.items()},
        "Worst site’s accuracy": worst_of("accuracy"),
        "Sent": [megabytes(sent(run)) for run in every],
        "Simulated time": [duration(last(run, "simulated_seconds")) for run in every],
        "Rounds": [f"{rounds_done(run):,}" + " (stopped)" * bool(stopped(run)) for run in every],
    }
    told = {head: cells for head, cells in columns.items() if set(cells) != {MISSING}}
    return table("The runs on the test rows", [*told], zip(*told.values(), strict=True), text=2)
