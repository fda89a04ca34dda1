"""The folder that a coordinator hands to `flwr run`. It holds settings, and no code.

Flower packs it and sends it to every site; what runs there is the site's own installed fedsaddle.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedsaddle.errors import UserError
from fedsaddle.runs.folder import disk_errors, write_text

PYPROJECT = """\
# What Flower needs to start a run. Change the settings in config.toml.
[project]
name = "fedsaddle-run"
version = "1.0.0"
description = "A federated run of fedsaddle."
license = "Apache-2.0"
dependencies = ["fedsaddle[flower]"]

[tool.flwr.app]
publisher = "fedsaddle"

[tool.flwr.app.components]
serverapp = "fedsaddle.flower.coordinator:app"
clientapp = "fedsaddle.flower.client:app"

# Any of these: flwr run . consortium --run-config 'resume=true'
[tool.flwr.app.config]
config = "config.toml" # in this folder, or an absolute path
out = {out} # the run folder, on the coordinator's machine
resume = false # true: continue the run in `out`
"""

README = """\
# A federated run

    flwr run . consortium --stream                    # start, and show what it says
    flwr ls consortium                                # finished:completed is good
    flwr run . consortium --run-config 'resume=true'  # continue after a crash

The method and its settings are in `config.toml`. Where a site's rows are is no business of this
folder: every site names its own file when it starts its SuperNode. Before the first run the
SuperLink must be up, the sites' public keys registered, and `consortium` named in
`~/.flwr/config.toml`:

    [superlink.consortium]
    address = "127.0.0.1:8000"
    root-certificates = "certificates/ca.crt"

A new run needs a new run folder: --run-config 'out="/srv/fedsaddle/runs/second"'.
"""


def write_app(folder: Path, config: str) -> list[Path]:
    """Write a new app folder around a configuration; the files written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: there are files in it already; choose a new folder.")
    out = json.dumps(str(folder.resolve() / "run"))
    contents = {
        "pyproject.toml": PYPROJECT.format(out=out),
        "config.toml": config,
        "README.md": README,
    }
    with disk_errors(str(folder)):
        for name, text in contents.items():
            write_text(folder / name, text)
    return [folder / name for name in contents]
