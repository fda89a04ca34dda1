"""Five sites with tumour data: alone, federated by three methods, and pooled. Run: make demo."""

import shutil
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import fedsaddle
from fedsaddle.algorithms import CODASCA, CODAPlus, FedAvg
from fedsaddle.data import DataOptions, load
from fedsaddle.runs.progress import watch
from fedsaddle.runs.report import write_report

OUT = Path("runs/demo")
ROUNDS = 60
SITES = 5


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    data = load(DataOptions(source="breast-cancer", clients=SITES, alpha=0.5), seed=0)
    fedavg = FedAvg(learning_rate=0.3)
    coda_plus = CODAPlus(learning_rate=1.0, stage_rounds=20)
    codasca = CODASCA(learning_rate=1.0, stage_rounds=20)
    plans = {
        **{
            f"{name} alone": ("auc", data.only(name), codasca)
            for client, name in enumerate(data.names)
            if len(set(data.labels[data.train[client]].tolist())) == 2
        },
        "FedAvg, cross-entropy": ("risk", data, fedavg),
        "CODA+, AUC": ("auc", data, coda_plus),
        "CODASCA, AUC": ("auc", data, codasca),
        "all data pooled, AUC": ("auc", data.pooled(), codasca),
    }
    results = {}
    for title, (problem, rows, method) in plans.items():
        print(title, file=sys.stderr)
        folder = OUT / title.lower().replace(", ", "-").replace(" ", "-").replace("+", "-plus")
        results[title] = fedsaddle.train(
            problem, rows, method, rounds=ROUNDS, out=folder, observer=watch()
        )

    title = f"Breast tumours at {SITES} sites, {ROUNDS} rounds: pooled test AUC"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("", "AUC", "95 % interval", "worst site", "MB sent"):
        table.add_column(column, no_wrap=True)
    for title, result in results.items():
        summary, last = result.evaluation["summary"], result.history[-1]
        federated = "alone" not in title and "pooled" not in title
        sent = f"{(last['bytes_up'] + last['bytes_down']) / 1e6:.3f}" if federated else "-"
        table.add_row(
            title,
            f"{summary['test/auc']:.4f}",
            f"{summary['test/auc_low']:.3f} to {summary['test/auc_high']:.3f}",
            f"{summary['test/worst_auc']:.3f} ({summary['test/worst_site']})",
            sent,
        )
    Console().print(table)
    entropy, best = (
        results[title].evaluation["summary"] for title in ("FedAvg, cross-entropy", "CODASCA, AUC")
    )
    gap = entropy["test/auc"] - best["test/auc"]
    if entropy["test/auc"] < best["test/auc_low"]:
        print("Maximising AUC ranks better than cross-entropy here.")
    else:
        print(f"On these data cross-entropy is as good as maximising AUC ({gap:+.4f}).")
    federated = [result for title, result in results.items() if "," in title]
    print(f"report: {write_report([result.record for result in federated], OUT / 'report.html')}")


if __name__ == "__main__":
    main()
