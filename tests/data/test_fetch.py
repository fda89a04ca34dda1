"""Downloads from a server on this machine: whole, cut, resumed, wrong, missing, unreachable."""

import hashlib
import io
import socket
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedsaddle.data import fetch as fetching
from fedsaddle.data.fetch import DOWNLOADS, Download, File, came_from, fetch
from fedsaddle.data.sources import SOURCES
from fedsaddle.errors import UserError

CONTENT = bytes(range(256)) * 4000  # 1 MB
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Publisher(ThreadingHTTPServer):
    """Serves ``files``; may cut a connection after some bytes, or not know about ranges."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"set.bin": CONTENT}
        self.cuts = []
        self.ranges = True
        self.length = True
        self.asked = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Publisher

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        start = 0
        if asked and self.server.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
        else:
            self.send_response(200)
        rest = content[start:]
        if self.server.length:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else None
        self.wfile.write(rest if cut is None else rest[:cut])
        if cut is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def publisher():
    with Publisher() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def data_set(monkeypatch):
    """A data set of one file, "toy"."""

    def install(checksum=CHECKSUM, **more):
        file = File("set.bin", checksum, **more)
        monkeypatch.setitem(
            fetching.DOWNLOADS, "toy", Download("toys", "http://127.0.0.1:9/", (file,))
        )

    install()
    return install


def test_a_file_arrives_and_is_kept(publisher, tmp_path):
    seen = []
    (path,) = fetch("toy", tmp_path, publisher.address, lambda *state: seen.append(state))
    assert path == tmp_path / "toys" / "set.bin"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["set.bin"]
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert path.stat().st_mode & 0o444
    fetch("toy", tmp_path, publisher.address + "/")
    assert len(publisher.asked) == 1  # the second time there is nothing to do


def test_a_cut_connection_is_resumed_where_it_ended(publisher, tmp_path):
    publisher.cuts = [300_000, 200_000]
    (path,) = fetch("toy", tmp_path, publisher.address)
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in publisher.asked] == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_run_continues(publisher, tmp_path):
    publisher.cuts = [300_000] + [0] * fetching.ATTEMPTS
    with pytest.raises(UserError, match=r"stopped after 300000 bytes .*run the command again"):
        fetch("toy", tmp_path, publisher.address)
    assert (tmp_path / "toys" / "set.bin.part").stat().st_size == 300_000
    assert not (tmp_path / "toys" / "set.bin").exists()
    publisher.asked.clear()
    (path,) = fetch("toy", tmp_path, publisher.address)
    assert publisher.asked == [("/set.bin", "bytes=300000-")]
    assert path.read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(publisher, tmp_path):
    publisher.ranges = False
    publisher.cuts = [300_000]
    (path,) = fetch("toy", tmp_path, publisher.address)
    assert path.read_bytes() == CONTENT


def test_a_server_that_does_not_tell_the_length(publisher, tmp_path):
    publisher.length = False
    (path,) = fetch("toy", tmp_path, publisher.address)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [len(CONTENT), len(CONTENT) + 5])
def test_a_part_as_long_as_the_file_or_longer(publisher, tmp_path, left):
    part = tmp_path / "toys" / "set.bin.part"
    part.parent.mkdir()
    part.write_bytes((CONTENT + b"extra")[:left])
    (path,) = fetch("toy", tmp_path, publisher.address)
    assert path.read_bytes() == CONTENT


def test_a_wrong_file_is_removed(publisher, tmp_path):
    publisher.files["set.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(UserError, match=r"not the published one .* and was removed"):
        fetch("toy", tmp_path, publisher.address)
    assert not list((tmp_path / "toys").iterdir())


def test_a_damaged_file_is_replaced(publisher, tmp_path):
    (path,) = fetch("toy", tmp_path, publisher.address)
    path.write_bytes(b"damaged")
    fetch("toy", tmp_path, publisher.address)
    assert path.read_bytes() == CONTENT


def test_without_a_checksum_any_file_will_do(publisher, tmp_path, data_set):
    data_set(None, remote="other name.bin")
    publisher.files["other%20name.bin"] = b"anything"
    assert fetch("toy", tmp_path, publisher.address)[0].read_bytes() == b"anything"


def test_not_there(publisher, tmp_path):
    publisher.files.clear()
    with pytest.raises(UserError, match=r"set.bin: the server answers 404 \(Not Found\)"):
        fetch("toy", tmp_path, publisher.address)


def test_offline(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UserError, match=r"cannot be reached .*are you online\?") as error:
            fetch("toy", tmp_path, address)
    assert "\n" not in str(error.value)


def test_no_such_host(tmp_path):
    with pytest.raises(UserError, match="cannot be reached"):
        fetch("toy", tmp_path, "http://no-such-host.invalid")


def archive(names):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    return buffer.getvalue()


def test_archives_are_unpacked_once(publisher, tmp_path, data_set):
    publisher.files["set.bin"] = archive(["inside/file"])
    data_set(None, unpack="inside")
    (folder,) = fetch("toy", tmp_path, publisher.address)
    assert (folder / "file").read_bytes() == b"abc"
    assert [path.name for path in folder.parent.iterdir()] == ["inside"]
    fetch("toy", tmp_path, publisher.address)
    assert len(publisher.asked) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive(["../outside"]), "cannot be unpacked"),
        (archive(["elsewhere/file"]), "has no folder 'inside'"),
        (archive(["inside/file"])[:40], "cannot be unpacked"),
        (b"no archive", "cannot be unpacked"),
    ],
    ids=["leads out", "another folder", "cut off", "no archive"],  # the bytes tell the time
)
def test_bad_archives(publisher, tmp_path, data_set, content, message):
    publisher.files["set.bin"] = content
    data_set(None, unpack="inside")
    with pytest.raises(UserError, match=message):
        fetch("toy", tmp_path / "data", publisher.address)
    assert not (tmp_path / "data" / "outside").exists()
    assert not (tmp_path / "outside").exists()


def test_a_folder_that_cannot_be_written(publisher, tmp_path):
    (tmp_path / "toys").write_text("a file where a folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        fetch("toy", tmp_path, publisher.address)


@pytest.mark.parametrize(
    ("name", "mirror", "message"),
    [
        ("aduld", None, "There is no data set 'aduld'; did you mean 'adult'"),
        ("digits", None, "comes with scikit-learn; there is nothing to fetch"),
        ("shakespeare-leaf", None, "cannot be fetched by a program: get it from https://leaf"),
        ("toy", "ftp://x", "begins with http"),
        ("toy", "/etc", "begins with http"),
    ],
)
def test_impossible_requests(tmp_path, name, mirror, message):
    with pytest.raises(UserError, match=message):
        fetch(name, tmp_path, mirror)


def test_one_set_may_need_another(publisher, tmp_path, monkeypatch):
    both = Download("more", "", (File("more.bin", None),), needs=("toy",))
    monkeypatch.setitem(fetching.DOWNLOADS, "both", both)
    publisher.files["more.bin"] = b"more"
    assert [path.name for path in fetch("both", tmp_path, publisher.address)] == [
        "set.bin",
        "more.bin",
    ]


def test_every_source_says_where_it_comes_from():
    for name in SOURCES:
        assert came_from(name)
    for name, download in DOWNLOADS.items():
        assert name in SOURCES or name == "toy"
        assert download.base.startswith("http")
        assert download.base.endswith("/")


@pytest.mark.data
@pytest.mark.parametrize("name", sorted(DOWNLOADS))
def test_checksums_are_those_of_the_real_files(data_root, name):
    for file in DOWNLOADS[name].files:
        path = data_root / DOWNLOADS[name].folder / file.name
        if not path.is_file():
            pytest.skip(f"{file.name} is not among the real data")
        algorithm, _, digits = file.checksum.partition(":")
        assert hashlib.new(algorithm, path.read_bytes()).hexdigest() == digits
