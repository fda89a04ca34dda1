"""Comparisons: several methods on the same data, seeds and budget, and what can be said of them.

entrants    who takes part, with which settings
budget      how many rounds a number of megabytes pays for
processes   several runs at once
execution   `compare`: every entrant with every seed
statistics  means over seeds, and tests of differences
comparison  what a folder with the runs says
metrics     which metrics the runs measure
spaces      what a sweep searches
sweep       `tune`: the best settings of every entrant, by validation rows
tables      what was found, as CSV, Markdown, LaTeX and JSON
results     the files beside the runs: tables, report, settings
request     `carry_out`: a configuration's `[compare]` and `[sweep]` tables
progress    how it goes, on a terminal or elsewhere
"""

from fedsaddle.runs.compare.comparison import Comparison
from fedsaddle.runs.compare.entrants import Entrant, named_entrants
from fedsaddle.runs.compare.execution import Watcher, compare
from fedsaddle.runs.compare.statistics import Difference, Summary

__all__ = [
    "Comparison",
    "Difference",
    "Entrant",
    "Summary",
    "Watcher",
    "compare",
    "named_entrants",
]
