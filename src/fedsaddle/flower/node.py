"""A site's own settings, as its SuperNode was given them. Light: a client process reads them."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError, nearest

KEYS = ("site", "data", "state", "policy", "resident")


@dataclass(frozen=True)
class Node:
    """The settings of a site (see the package's docstring)."""

    site: str
    data: str
    state: str
    policy: str | None = None
    resident: bool = True

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Node":
        """From Flower's node config; what is missing or unknown is named."""
        for key in ("site", "data", "state"):
            if not str(config.get(key, "")).strip():
                raise UserError(f"--node-config: the site's '{key}' is missing.")
        for key in config:
            if key not in KEYS:
                raise UserError(f"--node-config: there is no '{key}'; {nearest(key, KEYS)}")
        policy, resident = config.get("policy"), config.get("resident", True)
        return cls(
            str(config["site"]),
            str(config["data"]),
            str(config["state"]),
            None if policy is None else str(policy),
            str(resident).lower() != "false",
        )

    @property
    def folder(self) -> Path:
        """The state folder, made when it is first needed; nobody else may look into it."""
        path = Path(self.state)
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
        return path

    @property
    def home(self) -> str:
        """A secret name of the state folder: the site is told by it when it comes back."""
        return secret(self.folder / "home").hex()

    def identity(self) -> str:
        """What a worker must have been started with to answer for this site."""
        return json.dumps({**asdict(self), "fedsaddle": version("fedsaddle")}, sort_keys=True)


def secret(path: Path) -> bytes:
    """Random bytes of a file that only its owner reads, made when they are first asked for."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(temporary, path)  # the first one to come wins
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_bytes()
