"""A whole federation on this machine: a SuperLink and one SuperNode per site, on 127.0.0.1.

It is a rehearsal of a consortium with the same programs, certificates and keys, and the ground for
fault tests: every party can be killed, started again, stalled and resumed by name.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w

from fedsaddle.deploy import processes
from fedsaddle.deploy.certificates import Certificates, NodeKey, make_certificates, make_node_key
from fedsaddle.errors import UserError

LINK = "superlink"
"""The coordinator's name among the parties."""
CONNECTION = "local"
"""What Flower's command line calls the way to the coordinator."""
ADDRESS = "127.0.0.1"
READY_SECONDS = 60.0
ACCEPTED = "SuperNode ID:"
"""What a SuperNode logs once the SuperLink has accepted it."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

NodeConfig = Mapping[str, str | int | float | bool]


class FederationError(Exception):
    """A party did not start, or a command failed; the message ends with the last of its log."""


@dataclass(frozen=True)
class RunState:
    """How a run stands, as `flwr ls` says it."""

    status: str
    details: str

    @property
    def finished(self) -> bool:
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Finished, and the server app did not raise; the exit code of `flwr run` says neither."""
        return self.status == "finished:completed"


@dataclass
class _Party:
    """The coordinator or a site: its port, and its process since it was last started."""

    port: int
    process: subprocess.Popen[bytes] | None = None
    logged_before: int = 0


class LocalFederation:
    """SuperLink and SuperNodes as subprocesses; leaving the `with` block ends all of them.

    folder: where certificates, keys, logs and Flower's own files go. sites: every site's name with
    its node config. plaintext: neither TLS nor node keys.

        with LocalFederation(folder, {"a": {"site": "a", "data": "a.csv"}}) as federation:
            run = federation.submit(app, {"config": "run.toml"})
            print(federation.wait(run).status, federation.log("a"))
    """

    def __init__(
        self, folder: Path, sites: Mapping[str, NodeConfig], plaintext: bool = False
    ) -> None:
        if not Path("/proc/self/environ").exists():
            raise UserError("A federation on one machine needs Linux and its /proc.")
        if LINK in sites:
            raise UserError(f"a site cannot be called '{LINK}': that is the coordinator.")
        self.folder = folder.resolve()
        self.sites = dict(sites)
        self.plaintext = plaintext
        self.certificates = Certificates(self.folder / "certificates")
        names = [LINK, *self.sites]
        ports = _free_ports(len(names))
        self._parties = {name: _Party(port) for name, port in zip(names, ports, strict=True)}
        self._guardian: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where sites and `flwr` reach the coordinator."""
        return f"{ADDRESS}:{self._parties[LINK].port}"

    def key(self, site: str) -> NodeKey:
        """The files of a site's node key."""
        return NodeKey(self.folder / "keys" / site)

    def __enter__(self) -> LocalFederation:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._guardian = processes.guard(str(self.folder))
        try:
            if not self.plaintext:
                make_certificates(self.certificates.folder, [ADDRESS])
                for site in self.sites:
                    make_node_key(self.key(site).folder)
            self._write_connection()
            self.start(LINK)
            if not self.plaintext:
                self.register(*self.sites)
            for site in self.sites:
                self.launch(site)
            for site in self.sites:
                self.wait_ready(site)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the federation."""
        processes.stop(str(self.folder))
        for party in self._parties.values():
            if party.process is not None:
                party.process.wait()
        if self._guardian is not None:
            self._guardian.communicate()
            self._guardian = None

    # One party at a time.

    def launch(self, name: str, command: list[str] | None = None) -> None:
        """Start a party (with another command than its own, if given); do not wait for it."""
        if self.pids(name):
            raise FederationError(f"{name} is running already.")
        party = self._parties[name]
        party.logged_before = len(self.log(name))
        party.process = processes.start(
            command or self.command(name),
            self._mark(name),
            self.environment(name),
            self.log_file(name),
        )

    def start(self, name: str, seconds: float = 90.0) -> None:
        """Start a party, for the first time or after `kill`, and wait until it is ready.

        As a service manager would, it starts a site again that ended: a SuperLink refuses the key
        of a site that died for as long as it takes the site to be alive, one minute.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.launch(name)
            try:
                return self.wait_ready(name)
            except FederationError:
                if name == LINK or time.monotonic() > deadline:
                    raise
            self.kill(name)  # a helper may be a moment behind its SuperNode
            time.sleep(2)

    def wait_ready(self, name: str, seconds: float = READY_SECONDS) -> None:
        """Wait until the coordinator answers, or until it has accepted the site."""
        ready = self._link_answers if name == LINK else lambda: ACCEPTED in self.last_log(name)
        process, deadline = self._parties[name].process, time.monotonic() + seconds
        while not ready():
            code = None if process is None else process.poll()
            if code is not None:
                raise FederationError(f"{name} ended with code {code}.\n{self._tail(name)}")
            if time.monotonic() > deadline:
                raise FederationError(f"{name} is not ready in {seconds} s.\n{self._tail(name)}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """SIGKILL a party with everything it started, as a power cut would."""
        processes.kill(self._mark(name))
        process = self._parties[name].process
        if process is not None:
            process.wait()

    def stall(self, name: str) -> None:
        """SIGSTOP a party with everything it started: it is there and does not answer."""
        processes.send(self._mark(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT a stalled party."""
        processes.send(self._mark(name), signal.SIGCONT)

    def pids(self, name: str) -> list[int]:
        """A party's processes: its own, helpers, apps and workers."""
        return processes.marked(self._mark(name))

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def log(self, name: str) -> str:
        """What a party's processes have said, without the colours."""
        path = self.log_file(name)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return COLOUR.sub("", text)

    def last_log(self, name: str) -> str:
        """What a party's processes have said since it was last started."""
        return self.log(name)[self._parties[name].logged_before :]

    def environment(self, name: str) -> dict[str, str]:
        """A party's environment: Flower at home in its own folder, offline, helpers on PATH."""
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        programs = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": programs + os.pathsep + os.environ.get("PATH", ""),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",  # or the last words before a SIGKILL are lost
        }

    def command(self, name: str) -> list[str]:
        """The program that a party is, with all its options."""
        here = ["--host", ADDRESS, "--port", str(self._parties[name].port)]
        if name == LINK:
            # The database is on disk, so that a restarted SuperLink still knows its sites.
            database = ["--database", str(self.folder / "superlink.db")]
            installed = "--disable-runtime-dependency-installation"
            return [
                _program("flower-superlink"),
                *here,
                *database,
                installed,
                *self._link_security(),
            ]
        config = ["--node-config", settings_text(self.sites[name])]
        link = ["--superlink", self.address]
        program = [sys.executable, "-m", "fedsaddle.flower.supernode"]
        return [*program, *here, *link, *config, *self._site_security(name)]

    # The coordinator's commands.

    def register(self, *sites: str) -> None:
        """Make these sites' public keys known to the coordinator."""
        commands = [
            ["supernode", "register", str(self.key(site).public), CONNECTION, "--name", site]
            for site in sites
        ]
        self._flwr(*commands)

    def submit(self, app: Path, config: NodeConfig | None = None) -> str:
        """Start a run of an app folder, its settings overridden by these; the run's number."""
        settings = ["--run-config", settings_text(config)] if config else []
        answer = self._flwr(["run", str(app), CONNECTION, *settings])[0]
        return str(answer["run-id"])

    def state(self, run: str) -> RunState:
        """How a run stands."""
        found = self._flwr(["ls", CONNECTION, "--run-id", run])[0]["runs"][0]
        return RunState(found["status"], found["status-details"])

    def wait(
        self,
        run: str,
        seconds: float = math.inf,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> RunState:
        """Follow a run to its end.

        `flwr ls` takes a second of work, so it is asked only when no server app is running here.
        """
        deadline, next_question = time.monotonic() + seconds, 0.0
        while time.monotonic() < deadline:
            meanwhile()
            if time.monotonic() > next_question and not self._server_app_runs():
                state = self.state(run)
                if state.finished:
                    meanwhile()
                    return state
                next_question = time.monotonic() + 2
            time.sleep(0.25)
        raise FederationError(f"run {run} goes on after {seconds} s.\n{self._tail(LINK)}")

    def run_log(self, run: str) -> str:
        """What a run's server app has said."""
        return COLOUR.sub("", self._say_flwr([["log", run, CONNECTION, "--show"]])[0])

    def _flwr(self, *commands: list[str]) -> list[dict[str, Any]]:
        """Run `flwr` commands side by side; what each answers as JSON."""
        answers = self._say_flwr([[*command, "--format", "json"] for command in commands])
        found = [json.loads(answer) for answer in answers]
        for command, answer in zip(commands, found, strict=True):
            if not answer["success"]:  # with an exit code of 0
                raise FederationError(f"flwr {' '.join(command)}: {answer.get('error-message')}")
        return found

    def _say_flwr(self, commands: list[list[str]]) -> list[str]:
        """Run `flwr` commands side by side; what each prints."""
        environment = self.environment("flwr") | {processes.MARK: self._mark("flwr")}
        running = [
            subprocess.Popen(
                [_program("flwr"), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]
        said = [process.communicate() for process in running]
        for command, process, (out, error) in zip(commands, running, said, strict=True):
            if process.returncode:
                raise FederationError(f"flwr {' '.join(command)}: {out}{error}".strip())
        return [out for out, _ in said]

    def _server_app_runs(self) -> bool:
        return any(b"flwr-serverapp" in processes.command_line(pid) for pid in self.pids(LINK))

    def _write_connection(self) -> None:
        """Tell `flwr` where the coordinator is."""
        connection: dict[str, Any] = {"address": self.address, "insecure": True}
        if not self.plaintext:
            authority = str(self.certificates.authority)
            connection = {"address": self.address, "root-certificates": authority}
        settings = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        home = Path(self.environment("flwr")["FLWR_HOME"])
        (home / "config.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")

    def _link_security(self) -> list[str]:
        if self.plaintext:
            return ["--insecure"]
        files = self.certificates
        return [
            *("--ssl-ca-certfile", str(files.authority)),
            *("--ssl-certfile", str(files.server)),
            *("--ssl-keyfile", str(files.server_key)),
            "--enable-supernode-auth",
        ]

    def _site_security(self, site: str) -> list[str]:
        if self.plaintext:
            return ["--insecure"]
        return [
            *("--root-certificates", str(self.certificates.authority)),
            *("--auth-supernode-private-key", str(self.key(site).private)),
        ]

    def _link_answers(self) -> bool:
        secure, scheme = None, "http"
        if not self.plaintext:
            secure, scheme = ssl.create_default_context(cafile=self.certificates.authority), "https"
        try:
            with urllib.request.urlopen(
                f"{scheme}://{self.address}/health", timeout=2, context=secure
            ) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _mark(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _tail(self, name: str, lines: int = 15) -> str:
        return "\n".join(self.last_log(name).splitlines()[-lines:])


def settings_text(values: NodeConfig) -> str:
    """Settings as Flower's programs take them on the command line.

    >>> settings_text({"site": "north", "rows": 3})
    'site="north" rows=3'
    """
    pairs = []
    for key, value in values.items():
        if isinstance(value, str) and set(value) & set('"\\\n'):
            raise UserError(f"{key}: {value!r} has a quote, backslash or line break in it.")
        pairs.append(f"{key}={json.dumps(value)}")
    return " ".join(pairs)


def _program(name: str) -> str:
    """A program of this Python's environment."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed: pip install 'fedsaddle[flower]'.")
    return found


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below those that outgoing connections are given."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
