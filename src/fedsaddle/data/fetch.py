"""Downloading published data sets from their publishers, checked and resumable.

A file is written to ``name.part`` beside its place, continued from there after an interruption
(HTTP Range), compared with its checksum, and only then given its name.
"""

from __future__ import annotations

import http.client
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fedsaddle.data.sources.medmnist import DESCRIPTIONS as MEDMNIST
from fedsaddle.data.sources.published import BY_HAND
from fedsaddle.errors import UserError, nearest

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, its bytes so far, and all its bytes if they are known."""

CHUNK = 1 << 18
TIMEOUT = 60.0
ATTEMPTS = 5
"""How often in a row a connection may break without a byte of progress."""


@dataclass(frozen=True)
class File:
    """One file: its name here, its checksum (``algorithm:digits``), its name at the publisher."""

    name: str
    checksum: str | None
    remote: str = ""
    unpack: str = ""
    """For an archive: the folder that it unpacks to."""


@dataclass(frozen=True)
class Download:
    """A data set that can be fetched: its folder under ``data.root``, its address and files."""

    folder: str
    base: str
    files: tuple[File, ...]
    needs: tuple[str, ...] = ()


def _files(*pairs: tuple[str, str]) -> tuple[File, ...]:
    return tuple(File(name, f"sha256:{digits}") for name, digits in pairs)


MNIST_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
MNIST = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
FASHION = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
MEDMNIST_MD5 = {  # as its authors give them (medmnist 2.1)
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "chestmnist": "02c8a6516a18b556561a56cbdd36c4a8",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
    "organamnist": "866b832ed4eeba67bfb9edee1d5544e6",
    "organcmnist": "0afa5834fb105f7705a7d93372119a21",
    "organsmnist": "e5c39f1af030238290b9557d9503af9d",
}

DOWNLOADS = {
    "heart-disease": Download(
        "heart-disease",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        _files(
            (
                "processed.cleveland.data",
                "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            ),
            (
                "processed.hungarian.data",
                "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            ),
            (
                "processed.switzerland.data",
                "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            ),
            (
                "processed.va.data",
                "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
            ),
        ),
    ),
    "adult": Download(
        "adult",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
        _files(
            ("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            ("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        ),
    ),
    "a9a": Download(
        "libsvm",
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
        _files(
            ("a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
            ("a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
        ),
    ),
    "shakespeare": Download(
        "shakespeare-text",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        _files(("input.txt", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")),
    ),
    "shakespeare-plays": Download(
        "shakespeare-text",
        "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/",
        (
            File(
                "nltk-shakespeare.zip",
                "sha256:f1251d8c254710363254ba29c9dc0888d5cb13d5ac736ebc6fb14380f447cfc3",
                remote="shakespeare.zip",
            ),
        ),
    ),
    "mnist": Download(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        _files(*zip(MNIST_NAMES, MNIST, strict=True)),
    ),
    "fashion-mnist": Download(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        _files(*zip(MNIST_NAMES, FASHION, strict=True)),
    ),
    "qmnist": Download(
        "qmnist-writers",
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
        _files(
            (
                "qmnist-train-labels-idx2-int.gz",
                "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            ),
            (
                "qmnist-test-labels-idx2-int.gz",
                "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
            ),
        ),
        needs=("mnist",),
    ),
    "cifar-10": Download(
        "cifar-10",
        "https://www.cs.toronto.edu/~kriz/",
        (
            File(
                "cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                unpack="cifar-10-batches-py",
            ),
        ),
    ),
    "cifar-100": Download(
        "cifar-100",
        "https://www.cs.toronto.edu/~kriz/",
        (
            File(
                "cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                unpack="cifar-100-python",
            ),
        ),
    ),
    "stl-10": Download(
        "stl-10",
        "http://ai.stanford.edu/~acoates/stl10/",
        (
            File(
                "stl10_binary.tar.gz",
                "md5:91f7769df0f17e558f3565bffb0c7dfb",
                unpack="stl10_binary",
            ),
        ),
    ),
    **{
        name: Download(
            "medmnist",
            "https://zenodo.org/records/6496656/files/",
            (File(f"{name}.npz", f"md5:{MEDMNIST_MD5[name]}"),),
        )
        for name in MEDMNIST
    },
}


def came_from(name: str) -> str:
    """Where a data set comes from, in a few words.

    >>> came_from("digits"), came_from("mnist")
    ('scikit-learn', 'ossci-datasets.s3.amazonaws.com')
    """
    if name in DOWNLOADS:
        return urlsplit(DOWNLOADS[name].base).hostname or ""
    return f"{BY_HAND[name]} (by hand)" if name in BY_HAND else "scikit-learn"


def fetch(
    name: str, folder: Path, mirror: str | None = None, progress: Progress | None = None
) -> list[Path]:
    """Download a data set's files under ``folder``; those already there and right are kept.

    ``mirror`` is an address to use in place of the publisher's. Returns the files, or the folders
    that archives unpacked to.
    """
    from fedsaddle.data.sources import SOURCES

    if name in BY_HAND:
        raise UserError(
            f"{name} cannot be fetched by a program: get it from {BY_HAND[name]} and put it under "
            f"{folder}."
        )
    if name not in DOWNLOADS:
        if name in SOURCES:
            raise UserError(f"{name} comes with scikit-learn; there is nothing to fetch.")
        raise UserError(f"There is no data set '{name}'; {nearest(name, list(DOWNLOADS))}")
    download = DOWNLOADS[name]
    if mirror is not None and urlsplit(mirror).scheme not in ("http", "https"):
        raise UserError(f"--mirror {mirror}: give an address that begins with http:// or https://.")
    base = (mirror or download.base).rstrip("/")
    found = [path for other in download.needs for path in fetch(other, folder, mirror, progress)]
    for file in download.files:
        place = folder / download.folder
        url = f"{base}/{quote(file.remote or file.name)}"
        if file.unpack and (place / file.unpack).is_dir():
            found.append(place / file.unpack)
            continue
        path = _retrieve(url, place, file, progress or (lambda *_: None))
        found.append(_unpack(path, place / file.unpack) if file.unpack else path)
    return found


def _retrieve(url: str, place: Path, file: File, progress: Progress) -> Path:
    import pooch  # type: ignore[import-untyped]

    def downloader(url: str, output: Any, _: Any) -> None:
        part = place / f"{file.name}.part"
        _download(url, part, lambda done, total: progress(file.name, done, total))
        os.replace(part, output)

    pooch.get_logger().setLevel("WARNING")
    try:
        return Path(pooch.retrieve(url, file.checksum, file.name, place, downloader=downloader))
    except ValueError as error:  # pooch has removed the file
        raise UserError(
            f"{url}: the file is not the published one (its checksum differs) and was removed; "
            "try again, or another --mirror."
        ) from error
    except OSError as error:
        raise UserError(f"{place / file.name}: cannot be written ({error}).") from error


def _download(url: str, part: Path, progress: Callable[[int, int | None], None]) -> None:
    """Bring ``part`` to its full length, continuing what is there."""
    idle = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            total = _continue(url, part, before, progress)
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # the part is as long as the file, or longer
                if error.headers.get("Content-Range") == f"bytes */{before}":
                    return
                part.unlink()
                continue
            raise UserError(f"{url}: the server answers {error.code} ({error.reason}).") from error
        except urllib.error.URLError as error:
            raise UserError(
                f"{url}: cannot be reached ({error.reason}); are you online? "
                "Another address can be given with --mirror."
            ) from error
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason, total = str(error) or type(error).__name__, -1
        else:
            reason = "the connection was cut"
        size = part.stat().st_size if part.exists() else 0
        if total is None or size == total:
            return
        idle = idle + 1 if size <= before else 0
        if idle == ATTEMPTS:
            raise UserError(
                f"{url}: stopped after {size} bytes ({reason}); run the command again to continue."
            )


def _continue(
    url: str, part: Path, start: int, progress: Callable[[int, int | None], None]
) -> int | None:
    """One connection; the length of the whole file, if the server tells."""
    headers = {"User-Agent": "fedsaddle", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:
            start = 0  # the server sends the file from its beginning
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with open(part, "ab" if start else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                progress(file.tell(), total)
    return total


def _unpack(path: Path, wanted: Path) -> Path:
    """Unpack an archive beside itself and remove it."""
    try:
        with tarfile.open(path) as archive:
            # The filter refuses links and names that lead out of the folder.
            archive.extractall(path.parent, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be unpacked ({error}).") from error
    if not wanted.is_dir():
        raise UserError(f"{path}: has no folder '{wanted.name}'.")
    path.unlink()
    return wanted
