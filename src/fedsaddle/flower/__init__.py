"""The same run across real machines: a coordinator and sites, connected by Flower.

Flower carries the messages; nothing here opens a port. Its app folder names two components:

    serverapp = "fedsaddle.flower.coordinator:app"   the run: rounds, checkpoints, report
    clientapp = "fedsaddle.flower.client:app"        at a site: hands each request to its worker

`[tool.flwr.app.config]`, the settings of a run at the coordinator:

    config   a TOML file in the app folder, or an absolute path, or the whole text of one:
             the very file that `fedsaddle train` takes (`engine.name` becomes "flower")
    out      the run folder, on the coordinator's machine (an absolute path)
    resume   true to continue the run in `out`

`--node-config` of a SuperNode, the settings of a site, which never leave it:

    site     the site's name, unique in the federation
    data     its file, as `data.source` would name it in a simulation
    state    a folder of its own: client memory, the record of what was sent, the worker's socket
    policy   optional, a TOML file: what this site is willing to answer (see `policy.py`)
    resident optional, false: no worker process stays between messages (slower, for comparison)

A site's SuperNode is `flower-supernode`, or, faster, `python -m fedsaddle.flower.supernode`.

A site needs no configuration file: the coordinator sends its own, without paths. Sites are numbered
in the natural order of their names, as files are in a simulation, so that the same configuration
gives the same model there and here.

This package is not under `engines`, for two reasons: a coordinator runs a whole `runs.Training`,
and Flower starts a new client process for every message, which must not wait for torch.
"""
