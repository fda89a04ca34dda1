"""Next characters by speaker: windows, the split by time, and files that are not what they say."""

import json
import zipfile

import numpy as np
import pytest
import torch

from fedsaddle.data import DataOptions, load
from fedsaddle.data.sources import shakespeare
from fedsaddle.data.sources.shakespeare import ALPHABET, WINDOW, Windows, encode
from fedsaddle.errors import UserError


def text_of(tokens):
    return "".join(ALPHABET[token] for token in tokens.tolist())


def options(tmp_path, source="shakespeare", **more):
    return DataOptions(source=source, root=tmp_path, **more)


def write(tmp_path, name, content):
    folder = tmp_path / name.split("/")[0]
    folder.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)


def prose(n, seed=0):
    letters = np.random.default_rng(seed).choice(list("abcdefgh ,."), n)
    return "".join(letters)


def test_the_alphabet_is_fixed():
    assert len(ALPHABET) == len(set(ALPHABET)) == 86
    assert text_of(encode('O, that\'s\n"it"!')) == 'O, that\'s\n"it"!'
    assert encode("é—\t").tolist() == [0, 0, 0]


def test_windows_are_cut_when_asked_for():
    store = Windows(encode("abcdefg"), np.array([0, 1, 3]), 4)
    assert store.shape == (3, 4)
    assert len(store) == 3
    cut = store[torch.tensor([[2, 0]])]
    assert cut.dtype == torch.int32
    assert [text_of(row) for row in cut[0]] == ["defg", "abcd"]


def test_each_window_is_followed_by_its_label(tmp_path):
    long, other = prose(2500), prose(300, seed=1)
    content = f"First  Citizen:\n{long[:1000]}\n\nALL:\n{other}\n\nFIRST CITIZEN:\n{long[1000:]}\n"
    write(tmp_path, "shakespeare-text/input.txt", content)
    data = load(options(tmp_path), binary=False)
    assert data.names == ("ALL", "FIRST CITIZEN")
    assert data.classes == ALPHABET
    assert data.input_shape == (WINDOW,)
    said = {0: other, 1: long[:1000] + "\n" + long[1000:]}
    spans = {}
    for part in ("train", "validation", "test"):
        for client, rows in enumerate(getattr(data, part)):
            inputs = data.take(torch.from_numpy(rows))
            assert inputs.dtype == torch.int64
            places = [said[client].index(text_of(row)) for row in inputs]
            spans[client, part] = places
            after = [said[client][place + WINDOW] for place in places]
            assert [ALPHABET[label] for label in data.labels[rows]] == after
    assert len(spans[0, "train"]) == 220  # all of it: too short to be cut
    assert not spans[0, "test"]
    # In order of time, and no window reaches into the next part.
    assert max(spans[1, "train"]) + WINDOW < min(spans[1, "validation"])
    assert max(spans[1, "validation"]) + WINDOW < min(spans[1, "test"])
    assert len(spans[1, "test"]) == 242


def test_few_windows_and_binary_questions(tmp_path):
    content = f"A:\n{prose(900)}\n\nB:\n{prose(200)}\n\nC:\nToo short.\n"
    write(tmp_path, "shakespeare-text/input.txt", content)
    assert load(options(tmp_path), binary=False).names == ("A", "B")
    data = load(options(tmp_path, min_rows=500, validation=0), binary=False)
    assert data.names == ("A",)
    assert data.train.counts.sum() + data.test.counts.sum() == 820 - WINDOW
    with pytest.raises(UserError, match=r"data.min_rows: no client has 5000 rows"):
        load(options(tmp_path, min_rows=5000), binary=False)
    assert load(options(tmp_path, positive="e")).classes == ("not e", "e")
    with pytest.raises(UserError, match="the problem needs two"):
        load(options(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("A:\nHello.\n", "input.txt: no speaker has more than 80 characters"),
        ("", "no speaker has more"),
        ("Once upon a time\nthere was", "comes 'Once upon a time', not a speaker's name"),
    ],
)
def test_texts_that_are_not_plays(tmp_path, content, message):
    write(tmp_path, "shakespeare-text/input.txt", content)
    with pytest.raises(UserError, match=message):
        load(options(tmp_path), binary=False)


def play(lines):
    return (
        '<?xml version="1.0"?><!-- <!DOCTYPE PLAY SYSTEM "play.dtd"> --><PLAY><ACT><SCENE><SPEECH>'
        "<SPEAKER>HAMLET</SPEAKER>"
        + "".join(f"<LINE>{line}</LINE>" for line in lines)
        + "</SPEECH><SPEECH><SPEAKER>Rosencrantz</SPEAKER><SPEAKER>GUILDENSTERN</SPEAKER>"
        f"<LINE><STAGEDIR>Aside</STAGEDIR> {'Both. ' * 20}</LINE></SPEECH></SCENE></ACT></PLAY>"
    )


def test_plays_in_xml(tmp_path):
    write(tmp_path, "shakespeare-text/hamlet.xml", play(["To be,  or &amp; not"] * 10))
    found = list(shakespeare.play_speeches((tmp_path / "shakespeare-text/hamlet.xml").read_bytes()))
    assert found[0] == ("HAMLET", "\n".join(["To be, or & not"] * 10))
    assert found[1] == ("ROSENCRANTZ AND GUILDENSTERN", ("Both. " * 20).strip())
    data = load(options(tmp_path, "shakespeare-plays"), binary=False)
    assert data.names == ("hamlet: HAMLET", "hamlet: ROSENCRANTZ AND GUILDENSTERN")


BOMB = """<?xml version="1.0"?><!DOCTYPE PLAY [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><PLAY><SPEECH><LINE>&c;</LINE></SPEECH></PLAY>"""
OUTSIDE = '<!DOCTYPE P [<!ENTITY x SYSTEM "file:///etc/passwd">]><P><LINE>&x;</LINE></P>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, r"hamlet.xml: has a document type"),
        (OUTSIDE, r"hamlet.xml: has a document type"),
        ("<PLAY><SPEECH>", r"hamlet.xml: cannot be read as XML"),
        ("<PLAY>&bomb;</PLAY>", r"hamlet.xml: cannot be read as XML"),
        ("To be", r"hamlet.xml: cannot be read as XML"),
        ('<?xml version="1.0" encoding="klingon"?><PLAY/>', r"cannot be read as XML"),
        ("<PLAY/>", "no speaker has more than 80"),
    ],
)
def test_bad_xml_is_refused(tmp_path, content, message):
    write(tmp_path, "shakespeare-text/hamlet.xml", content)
    with pytest.raises(UserError, match=message):
        load(options(tmp_path, "shakespeare-plays"), binary=False)


def test_plays_in_an_archive(tmp_path, monkeypatch):
    folder = tmp_path / "shakespeare-text"
    folder.mkdir()
    path = folder / "nltk-shakespeare.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("shakespeare/hamlet.xml", play(["To be or not to be"] * 20))
        archive.writestr("shakespeare/README", "no play")
    assert load(options(tmp_path, "shakespeare-plays"), binary=False).n_clients == 2
    monkeypatch.setattr(shakespeare, "LARGEST_PLAY", 100)
    with pytest.raises(UserError, match=r"hamlet.xml is too large for a play"):
        load(options(tmp_path, "shakespeare-plays"), binary=False)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot be read as a zip archive"):
        load(options(tmp_path, "shakespeare-plays"), binary=False)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README", "no play")
    with pytest.raises(UserError, match="has no XML file"):
        load(options(tmp_path, "shakespeare-plays"), binary=False)


def leaf_json(users):
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(text) - 1 for text in users.values()],  # 79 too high, as published
            "user_data": {
                user: {
                    "x": [text[i : i + 80] for i in range(len(text) - 80)],
                    "y": list(text[80:]),
                }
                for user, text in users.items()
            },
        }
    )


def test_leaf_counts_the_lists(tmp_path):
    train = {"LEAR_FOOL": prose(180), "LEAR_EDGAR": prose(120, 1)}
    write(tmp_path, "shakespeare-leaf/all_data_train_9.json", leaf_json(train))
    write(tmp_path, "shakespeare-leaf/all_data_test_9.json", leaf_json({"LEAR_FOOL": prose(90, 2)}))
    write(tmp_path, "shakespeare-leaf/notes.json", "{}")
    data = load(options(tmp_path, "shakespeare-leaf", validation=0), binary=False)
    assert data.names == ("LEAR_EDGAR", "LEAR_FOOL")
    assert data.train.counts.tolist() == [40, 100]
    assert data.test.counts.tolist() == [0, 10]
    row = data.train[1][:1]
    assert text_of(data.take(torch.from_numpy(row))[0]) == train["LEAR_FOOL"][:80]
    assert ALPHABET[data.labels[row[0]]] == train["LEAR_FOOL"][80]


GOOD = {"users": ["a"], "user_data": {"a": {"x": ["b" * 80], "y": ["c"]}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": ["a"', "train.json: cannot be read as LEAF's JSON"),
        ("[1, 2]", "cannot be read as LEAF's JSON"),
        (json.dumps({"users": ["a"]}), "cannot be read as LEAF's JSON"),
        (json.dumps(GOOD | {"users": ["a", "z"]}), "cannot be read as LEAF's JSON"),
        (json.dumps(GOOD | {"user_data": {"a": {"x": ["b"], "y": ["c"]}}}), "text of 80"),
        (json.dumps(GOOD | {"user_data": {"a": {"x": ["b" * 80], "y": []}}}), "1 x but 0 y"),
        (json.dumps(GOOD | {"user_data": {"a": {"x": ["b" * 80], "y": [3]}}}), "of 1 character"),
        (json.dumps({"users": [], "user_data": {}}), "the files have no rows"),
        ("[" * 100_000, "cannot be read as LEAF's JSON"),
    ],
)
def test_bad_json_is_refused(tmp_path, content, message):
    write(tmp_path, "shakespeare-leaf/train.json", content)
    with pytest.raises(UserError, match=message):
        load(options(tmp_path, "shakespeare-leaf"), binary=False)


def test_missing_files(tmp_path):
    for source, hint in (
        ("shakespeare", "fedsaddle data fetch shakespeare'"),
        ("shakespeare-plays", "fedsaddle data fetch shakespeare-plays'"),
        ("shakespeare-leaf", "LEAF's scripts"),
    ):
        with pytest.raises(UserError, match=hint):
            load(options(tmp_path, source), binary=False)


@pytest.mark.data
def test_the_real_tiny_shakespeare(data_root):
    data = load(options(data_root), binary=False)
    assert data.n_clients == 253
    assert data.n_classes == 86
    speaker = data.names.index("FIRST CITIZEN")
    first = text_of(data.inputs[torch.from_numpy(data.train[speaker][:1])][0])
    assert first.startswith("Before we proceed any further, hear me speak.\nYou are all resolved")
    assert not (data.labels == 0).any()  # no character outside the alphabet
    assert load(options(data_root, min_rows=5000), binary=False).n_clients == 64


@pytest.mark.data
def test_the_real_plays(data_root):
    data = load(options(data_root, "shakespeare-plays"), binary=False)
    assert len({name.split(":")[0] for name in data.names}) == 8
    hamlet = data.train[data.names.index("hamlet: HAMLET")]
    assert text_of(data.inputs[torch.from_numpy(hamlet[:1])][0]).startswith(
        "A little more than kin, and less than kind.\nNot so, my lord; I am too much i' th"
    )
    assert len(hamlet) == data.train.counts.max()


@pytest.mark.data
def test_the_real_leaf_files(data_root):
    data = load(options(data_root, "shakespeare-leaf", validation=0), binary=False)
    assert (len(data.train.indices), len(data.test.indices)) == (41990, 3881)
    user = data.names.index("THE_TRAGEDY_OF_KING_LEAR_PHILOSTRATE")
    assert (data.train.counts[user], data.test.counts[user]) == (823, 13)
    row = data.train[user][:1]
    assert text_of(data.inputs[torch.from_numpy(row)][0]).startswith("Here, mighty Theseus.")
    assert ALPHABET[data.labels[row[0]]] == "w"
