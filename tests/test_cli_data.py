"""`fedsaddle data` as a user types it."""

import functools
import json
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedsaddle.data import fetch


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(tmp_path):
    """A folder and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_list_says_where_data_come_from(run):
    code, out, err = run("data", "list")
    assert code == 0, err
    assert "archive.ics.uci.edu" in out
    code, out, _ = run("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["digits"]["from"] == "scikit-learn"
    assert rows["adult"]["fetch"] == "yes"


def test_fetch_refuses_another_file(run, mirror, tmp_path):
    folder, address = mirror
    (folder / "a9a").write_text("1 1:1\n")
    code, out, err = run("data", "fetch", "a9a", "--dest", "here", "--mirror", address)
    assert (code, out) == (2, "")
    assert err.startswith(f"fedsaddle: {address}/a9a: the file is not the published one")
    assert len(err.strip().splitlines()) == 1
    assert not list((tmp_path / "here/libsvm").iterdir())


def test_fetch_shows_progress_in_a_terminal(run, mirror, monkeypatch, tmp_path):
    folder, address = mirror
    (folder / "toy.bin").write_bytes(bytes(500_000))
    toy = fetch.Download("toys", "http://127.0.0.1:9/", (fetch.File("toy.bin", None),))
    monkeypatch.setitem(fetch.DOWNLOADS, "toy", toy)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = run("data", "fetch", "toy", "--dest", "d", "--mirror", address)
    assert code == 0, err
    assert "toy.bin" in err
    assert out.endswith("use it with: --data toy --set data.root=d\n")
    assert (tmp_path / "d/toys/toy.bin").stat().st_size == 500_000


def test_fetch_offline_is_one_sentence(run):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, out, err = run("data", "fetch", "adult", "--dest", "d", "--mirror", address)
    assert (code, out) == (2, "")
    assert "cannot be reached" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.data
def test_fetch_then_train(run, mirror, data_root, tmp_path):
    folder, address = mirror
    for name in ("a9a", "a9a.t"):
        (folder / name).write_bytes((data_root / "libsvm" / name).read_bytes())
    code, out, err = run("data", "fetch", "a9a", "--dest", "d", "--mirror", address, "--json")
    assert code == 0, err
    assert json.loads(out)["files"] == [str(tmp_path / f"d/libsvm/{n}") for n in ("a9a", "a9a.t")]
    code, out, err = run(
        *("train", "--data", "a9a", "--set", "data.root=d", "--set", "data.partition=quantity"),
        *("--rounds", "2", "--out", "run"),
    )
    assert code == 0, err
    assert "held-out" in out


def test_describe_counts_and_draws(run):
    code, out, err = run("data", "describe", "--set", "data.clients=3")
    assert code == 0, err
    assert out.startswith("breast-cancer: 3 clients, 569 rows of shape 30, 212 positive (train ")
    assert all(sign in out for sign in ("client-2", "█", "░ benign", "█ malignant", "%"))
    code, out, _ = run("data", "describe", "--data", "digits", "--json")
    facts = json.loads(out)
    assert facts["classes"] == [str(digit) for digit in range(10)]
    assert sum(client["rows"] for client in facts["clients"]) == 1797
    code, out, _ = run("data", "describe", "--data", "digits", "--problem", "auc", "--json")
    assert json.loads(out)["classes"] == ["not 8", "8"]


def test_describe_many_clients_by_quantiles(run):
    code, out, err = run("data", "describe", "--set", "data.clients=100")
    assert code == 0, err
    assert "median" in out
    drawn = out.split("rows by class")[1]
    assert drawn.count("client-") == 32


def test_describe_a_config_and_write_a_page(run, tmp_path):
    (tmp_path / "run.toml").write_text('[data]\nsource = "digits"\npartition = "sorted"\n')
    settings = ("--set", "data.clients=4", "--seed", "3")
    code, out, err = run("data", "describe", "run.toml", *settings, "--out", "page.html")
    assert code == 0, err
    assert out.endswith("wrote page.html\n")
    assert "client-3" in (tmp_path / "page.html").read_text()
    code, _, err = run("data", "describe", "run.toml", "--out", "no/such/page.html")
    assert code == 2
    assert "page.html" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "fetch", "adlt"), "did you mean 'adult'"),
        (("data", "fetch", "digits"), "nothing to fetch"),
        (("data", "describe", "--data", "digts"), "did you mean 'digits'"),
        (("data", "describe", "--set", "data.clints=3"), "did you mean 'clients'"),
        (("data", "describe", "none.toml"), "there is no such file"),
    ],
)
def test_mistakes_are_one_sentence_and_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.data
def test_groups_of_adult_are_weighed(run, data_root, tmp_path):
    code, _, err = run(
        *("train", "--data", "adult", "--set", f"data.root={data_root}"),
        *("--set", "data.partition=feature", "--set", "data.feature=sex"),
        *("--set", "data.clients=10", "--problem", "risk", "--algorithm", "drfa"),
        *("--rounds", "3", "--out", "run"),
    )
    assert code == 0, err
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    weights = {key: value for key, value in last.items() if "Female" in key or "Male" in key}
    assert any(key.endswith("Female") for key in weights), sorted(last)
