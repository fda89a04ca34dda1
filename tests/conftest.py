"""Shared settings: properties are checked on the same examples every time."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("fixed")


@pytest.fixture
def data_root() -> Path:
    """The folder with the real data sets; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("FEDSADDLE_DATA") or "data")
    if not folder.is_dir():
        pytest.skip("no real data here: set FEDSADDLE_DATA to the prepared folder")
    return folder
