"""Shared settings: properties are checked on the same examples every time."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from fedsaddle.cli import main

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")


@pytest.fixture
def data_root() -> Path:
    """The folder with the real data sets; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("FEDSADDLE_DATA") or "data")
    if not folder.is_dir():
        pytest.skip("no real data here: set FEDSADDLE_DATA to the prepared folder")
    return folder


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsaddle", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
