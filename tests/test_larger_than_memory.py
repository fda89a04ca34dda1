"""A data set that does not fit into the memory a process may have trains all the same."""

import json
import os
import resource
import subprocess
import sys
import zipfile

import numpy as np
import pytest

ROWS, SIDE = 49_152, 128
ALLOWED = 640 * 2**20
"""Bytes of memory of its own that the process gets: less than the 768 MiB of the images."""

COMMAND = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({ALLOWED}, {ALLOWED}))
from fedsaddle.cli import main
sys.argv[0] = "fedsaddle"
main()
"""


def write_npz(path):
    """Noise that is brighter where the label is 1, written row by row."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, ROWS)
    noise = random.integers(0, 100, (64, SIDE, SIDE)).astype(np.uint8)
    header = {"descr": "|u1", "fortran_order": False, "shape": (ROWS, 1, SIDE, SIDE)}
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("X.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for start in range(0, ROWS, 64):
                member.write((noise + 50 * labels[start : start + 64, None, None]).astype(np.uint8))
        with archive.open("y.npy", "w") as member:
            np.save(member, labels)


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="memory cannot be limited here")
def test_an_npz_file_larger_than_the_memory_trains(tmp_path):
    write_npz(tmp_path / "big.npz")
    assert ROWS * SIDE**2 > ALLOWED
    settings = {
        "data.clients": 1000,
        "data.partition": "iid",
        "data.validation": 0,
        "data.test": 0.05,
        "federation.clients_per_round": 4,
        "model.name": "logistic",
        "algorithm.learning_rate": 0.001,
    }
    options = [f"--set={name}={value}" for name, value in settings.items()]
    arguments = ["train", "--data", "big.npz", "--rounds=5", "--out=run", "--json", *options]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["test/auc"] > 0.9
