"""Shakespeare's lines by speaker: which character comes next after 80 characters?

McMahan et al. (2017) and LEAF (Caldas et al., 2018). Three forms of it:

- ``shakespeare``: one plain text in which a speech opens with "SPEAKER:" on a line of its own
  (Karpathy's "tiny Shakespeare");
- ``shakespeare-plays``: plays in XML (Bosak, 1996), a speaker of one play being one client;
- ``shakespeare-leaf``: windows as LEAF's own scripts write them.

The first two put a speaker's last tenth aside for testing, and the tenth before it for validation,
with a gap so that no window reaches into the next part. A speaker with fewer than 1600 windows has
no validation rows, one with fewer than 800 no test rows.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
import torch

from fedsaddle.data.federated import Store
from fedsaddle.data.options import DataOptions
from fedsaddle.data.partition import natural_order
from fedsaddle.data.sources.published import fetch_advice, locate, read_text
from fedsaddle.data.sources.raw import Part, Raw
from fedsaddle.data.splits import TEST, TRAIN, VALIDATION
from fedsaddle.errors import UserError

WINDOW = 80
OTHER = "other"
ALPHABET: tuple[str, ...] = (
    OTHER,
    *"\n !\"#$%&'()*,-./0123456789:;?@",
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_",
    *"abcdefghijklmnopqrstuvwxyz",
)
"""What a token stands for, 0 to 85: public and fixed, so that no client's text decides it.

The 86 characters of the papers (Reddi et al., 2021; Deng et al., 2020), sorted, with everything
else in the place of the carriage return.
"""
LARGEST_PLAY = 50_000_000  # bytes; a zip archive may promise far less than it unpacks to

_CODES = np.zeros(128, dtype=np.uint8)
_CODES[[ord(sign) for sign in ALPHABET[1:]]] = np.arange(1, len(ALPHABET))

Parts = dict[str, str]


class Windows(Store):
    """Overlapping pieces of one long text, cut when they are asked for.

    >>> windows = Windows(encode("abcd"), np.array([0, 1]), 3)
    >>> ["".join(ALPHABET[i] for i in row) for row in windows[torch.tensor([1, 0])].tolist()]
    ['bcd', 'abc']
    """

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, length: int = WINDOW) -> None:
        self.tokens = torch.from_numpy(tokens)
        self.starts = torch.from_numpy(starts)
        self.reach = torch.arange(length)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.starts), len(self.reach)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        return self.tokens[self.starts[rows].unsqueeze(-1) + self.reach].to(torch.int32)


def encode(text: str) -> np.ndarray:
    """One token per character.

    >>> [ALPHABET[token] for token in encode("To—")]
    ['T', 'o', 'other']
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return np.where(points < 128, _CODES[np.minimum(points, 127)], 0).astype(np.uint8)


def tiny(options: DataOptions, binary: bool) -> Raw:
    """Read input.txt from ``root/shakespeare-text``, or from ``root`` itself."""
    path = locate(options, "shakespeare-text", "input.txt", fetch_advice("shakespeare"))
    return _by_speaker("shakespeare", str(path), speeches(read_text(path), str(path)))


def speeches(text: str, where: str = "the text") -> Iterator[tuple[str, str]]:
    """Speaker and words of every speech; after an empty line, "SPEAKER:" opens one.

    >>> list(speeches("First  Citizen:\\nSpeak,\\nspeak.\\n\\nALL:\\nSpeak."))
    [('FIRST CITIZEN', 'Speak,\\nspeak.'), ('ALL', 'Speak.')]
    """
    for block in text.replace("\r\n", "\n").split("\n\n"):
        heading, _, words = block.strip("\n").partition("\n")
        if not heading.strip():
            continue
        if not heading.rstrip().endswith(":"):
            raise UserError(
                f"{where}: after an empty line comes '{heading[:40]}', not a speaker's name "
                "with a colon."
            )
        yield " ".join(heading.rstrip(": ").upper().split()), words


def plays(options: DataOptions, binary: bool) -> Raw:
    """Read XML plays from ``root/shakespeare-text``: an archive nltk-shakespeare.zip, or files."""
    folder = options.folder / "shakespeare-text"
    folder = folder if folder.is_dir() else options.folder
    files = sorted({*folder.glob("*.xml"), *folder.glob("shakespeare/*.xml")})
    if files:
        found = {path.stem: (str(path), _bytes_of(path)) for path in files}
    else:
        advice = fetch_advice("shakespeare-plays")
        found = _unzip(locate(options, "shakespeare-text", "nltk-shakespeare.zip", advice))
    said = (
        (f"{play}: {speaker}", words)
        for play, (where, content) in found.items()
        for speaker, words in play_speeches(content, where)
    )
    return _by_speaker("shakespeare-plays", str(folder), said)


def play_speeches(content: bytes, where: str = "the play") -> Iterator[tuple[str, str]]:
    """Speaker and words of every SPEECH; several speakers at once are one of their own.

    A document type is refused, because it could declare entities that grow without bound.
    """

    def refuse(*_: object) -> None:
        raise UserError(f"{where}: has a document type (<!DOCTYPE …>); remove that line.")

    guard = expat.ParserCreate()
    guard.StartDoctypeDeclHandler = refuse
    try:
        guard.Parse(content, True)
        play = ElementTree.fromstring(content)
    except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise UserError(f"{where}: cannot be read as XML ({error}).") from error
    for speech in play.iter("SPEECH"):
        names = [" ".join((name.text or "").upper().split()) for name in speech.iter("SPEAKER")]
        # A stage direction inside a line is not spoken.
        lines = [
            (line.text or "") + "".join(child.tail or "" for child in line)
            for line in speech.iter("LINE")
        ]
        yield " AND ".join(names) or "NOBODY", "\n".join(" ".join(line.split()) for line in lines)


def leaf(options: DataOptions, binary: bool) -> Raw:
    """Read LEAF's JSON files from ``root/shakespeare-leaf``: "train" or "test" in their names."""
    folder = options.folder / "shakespeare-leaf"
    paths = natural_order([str(path) for path in folder.rglob("*.json")])
    marks = [_leaf_mark(Path(path)) for path in paths]
    if TRAIN not in marks:
        raise UserError(
            f"{folder}: has no JSON file with 'train' in its name; make the files with LEAF's "
            "scripts (https://leaf.cmu.edu), and set data.root to the folder above."
        )
    inputs, outputs, users, split, parts = [], [], [], [], []
    for path, mark in zip(paths, marks, strict=True):
        if mark is None:
            continue
        n = 0
        for user, xs, ys in _leaf_users(Path(path)):
            inputs += xs
            outputs += ys
            users += [user] * len(xs)
            n += len(xs)
        split += [mark] * n
        parts.append(Part(path, n))
    if not inputs:
        raise UserError(f"{folder}: the files have no rows.")
    return Raw(
        source="shakespeare-leaf",
        parts=tuple(parts),
        array=Windows(encode("".join(inputs)), np.arange(len(inputs)) * WINDOW),
        labels=np.array(ALPHABET)[encode("".join(outputs))],
        clients=np.array(users, dtype=object),
        classes=ALPHABET,
        split=np.array(split, dtype=np.int8) if TEST in split else None,
    )


def _leaf_mark(path: Path) -> int | None:
    words = {*path.stem.split("_"), path.parent.name}
    return TEST if "test" in words else TRAIN if "train" in words else None


def _leaf_users(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each user's windows and next characters, by the lists themselves.

    ``num_samples`` is not read: LEAF's split by time leaves it 79 too high in test files.
    """
    try:
        found = json.loads(read_text(path))
        pairs = [(user, found["user_data"][user]) for user in found["users"]]
        rows = [(str(user), list(rows["x"]), list(rows["y"])) for user, rows in pairs]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read as LEAF's JSON with users and user_data ({error!r})."
        ) from error
    for user, xs, ys in rows:
        if len(xs) != len(ys):
            raise UserError(f"{path}: user '{user}' has {len(xs)} x but {len(ys)} y.")
        for name, texts, length in (("x", xs, WINDOW), ("y", ys, 1)):
            for row, text in enumerate(texts, start=1):
                if not isinstance(text, str) or len(text) != length:
                    raise UserError(
                        f"{path}: {name} of user '{user}', row {row}, must be a text of "
                        f"{length} character{'s' * (length > 1)}."
                    )
        yield user, xs, ys


def _by_speaker(source: str, where: str, said: Iterable[tuple[str, str]]) -> Raw:
    """Windows over each speaker's words, all their speeches joined by line ends."""
    words: dict[str, list[str]] = {}
    for speaker, text in said:
        words.setdefault(speaker, []).append(text)
    starts, split, clients = [], [], []
    texts: list[np.ndarray] = []
    at = 0
    for speaker in natural_order(list(words)):
        tokens = encode("\n".join(words[speaker]))
        marks = _by_time(len(tokens) - WINDOW)
        used = np.flatnonzero(marks >= 0)
        starts.append(at + used)
        split.append(marks[used])
        clients += [speaker] * len(used)
        texts.append(tokens)
        at += len(tokens)
    if not clients:
        raise UserError(f"{where}: no speaker has more than {WINDOW} characters.")
    tokens, first, marks = np.concatenate(texts), np.concatenate(starts), np.concatenate(split)
    return Raw(
        source=source,
        parts=(Part(where, len(first)),),
        array=Windows(tokens, first),
        labels=np.array(ALPHABET)[tokens[first + WINDOW]],
        clients=np.array(clients, dtype=object),
        classes=ALPHABET,
        split=marks if marks.any() else None,
    )


def _by_time(n: int) -> np.ndarray:
    """Training, validation and test marks of n windows in order, −1 in the gaps between them."""
    marks = np.full(max(n, 0), TRAIN, dtype=np.int8)
    tenth = n // 10
    if tenth >= WINDOW:
        marks[n - tenth :] = TEST
        marks[n - tenth - WINDOW : n - tenth] = -1
    if tenth >= 2 * WINDOW:
        marks[n - 2 * tenth : n - tenth - WINDOW] = VALIDATION
        marks[n - 2 * tenth - WINDOW : n - 2 * tenth] = -1
    return marks


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error}).") from error


def _unzip(path: Path) -> dict[str, tuple[str, bytes]]:
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if not name.endswith(".xml"):
                    continue
                with archive.open(name) as file:
                    content = file.read(LARGEST_PLAY + 1)
                if len(content) > LARGEST_PLAY:
                    raise UserError(f"{path}: {name} is too large for a play.")
                found[Path(name).stem] = (f"{path}: {name}", content)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be read as a zip archive ({error}).") from error
    if not found:
        raise UserError(f"{path}: has no XML file.")
    return found
