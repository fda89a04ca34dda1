"""The guide for a consortium: its commands and options are ones that the programs know."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import click
import typer
from flwr.cli.app import app as flwr
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode

from fedsaddle.cli import app as fedsaddle
from fedsaddle.flower.node import Node
from fedsaddle.flower.policy import Policy

GUIDE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


def blocks(language):
    fenced = [block.partition("\n") for block in GUIDE.split("```")[1::2]]
    return [text for name, _, text in fenced if name == language]


def started(program):
    """The arguments of a program in a systemd unit."""
    (line,) = re.findall(rf"ExecStart=\S+{program}(.*?)(?<!\\)\n", GUIDE, re.DOTALL)
    return shlex.split(line.replace("\\\n", " "))


def commands(program):
    lines = [line for block in blocks("") for line in block.splitlines()]
    cut = [line.partition("  #")[0].rsplit("bin/", 1)[-1] for line in lines]
    return [line for line in cut if line.startswith(f"{program} ")]


@pytest.mark.parametrize("line", commands("fedsaddle") + commands("flwr"))
def test_a_command_is_known(line):
    program, *words = shlex.split(line.replace("RUN_ID", "7").replace("NODE_ID", "7"))
    command = typer.main.get_command({"fedsaddle": fedsaddle, "flwr": flwr}[program])
    context = click.Context(command)
    while isinstance(command, click.Group):
        word = words.pop(0)
        assert word in command.commands, f"{line}: {word}"
        command = command.commands[word]
        context = click.Context(command, parent=context)
    command.parse_args(context, words)


def test_the_services_are_started_with_known_options():
    link = superlink().parse_args(started("flower-superlink"))
    assert link.enable_supernode_auth
    assert not link.runtime_dependency_install
    assert (link.host, link.database) == ("127.0.0.1", "/srv/fedsaddle/superlink.db")
    node = supernode().parse_args(started("python -m fedsaddle.flower.supernode"))
    assert not node.insecure
    settings = tomllib.loads("\n".join(shlex_pairs(node.node_config)))
    assert Node.read(settings).site == "north"


def shlex_pairs(text):
    """`a="b" c="d"` as lines of TOML."""
    return re.findall(r'\w+="[^"]*"', text)


def test_the_policy_is_one():
    texts = [block for block in blocks("toml") if "min_rows" in block]
    policy = Policy(**tomllib.loads(texts[0]))
    assert policy.min_rows == 50


def test_links_within_the_guide_lead_somewhere():
    headings = re.findall(r"^## (.*)$", GUIDE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", GUIDE)) <= anchors
