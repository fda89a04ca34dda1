"""`fedsaddle deploy`: what a consortium needs to run across real machines, and a rehearsal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsaddle.errors import UserError
from fedsaddle.terminal import say, show_result

app = typer.Typer(
    help="Real machines: certificates, keys, the coordinator's folder, a rehearsal on this one.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting; may be repeated."),
]


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    config: Annotated[Path | None, typer.Option(help="A TOML file, as for train.")] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="The sites' names; without them any two that connect are enough."),
    ] = None,
    set_: Set = None,
    as_json: JSON = False,
) -> None:
    """Write the coordinator's folder: settings, and what Flower needs to start a run with them.

    Examples:

        fedsaddle deploy new study --config run.toml --site north --site south

        fedsaddle deploy new study --set algorithm.name=codasca --set run.rounds=200
    """
    from fedsaddle.data.site import check_remote
    from fedsaddle.deploy.app import write_app
    from fedsaddle.runs import config as settings

    sections = settings.collect(config, set_, {})
    sections["data"] = {**sections.get("data", {}), "source": "each site's own file"}
    sections["engine"] = {**sections.get("engine", {}), "name": "flower"}
    if site:
        sections["engine"]["sites"] = site
    resolved = settings.resolve(sections)
    check_remote(resolved.data)
    files = write_app(folder, settings.write_commented(resolved))
    text = "\n".join(f"wrote {path}" for path in files)
    say({"folder": str(folder), "files": [str(path) for path in files]}, text, as_json)


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="The coordinator's host name or address, as the sites reach it."),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Only a new server certificate, by the same authority.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Make the coordinator's certificates: an authority (ca.crt, for every site) and a server's.

    Examples:

        fedsaddle deploy certificates certificates --host fl.example.org

        fedsaddle deploy certificates certificates --host fl.example.org --renew
    """
    with _flower():
        from fedsaddle.deploy.certificates import make_certificates, renew_server

    files = (renew_server if renew else make_certificates)(folder, host or [])
    say(
        {name: str(getattr(files, name)) for name in ("authority", "server", "server_key")},
        f"for every site:           {files.authority}\n"
        f"for the SuperLink:        {files.server} and {files.server_key}\n"
        f"to be locked away:        {files.authority_key}",
        as_json,
    )


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="Where the files go.")],
    as_json: JSON = False,
) -> None:
    """Make a site's node key; only the public part goes to the coordinator.

    Example:

        fedsaddle deploy key /etc/fedsaddle
    """
    with _flower():
        from fedsaddle.deploy.certificates import fingerprint, make_node_key

    files = make_node_key(folder)
    short = fingerprint(files.public)
    say(
        {"private": str(files.private), "public": str(files.public), "fingerprint": short},
        f"stays here:               {files.private}\n"
        f"for the coordinator:      {files.public}\n"
        f"to compare by telephone:  {short}",
        as_json,
    )


@app.command()
def local(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file, as for train; every setting has a default.")
    ] = None,
    sites: Annotated[
        int | None, typer.Option(min=1, help="How many sites, where the data are cut (else 3).")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="One file per site; or a data set or file, which is cut to one each."),
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Column with the label.")] = None,
    client: Annotated[str | None, typer.Option(help="Column that names the site.")] = None,
    set_: Set = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Neither TLS nor node keys: a little faster.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The run folder (by default a new one under runs/).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    as_json: JSON = False,
) -> None:
    """Rehearse: a coordinator and sites as processes on this machine, with TLS and node keys.

    Examples:

        fedsaddle deploy local --sites 3

        fedsaddle deploy local run.toml --data north.csv --data south.csv --label died

        fedsaddle deploy local --data heart-disease --set data.root=data --set run.rounds=20
    """
    with _flower():
        from fedsaddle.deploy.local import FederationError
        from fedsaddle.deploy.rehearsal import rehearse
    from fedsaddle.runs import config as settings
    from fedsaddle.runs.folder import free_folder
    from fedsaddle.runs.progress import watch
    from fedsaddle.runs.record import RunRecord

    if resume and out is None:
        raise UserError("--resume: say which run with --out RUN.")
    flags = {"data.source": data, "data.label": label, "data.client": client}
    resolved = settings.resolve(settings.collect(config, set_, flags))
    out = (out or free_folder(Path("runs"), f"local-{resolved.algorithm['name']}")).resolve()
    if not as_json:
        print("starting a coordinator and its sites on this machine", file=sys.stderr, flush=True)
    try:
        with _terminable():
            done = rehearse(
                resolved,
                out,
                watch(quiet=as_json),
                sites=sites,
                plaintext=plaintext,
                resume=resume,
            )
    except FederationError as error:
        print(f"fedsaddle: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print(f"stopped; continue with the same command and --resume --out {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    record = RunRecord.load(out) if (out / "evaluation.json").exists() else None
    if as_json:
        state = {"status": done.state.status, "details": done.state.details}
        folders = {"run": str(out), "site_files": str(done.sites)}
        say({**folders, **state, **(record.evaluation if record else {})}, "", True)
    elif record:
        show_result(record, out, None)
        print(f"what the sites keep: {done.sites}")
    if not done.state.completed:
        print(f"fedsaddle: {done.state.details}\nlogs: {done.logs}", file=sys.stderr)
        raise typer.Exit(1)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: with everything it started."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before: Callable[[int, Any], Any] | int | None = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _flower() -> Iterator[None]:
    """A missing extra as one sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is missing: pip install 'fedsaddle[flower]'.") from None
