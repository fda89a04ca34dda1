"""Seconds per phase of a real federation: three sites, a tiny, a 1 MB and a 100 MB model.

    python benchmarks/federation.py --out benchmarks/results/federation-$(date -u +%FT%H%M).json

All parties run on this machine, so transport is as fast as it gets and what is left is the cost of
Flower and of fedsaddle. Three ways to run a site are compared: Flower's SuperNode with everything
loaded anew for each message; the same with the resident worker; and fedsaddle's SuperNode, which
looks for messages more often and forks its client processes, with the worker.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from fedsaddle.bench import describe_machine
from fedsaddle.data import DataOptions
from fedsaddle.deploy.app import write_app
from fedsaddle.deploy.local import LINK, LocalFederation
from fedsaddle.deploy.sites import site_files
from fedsaddle.runs.config import resolve, write_sections
from fedsaddle.runs.folder import write_json

MODELS = {
    "tiny": {"name": "logistic"},
    "1 MB": {"name": "mlp", "arguments": {"hidden": [7800]}},
    "100 MB": {"name": "mlp", "arguments": {"hidden": [5000, 4970]}},
}
WAYS = {
    "loaded anew": {"resident": False, "forks": False},
    "resident worker": {"resident": True, "forks": False},
    "resident worker, forked client": {"resident": True, "forks": True},
}


class Federation(LocalFederation):
    """A federation whose sites run Flower's SuperNode or fedsaddle's."""

    forks = True

    def command(self, name):
        command = super().command(name)
        if name == LINK:
            return command
        own = [sys.executable, "-m", "fedsaddle.flower.supernode"]
        flower = [str(Path(sys.executable).parent / "flower-supernode")]
        options = command[command.index("--host") :]
        return [*(own if self.forks else flower), *options]


def seconds_per_phase(folder: Path, model: dict, way: dict, phases: int) -> float:
    """The mean over phases, without the first one."""
    files, options = site_files(DataOptions(), folder / "files", 3, seed=0, binary=True)
    config = resolve(
        {
            "data": options.model_dump(mode="json", exclude_none=True),
            "model": model,
            "problem": {"name": "risk"},
            "algorithm": {"name": "fedavg", "local_steps": 1},
            "engine": {"sites": list(files)},
            "evaluation": {"every": phases},
            "run": {"rounds": phases, "checkpoint_every": phases},
        }
    )
    write_app(folder / "app", write_sections(config.sections()))
    sites = {
        name: {
            "site": name,
            "data": str(path),
            "state": str(folder / "state" / name),
            "resident": way["resident"],
        }
        for name, path in files.items()
    }
    federation = Federation(folder / "parties", sites, plaintext=True)
    federation.forks = way["forks"]
    ledger, seen = folder / "run" / "ledger.jsonl", []

    def watch() -> None:
        """Note when a phase was written down."""
        lines = ledger.read_text().count("\n") if ledger.exists() else 0
        seen.extend([time.monotonic()] * (lines - len(seen)))

    with federation:
        run = federation.submit(folder / "app", {"out": str(folder / "run")})
        state = federation.wait(run, meanwhile=watch)
    if not state.completed:
        sys.exit(f"the run failed: {state.details}")
    return (seen[-1] - seen[0]) / (phases - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--phases", type=int, default=6)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    machine = describe_machine()
    found: dict[str, dict[str, float]] = {}
    for name in options.models:
        found[name] = {}
        for way, settings in WAYS.items():
            with tempfile.TemporaryDirectory(prefix="fedsaddle-") as folder:
                seconds = seconds_per_phase(Path(folder), MODELS[name], settings, options.phases)
            found[name][way] = round(seconds, 2)
            print(f"{name:>8}  {way:<32} {seconds:6.2f} s", file=sys.stderr, flush=True)
    print("| model | " + " | ".join(WAYS) + " |")
    print("|---|" + "---:|" * len(WAYS))
    for name, row in found.items():
        print(f"| {name} | " + " | ".join(f"{seconds:.2f} s" for seconds in row.values()) + " |")
    if options.out:
        write_json(options.out, machine | {"phases": options.phases, "seconds_per_phase": found})


if __name__ == "__main__":
    main()
