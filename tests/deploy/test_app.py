"""The coordinator's folder, read by Flower's own tools."""

import tomllib
import zipfile
from io import BytesIO

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from fedsaddle.runs.config import read, resolve


def test_flower_takes_the_folder_and_finds_no_code_in_it(run, tmp_path):
    code, _, _ = run("deploy", "new", "study", "--set", "run.rounds=7", "--site", "north")
    assert code == 0
    config, warnings = load_and_validate(tmp_path / "study" / "pyproject.toml")
    assert not warnings
    assert config["tool"]["flwr"]["app"]["config"]["out"] == str(tmp_path / "study" / "run")
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(tmp_path / "study"))) as bundle:
        names = set(bundle.namelist())
    assert "config.toml" in names
    assert not [name for name in names if name.endswith(".py")]


def test_the_settings_are_those_of_a_simulation_on_another_engine(run, tmp_path):
    (tmp_path / "run.toml").write_text('[algorithm]\nname = "cdma-ada"\n[run]\nseed = 4\n')
    sites = ("--site", "north", "--site", "south")
    run("deploy", "new", "study", "--config", "run.toml", *sites)
    written = resolve(read(tmp_path / "study" / "config.toml"))
    assert (written.algorithm["name"], written.run.seed) == ("cdma-ada", 4)
    assert (written.engine.name, written.engine.sites) == ("flower", ["north", "south"])


def test_nothing_is_overwritten(run, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "notes.txt").write_text("mine")
    code, _, error = run("deploy", "new", "study")
    assert code == 2
    assert "study: there are files in it already" in error
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("data.partition=iid", "data.partition = 'iid' deals rows out anew"),
        ("data.positive_ratio=0.1", "data.positive_ratio is for simulations"),
        ("run.ronds=3", "did you mean"),
    ],
)
def test_settings_that_cannot_work_across_machines(run, tmp_path, setting, sentence):
    code, _, error = run("deploy", "new", "study", "--set", setting)
    assert code == 2
    assert sentence in error
    assert not (tmp_path / "study").exists()


def test_comments_explain_the_settings(run, tmp_path):
    run("deploy", "new", "study")
    text = (tmp_path / "study" / "config.toml").read_text()
    assert tomllib.loads(text)["data"]["source"] == "each site's own file"
    assert "# communication rounds" in text.lower()
