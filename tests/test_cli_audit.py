"""`fedsaddle audit`: what left a site."""

import json

import torch

from fedsaddle.flower import egress
from fedsaddle.flower.wire import Parcel, parcel


def test_replies_by_kind_and_one_by_one(run, tmp_path):
    vectors = {"z": torch.zeros(1, 7)}
    for number in range(2):
        request = {"kind": "phase", "experiment": "ab12", "run": "9", "round": number}
        asked = Parcel({**request, "phase": "steps"})
        egress.record(tmp_path, asked, parcel({"status": "ok"}, vectors))
    refused = Parcel({"status": "refused", "reason": "no"})
    egress.record(tmp_path, Parcel({"kind": "look", "experiment": "ab12"}), refused)

    code, out, _ = run("audit", tmp_path)
    assert code == 0
    assert "phase steps" in out
    assert "z 7" in out
    assert "look (refused)" in out
    assert "3 replies" in out
    assert len(run("audit", tmp_path, "--all")[1].splitlines()) > len(out.splitlines())
    replies = json.loads(run("audit", tmp_path, "--json")[1])["replies"]
    assert [reply.get("round") for reply in replies] == [0, 1, None]


def test_another_folder(run, tmp_path):
    code, _, error = run("audit", tmp_path)
    assert code == 2
    assert "state folder of a site" in error
