"""Who is who on the network.

The coordinator is known by a server certificate, signed by the consortium's own authority; a site
is known by its node key, whose public part the coordinator registers. Private parts never travel.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsaddle.errors import UserError

AUTHORITY_DAYS = 3650
"""Replacing the authority means a new file at every site, so it lasts as long as a study."""
SERVER_DAYS = 825
"""The longest that common TLS libraries accept; renewed without the sites noticing."""
LOOPBACK = ("localhost", "127.0.0.1")
"""Always certified: the SuperLink's own helper processes reach it under these names."""
CLOCK_SLACK = datetime.timedelta(hours=1)
"""A site whose clock is a little behind must not take a new certificate for a future one."""


@dataclass(frozen=True)
class Certificates:
    """The files of the coordinator. Sites get `authority` and nothing else."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


@dataclass(frozen=True)
class NodeKey:
    """The files of a site. The coordinator gets `public` and nothing else."""

    folder: Path

    @property
    def private(self) -> Path:
        return self.folder / "node.key"

    @property
    def public(self) -> Path:
        return self.folder / "node.pub"


def make_certificates(
    folder: Path, hosts: list[str], organisation: str = "fedsaddle"
) -> Certificates:
    """A new authority and a server certificate for these host names and addresses."""
    files, names = Certificates(folder), _names(hosts)
    _refuse_existing(files.authority, files.authority_key, files.server, files.server_key)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"{organisation} authority")
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _started(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    _write(files.authority_key, _pem(key), private=True)
    _write(files.authority, certificate.public_bytes(serialization.Encoding.PEM))
    _sign_server(files, certificate, key, names)
    return files


def renew_server(folder: Path, hosts: list[str]) -> Certificates:
    """A new server certificate from the authority in the folder; sites need nothing new."""
    files, names = Certificates(folder), _names(hosts)
    for path in (files.authority, files.authority_key):
        if not path.is_file():
            raise UserError(f"{path}: there is no such file; renewing needs the authority.")
    try:
        certificate = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key = serialization.load_pem_private_key(files.authority_key.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder}: the authority cannot be read ({error}).") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{files.authority_key}: not a key made by this command.")
    if key.public_key() != certificate.public_key():
        raise UserError(f"{files.authority_key}: not the key of {files.authority}.")
    for path in (files.server, files.server_key):
        path.unlink(missing_ok=True)
    _sign_server(files, certificate, key, names)
    return files


def make_node_key(folder: Path) -> NodeKey:
    """A new key pair of a site, in the form that Flower's SuperNode reads (OpenSSH, P-384)."""
    files = NodeKey(folder)
    _refuse_existing(files.private, files.public)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(files.private, private, private=True)
    _write(files.public, public + b"\n")
    return files


def fingerprint(public: Path) -> str:
    """A public key's short name, to be compared by telephone; `ssh-keygen -lf` shows the same.

    A file that holds no such key, or a private one, is refused.
    """
    try:
        key = serialization.load_ssh_public_key(public.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{public}: there is no such file.") from None
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{public}: not a public node key ({error}).") from None
    digest = serialization.ssh_key_fingerprint(key, hashes.SHA256())
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _sign_server(
    files: Certificates,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: list[x509.GeneralName],
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _started(_name(str(names[0].value)), authority.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    _write(files.server_key, _pem(key), private=True)
    _write(files.server, certificate.public_bytes(serialization.Encoding.PEM))


def _started(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _names(hosts: list[str]) -> list[x509.GeneralName]:
    """Host names and addresses as a certificate lists them; those of this machine come last."""
    if not hosts:
        raise UserError("--host: name the coordinator as the sites reach it, e.g. fl.example.org.")
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*hosts, *LOOPBACK]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
            continue
        except ValueError:
            pass
        labels = host.removeprefix("*.").split(".")
        plain = all(part.replace("-", "").isalnum() and part.isascii() for part in labels)
        if not plain or len(host) > 253:
            raise UserError(
                f"--host {host}: a host name or an address is wanted, without https:// or port."
            )
        names.append(x509.DNSName(host))
    return names


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _key_usage(**allowed: bool) -> x509.KeyUsage:
    uses = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{use: allowed.get(use, False) for use in uses})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path}: the file exists and is not overwritten; choose a new folder.")


def _write(path: Path, content: bytes, private: bool = False) -> None:
    """A new file; a private one is never readable by others, not even for a moment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = 0o600 if private else 0o644
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None
