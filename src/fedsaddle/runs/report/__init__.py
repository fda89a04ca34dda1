"""The report of one or several runs: one HTML file that opens without a network.

Everything shown comes from `RunRecord`s. A section is a function from the runs to markup, and says
in a sentence where its data are missing. The modules build on one another in this order:

    words      numbers and names as a reader meets them
    markup     HTML of which all text is escaped
    reading    what a record says
    charts     the JSON from which report.js draws, and the keys to the lines
    overview, curves, sites, samples, traffic, settings     the sections
    page       the document
"""

from fedsaddle.runs.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
