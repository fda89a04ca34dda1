"""Participation that was seen once can be played again."""

import json

import pytest
import torch

import fedsaddle
from fedsaddle.errors import UserError
from fedsaddle.federation.trace import Trace


def train(out, **federation):
    federation = {"retries": 5, **federation}
    return fedsaddle.train("auc", rounds=6, out=out, federation=federation)


def test_a_run_with_dropouts_and_repeated_phases_is_replayed_bit_for_bit(tmp_path):
    first = train(tmp_path / "first", availability="dropout", dropout=0.45, quorum=0.6)
    ledger = tmp_path / "first" / "ledger.jsonl"
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert any(entry["attempt"] for entry in entries)
    again = train(tmp_path / "again", availability="trace", trace=str(ledger), quorum=0.6)
    assert all(torch.equal(first.x[name], again.x[name]) for name in first.x)
    assert [e["answered"] for e in again.record.ledger] == [e["answered"] for e in entries]


def test_refused_replies_are_not_asked_for_again(tmp_path):
    entry = {
        "round": 3,
        "phase": "steps",
        "attempt": 0,
        "answered": [0, 2, 5],
        "refused": {"2": "x"},
    }
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps(entry) + "\n")
    assert Trace(path).answering(2, "steps", 0).tolist() == [0, 5]
    with pytest.raises(UserError, match=r"no attempt 1 at phase 'steps' of round 3"):
        Trace(path).answering(2, "steps", 1)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match=r"federation\.trace: name the ledger\.jsonl"):
        train(None, availability="trace")
    with pytest.raises(UserError, match=r"together with federation\.availability = 'trace'"):
        train(None, trace="ledger.jsonl")
    with pytest.raises(UserError, match="there is no such file"):
        train(None, availability="trace", trace=str(tmp_path / "none.jsonl"))
    (tmp_path / "other.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(UserError, match="not a ledger"):
        train(None, availability="trace", trace=str(tmp_path / "other.jsonl"))
