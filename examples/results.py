"""docs/results.md from the stored results of reproductions.

Run: make docs. A result is stored by fedsaddle reproduce NAME --scale cpu with the option
--store experiments/results.
"""

from pathlib import Path

from fedsaddle.runs.reproduce import experiment_names
from fedsaddle.runs.reproduce.page import read_results, results_page

STORED = Path(__file__).parents[1] / "experiments" / "results"


def main() -> None:
    page = results_page(read_results(STORED), experiment_names(), "../experiments/results")
    print(page, end="")


if __name__ == "__main__":
    main()
