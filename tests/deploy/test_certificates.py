"""Certificates are checked by OpenSSL through `ssl`, keys by Flower's own reader."""

import datetime
import os
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedsaddle.deploy.certificates import (
    fingerprint,
    make_certificates,
    make_node_key,
    renew_server,
)
from fedsaddle.errors import UserError


def handshake(files, authority, host):
    """Speak TLS with a server that has these files; the error if the client refuses it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.server, files.server_key)
    ours, theirs = socket.socketpair()

    def serve():
        try:
            with server.wrap_socket(theirs, server_side=True):
                pass
        except OSError:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cafile=authority)
        with client.wrap_socket(ours, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("host", ["fl.example.org", "10.0.0.7", "localhost", "127.0.0.1", "::1"])
def test_a_certified_host_is_believed(tmp_path, host):
    files = make_certificates(tmp_path, ["fl.example.org", "10.0.0.7", "::1"])
    assert handshake(files, files.authority, host) is None


def test_another_host_and_another_authority_are_not(tmp_path):
    files = make_certificates(tmp_path / "ours", ["fl.example.org"])
    other = make_certificates(tmp_path / "theirs", ["fl.example.org"])
    assert "mismatch" in handshake(files, files.authority, "evil.example.org")
    assert handshake(files, other.authority, "fl.example.org") is not None


def test_private_parts_are_for_the_owner_only(tmp_path):
    before = os.umask(0)
    try:
        files = make_certificates(tmp_path / "new", ["fl.example.org"])
        key = make_node_key(tmp_path / "site")
    finally:
        os.umask(before)
    for path in (files.authority_key, files.server_key, key.private):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700


def test_validity(tmp_path):
    files = make_certificates(tmp_path, ["fl.example.org"])
    now = datetime.datetime.now(datetime.UTC)
    server = x509.load_pem_x509_certificate(files.server.read_bytes())
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    assert server.not_valid_before_utc < now - datetime.timedelta(minutes=30)
    assert now + datetime.timedelta(days=800) < server.not_valid_after_utc
    assert server.not_valid_after_utc < authority.not_valid_after_utc


def test_nothing_is_overwritten(tmp_path):
    files = make_certificates(tmp_path, ["fl.example.org"])
    before = files.authority.read_bytes()
    with pytest.raises(UserError, match=r"ca\.crt: the file exists"):
        make_certificates(tmp_path, ["fl.example.org"])
    make_node_key(tmp_path)
    with pytest.raises(UserError, match=r"node\.key: the file exists"):
        make_node_key(tmp_path)
    assert files.authority.read_bytes() == before


def test_renewing_keeps_the_authority(tmp_path):
    files = make_certificates(tmp_path, ["old.example.org"])
    authority, server = files.authority.read_bytes(), files.server.read_bytes()
    renew_server(tmp_path, ["new.example.org"])
    assert files.authority.read_bytes() == authority
    assert files.server.read_bytes() != server
    assert handshake(files, files.authority, "new.example.org") is None
    assert "mismatch" in handshake(files, files.authority, "old.example.org")


def test_renewing_needs_the_right_authority(tmp_path):
    with pytest.raises(UserError, match=r"ca\.crt: there is no such file"):
        renew_server(tmp_path / "empty", ["fl.example.org"])
    files = make_certificates(tmp_path / "one", ["fl.example.org"])
    other = make_certificates(tmp_path / "two", ["fl.example.org"])
    files.authority_key.write_bytes(other.authority_key.read_bytes())
    with pytest.raises(UserError, match=r"ca\.key: not the key of"):
        renew_server(tmp_path / "one", ["fl.example.org"])
    files.authority_key.write_text("nothing")
    with pytest.raises(UserError, match="cannot be read"):
        renew_server(tmp_path / "one", ["fl.example.org"])
    assert files.server.exists()


@pytest.mark.parametrize("host", ["https://fl.example.org", "fl.example.org:8000", "a b", ""])
def test_what_is_no_host(tmp_path, host):
    with pytest.raises(UserError, match="a host name or an address is wanted"):
        make_certificates(tmp_path / "new", [host])
    assert not (tmp_path / "new").exists()


def test_no_host(tmp_path):
    with pytest.raises(UserError, match="--host: name the coordinator"):
        make_certificates(tmp_path, [])


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        make_node_key(tmp_path / "file")


def test_flower_reads_both_parts_of_a_node_key(tmp_path):
    key = make_node_key(tmp_path)
    private = load_ssh_private_key(key.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert try_load_public_key(key.public) == public_key_to_bytes(private.public_key())


def test_a_fingerprint_tells_keys_apart(tmp_path):
    one, two = (fingerprint(make_node_key(tmp_path / name).public) for name in "ab")
    assert one != two
    assert one.startswith("SHA256:")
    with pytest.raises(UserError, match="not a public node key"):
        fingerprint(tmp_path / "a" / "node.key")
    with pytest.raises(UserError, match="there is no such file"):
        fingerprint(tmp_path / "c" / "node.pub")
