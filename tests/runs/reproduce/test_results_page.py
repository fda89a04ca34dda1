"""docs/results.md is what the stored results say, and nothing else."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_is_up_to_date(capsys):
    runpy.run_path(str(ROOT / "examples" / "results.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == printed


def test_every_figure_of_the_page_is_there_and_small():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    figures = re.findall(r"\]\(([^)]*\.svg)\)", page)
    assert figures
    for figure in figures:
        path = ROOT / "docs" / figure
        assert path.is_file()
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 500_000
