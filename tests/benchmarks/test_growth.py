"""The benchmark of growth, small: that it runs and stores what the documentation shows."""

import json
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_what_it_measures_is_stored_and_shown(tmp_path):
    out = tmp_path / "growth-2000-01-01.json"
    small = ("--rounds", "2", "--long", "20", "--clients", "2000", "--out", str(out))
    command = [sys.executable, str(BENCHMARKS / "growth.py"), *small]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2000 clients, 256 a round" in done.stdout
    stored = json.loads(out.read_text())
    sizes = [(row["clients"], row["selected"]) for row in stored["crowds"]]
    assert sizes == [(2, 16), (20, 16), (200, 16), (2000, 16), (2000, 64), (2000, 256)]
    assert all(0 < row["minimum_ms"] <= row["median_ms"] for row in stored["crowds"])
    assert list(stored["long_run"]["megabytes"]) == ["1", "2", "20"]
    assert min(stored["long_run"]["megabytes"].values()) > 50
    assert stored["start_up_seconds"]["import"] > 0 < stored["start_up_seconds"]["one_round"]

    spec = util.spec_from_file_location("page", BENCHMARKS / "page.py")
    page = util.module_from_spec(spec)
    spec.loader.exec_module(page)
    shown = page.measured("speed.md", tmp_path)
    assert "| 2,000 | 256 | " in shown
    assert "MB after 20; " in shown
