"""A virtual environment for each peer, with what its script's first lines ask for (PEP 723)."""

import hashlib
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"


class Unavailable(Exception):
    """A contestant that cannot be run here, and why."""


def dependencies(script: Path) -> list[str]:
    """What a script asks for; nothing where it has no such lines."""
    block = re.search(r"^# /// script\n(.*?)^# ///$", script.read_text(), re.DOTALL | re.MULTILINE)
    if block is None:
        return []
    lines = (line.removeprefix("#").strip() for line in block[1].splitlines())
    return list(tomllib.loads("\n".join(lines))["dependencies"])


def python_for(script: Path) -> Path:
    """The Python that has what the script asks for; its environment is made when it is missing."""
    wanted = dependencies(script)
    if not wanted:
        return Path(sys.executable)
    folder = HERE / ".venvs" / script.stem.removesuffix("_rounds")
    python, stamp = folder / "bin" / "python", folder / "installed"
    state = hashlib.sha256((CONSTRAINTS.read_text() + "\n".join(wanted)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == state:
        return python
    print(f"making an environment for {', '.join(wanted)}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # constraints.txt pins the build of torch that brings no CUDA libraries
    done = subprocess.run(
        [*install, "--constraint", CONSTRAINTS, *wanted], capture_output=True, text=True
    )
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"not installed: {(reasons or [done.stderr.strip()])[-1]}")
    stamp.write_text(state)
    return python
