"""Whole runs over a grid in this process, against the simulator."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from fedsaddle.errors import UserError
from fedsaddle.flower import egress
from fedsaddle.flower.memory import VersionedMemory

from .inprocess import Killed, Rehearsal, tampered


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """As in a server app's process."""
    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def rehearsal(tmp_path):
    return Rehearsal(tmp_path)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_same(rehearsal, one="flower", other="simulated", ledger=True):
    first, second = (
        load_file(rehearsal.folder / name / "model" / "model.safetensors") for name in (one, other)
    )
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-6)
    if ledger:
        entries = [lines(rehearsal.folder / name / "ledger.jsonl") for name in (one, other)]
        assert without_norms(entries[0]) == without_norms(entries[1])


def without_norms(entries):
    return [{k: v for k, v in entry.items() if k != "norms"} for entry in entries]


@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        ("auc", "codasca"),
        ("auc", "cdma-ada"),
        ("auc", "coda-plus"),
        ("auc", "catalyst-scaffold-s"),
        ("auc", "local-sgda-plus"),
        ("agnostic", "drfa"),
        ("agnostic", "afl"),
        ("compositional-auc", "local-scgdam"),
        ("risk", "scaffold"),
        ("robust", "local-sgda"),
    ],
)
def test_every_kind_of_method_is_the_same_as_in_the_simulator(rehearsal, problem, algorithm):
    options = {"stage_rounds": 2} if algorithm in ("codasca", "coda-plus") else {}
    config = rehearsal.config(problem, algorithm, options=options)
    rehearsal.simulate(config)
    rehearsal.run(config)
    check_same(rehearsal)
    rows = [lines(rehearsal.folder / name / "metrics.jsonl") for name in ("flower", "simulated")]
    for here, there in zip(*rows, strict=True):
        assert here.pop("absent") == ""
        del here["seconds"], there["seconds"]
        assert here.keys() == there.keys()
        for name, value in there.items():
            assert here[name] == (value if isinstance(value, str) else pytest.approx(value, 1e-4))


def test_a_network_with_batch_normalisation_in_double_precision(rehearsal):
    config = rehearsal.config(
        model={"import": "tests.flower.networks:Normalised"}, engine={"dtype": "float64"}
    )
    for node in rehearsal.nodes:
        policy = rehearsal.folder / f"{node.site}.toml"
        policy.write_text('models = ["tests.flower.networks:Normalised"]\n')
    rehearsal.nodes = [
        type(node)(node.site, node.data, node.state, str(rehearsal.folder / f"{node.site}.toml"))
        for node in rehearsal.nodes
    ]
    rehearsal.simulate(config)
    rehearsal.run(config)
    check_same(rehearsal)


def test_several_findings(rehearsal):
    data = {"label": ["died", "edema"], "drop": []}
    config = rehearsal.config("multilabel-auc", data=data)
    rehearsal.simulate(config)
    rehearsal.run(config)
    check_same(rehearsal)


def test_nonsense_is_refused_and_the_rest_can_be_replayed(rehearsal):
    def fate(site, header, reply):
        if header["kind"] != "phase" or site != "ulm":
            return reply
        changes = {0: lambda v: v * np.nan, 1: lambda v: v[:, 1:], 2: lambda v: v.astype(int)}
        return tampered(reply, changes[header["round"]]) if header["round"] in changes else reply

    config = rehearsal.config()
    rehearsal.run(config, fate=fate)
    refused = [entry["refused"].get("2", "") for entry in lines(ledger(rehearsal))]
    assert [reason.split()[-1] for reason in refused[:3]] == [
        "finite",
        "(14,)",
        "missing",
    ] or refused
    assert "finite" in refused[0]
    assert "shape" in refused[1]
    assert "missing" in refused[2]
    assert refused[3] == ""
    rehearsal.simulate(config, "replayed", availability="trace", trace=str(ledger(rehearsal)))
    check_same(rehearsal, "flower", "replayed", ledger=False)


def ledger(rehearsal, run="flower"):
    return rehearsal.folder / run / "ledger.jsonl"


def test_a_late_reply_moves_no_control_variate(rehearsal):
    """The site has computed and stored its new memory, but its reply never arrives."""
    config = rehearsal.config(rounds=4)
    rehearsal.run(config, fate=lambda s, h, r: "lost" if late(s, h) else r)
    entries = lines(ledger(rehearsal))
    assert [len(entry["answered"]) for entry in entries] == [3, 2, 3, 3]
    rehearsal.simulate(config, "replayed", availability="trace", trace=str(ledger(rehearsal)))
    check_same(rehearsal, "flower", "replayed", ledger=False)
    assert lines(rehearsal.folder / "flower" / "metrics.jsonl")[1]["absent"] == "jena"


def late(site, header):
    return header["kind"] == "phase" and site == "jena" and header["round"] == 1


@pytest.mark.parametrize("after", range(1, 16, 2))
def test_a_coordinator_killed_at_any_moment_is_resumed(rehearsal, after):
    config = rehearsal.config(rounds=5)
    rehearsal.simulate(config)
    seen = []

    def fate(site, header, reply):
        if header["kind"] == "phase":
            seen.append(site)
            if len(seen) == after:
                raise Killed
        return reply

    with pytest.raises(Killed):
        rehearsal.run(config, fate=fate)
    rehearsal.run(config, resume=True)
    check_same(rehearsal)


def test_killed_during_the_set_up_it_starts_again(rehearsal):
    config = rehearsal.config(rounds=2)
    rehearsal.simulate(config)

    def fate(site, header, reply):
        if header["kind"] == "squares":
            raise Killed
        return reply

    with pytest.raises(Killed):
        rehearsal.run(config, fate=fate)
    rehearsal.run(config, resume=True)
    check_same(rehearsal)


def test_sites_keep_only_the_versions_that_checkpoints_need(rehearsal):
    rehearsal.run(rehearsal.config(rounds=9))
    (experiment,) = (p for p in rehearsal.state("ulm").iterdir() if p.is_dir())
    assert len(VersionedMemory(experiment).versions) <= 4


def test_a_lost_quorum_ends_the_run(rehearsal):
    config = rehearsal.config(rounds=4, federation={"quorum": 0.9, "retries": 0})
    with pytest.raises(UserError, match=r"2 of 3 .* No reply from: jena"):
        rehearsal.run(config, fate=lambda s, h, r: "lost" if late(s, h) else r)
    assert (rehearsal.folder / "flower" / "report.html").exists()


def test_sites_that_do_not_measure_are_asked_again_and_then_the_quorum_is_lost(rehearsal):
    count = []

    def fate(site, header, reply):
        count.append(header["kind"] == "measure")
        silent = header["kind"] == "measure" and site != "bonn" and sum(count) < 16
        return "lost" if silent else reply

    rehearsal.run(rehearsal.config(rounds=2), fate=fate)
    with pytest.raises(UserError, match="only 1 of 3 sites answered 'measure', 4 times in a row"):
        rehearsal.run(
            rehearsal.config(rounds=2),
            "silent",
            fate=lambda s, h, r: "lost" if h["kind"] == "measure" and s != "bonn" else r,
        )


def test_a_model_that_explodes_is_told_from_absent_sites(rehearsal):
    config = rehearsal.config(options={"learning_rate": 1e18}, rounds=4)
    with pytest.raises(UserError) as simulated:
        rehearsal.simulate(config)
    with pytest.raises(UserError) as flower:
        rehearsal.run(config)
    assert type(flower.value) is type(simulated.value)


def test_enough_replies_are_enough(rehearsal):
    config = rehearsal.config(rounds=3, federation={"enough": 0.6, "quorum": 0.3})
    rehearsal.run(config, fate=lambda s, h, r: None if h["kind"] == "phase" and s == "ulm" else r)
    assert {len(entry["answered"]) for entry in lines(ledger(rehearsal))} == {2}


def test_a_policy_refuses_methods_with_a_clear_word(rehearsal):
    policy = rehearsal.folder / "policy.toml"
    policy.write_text('methods = ["fedavg"]\n')
    first = rehearsal.nodes[0]
    rehearsal.nodes[0] = type(first)(first.site, first.data, first.state, str(policy))
    reason = r"site 'bonn': the site's policy does not allow method 'codasca'"
    with pytest.raises(UserError, match=reason):
        rehearsal.run(rehearsal.config())


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("min_rows = 500", "fewer rows than its policy wants"),
        ("min_rows = 30", "fewer training rows than its policy wants"),
        ("max_categories = 1", "more values than its policy tells"),
        ("methods = 3", "policy file cannot be read"),
        ("method = []", "policy file cannot be read"),
    ],
)
def test_a_policy_guards_statistics(rehearsal, rule, reason):
    policy = rehearsal.folder / "policy.toml"
    policy.write_text(rule)
    site = rehearsal.nodes[1]
    rehearsal.nodes[1] = type(site)(site.site, site.data, site.state, str(policy))
    with pytest.raises(UserError, match=f"site 'ulm': .*{reason}"):
        rehearsal.run(rehearsal.config())


def test_few_held_out_rows_are_left_out_where_the_policy_says_so(rehearsal):
    policy = rehearsal.folder / "policy.toml"
    policy.write_text("min_rows = 8\n")
    site = rehearsal.nodes[1]
    rehearsal.nodes[1] = type(site)(site.site, site.data, site.state, str(policy))
    result = rehearsal.run(rehearsal.config(rounds=2))
    told = {client["name"]: client for client in result.record.data["clients"]}
    assert told["ulm"]["validation_rows"] == 0
    assert told["ulm"]["test_rows"] >= 8
    assert told["bonn"]["validation_rows"] > 0


def test_a_network_by_import_path_has_to_be_allowed(rehearsal):
    config = rehearsal.config(model={"import": "tests.flower.networks:Normalised"})
    with pytest.raises(UserError, match=r"must list under models"):
        rehearsal.run(config)


def test_what_is_wrong_with_the_data_stays_at_the_site(rehearsal):
    path = rehearsal.folder / "ulm.csv"
    path.write_text(path.read_text() + "1,2,SECRET-7,4,x,1,0\n")
    with pytest.raises(UserError, match=r"site 'ulm': it could not answer") as caught:
        rehearsal.run(rehearsal.config(data={"numeric": ["c"]}))
    assert "SECRET" not in str(caught.value)


def test_other_settings_than_a_network_has_are_refused(rehearsal):
    with pytest.raises(UserError, match="is for simulations"):
        rehearsal.run(rehearsal.config(federation={"availability": "dropout"}))
    with pytest.raises(UserError, match=r"data\.positive_ratio is for simulations"):
        rehearsal.run(rehearsal.config(data={"positive_ratio": 0.1}))


def test_a_run_is_not_mistaken_for_another(rehearsal):
    config = rehearsal.config(rounds=2)
    rehearsal.run(config)
    with pytest.raises(UserError, match="this run is here already"):
        rehearsal.run(config)
    with pytest.raises(UserError, match="a different run"):
        rehearsal.run(rehearsal.config(algorithm="coda-plus"), resume=True)


def test_a_site_that_lost_its_state_is_told_apart(rehearsal):
    import shutil

    config = rehearsal.config(rounds=4, federation={"quorum": 0.9, "retries": 0})
    with pytest.raises(UserError):
        rehearsal.run(config, fate=lambda s, h, r: "lost" if late(s, h) else r)
    shutil.rmtree(rehearsal.state("ulm"))
    with pytest.raises(UserError, match="No reply from: ulm"):
        rehearsal.run(config, resume=True)


def test_every_reply_is_in_the_record_of_its_site(rehearsal):
    rehearsal.run(rehearsal.config(rounds=2))
    told = list(egress.entries(rehearsal.state("jena")))
    kinds = [entry["request"] for entry in told]
    set_up = ["hello", "look", "count", "squares", "prepare"]
    assert kinds == [*set_up, "measure", "phase", "phase", "measure"]
    assert told[6]["vectors"] == {"z": 10, "control_change": 10}
    assert told[6]["phase"] == "steps"
    with pytest.raises(UserError, match="state folder"):
        list(egress.entries(rehearsal.folder))
