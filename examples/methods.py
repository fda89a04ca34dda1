"""Every method with its defaults on bundled data: AUC, and what it sent.

Run: make docs. It writes docs/methods.md.
"""

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import DataOptions
from fedsaddle.problems import PROBLEMS

ROUNDS = 50
INTRODUCTION = f"""# Every method on one data set

Handwritten digits (comes with scikit-learn), 8 against the rest, 8 clients with Dirichlet(0.5)
labels, one linear layer, {ROUNDS} rounds, every client in every round, every setting at its
default, seed 0. The defaults are made to work, not tuned for this data set: the table shows that
each method trains and what it costs, not which is best. Made by `make docs`.
"""


def natural_problem(name: str) -> str:
    """AUC where the method solves it, else the first problem that it does."""
    solves = ALGORITHMS[name].solves
    return "auc" if "auc" in solves else next(p for p, c in PROBLEMS.items() if c.kind in solves)


def main() -> None:
    data = DataOptions(source="digits", positive="8")
    print(INTRODUCTION)
    print("| method | problem | test AUC | 95 % interval | worst site | MB sent |")
    print("|---|---|---|---|---|---|")
    for name in ALGORITHMS:
        problem = natural_problem(name)
        result = fedsaddle.train(problem, data, name, rounds=ROUNDS)
        summary, last = result.evaluation["summary"], result.history[-1]
        sent = (last["bytes_up"] + last["bytes_down"]) / 1e6
        interval = f"{summary['test/auc_low']:.3f} to {summary['test/auc_high']:.3f}"
        worst = f"{summary['test/worst_auc']:.3f}"
        cells = (name, problem, f"{summary['test/auc']:.4f}", interval, worst, f"{sent:.2f}")
        print("| " + " | ".join(cells) + " |", flush=True)
        if result.stopped:
            print(f"\n{name}: {result.stopped}\n")


if __name__ == "__main__":
    main()
