"""One short federation of real processes: the same model and ledger as in the simulator."""

import json


def test_codasca_across_processes_is_codasca_in_the_simulator(consortium):
    config = consortium.config("codasca", rounds=3)
    consortium.simulate(config)
    consortium.run(config, "flower")
    consortium.check_same_model("simulated", "flower")
    consortium.check_same_ledger("flower", "simulated")
    here, there = (consortium.lines(name, "metrics.jsonl")[-1] for name in ("flower", "simulated"))
    assert here["test/auc"] == there["test/auc"]
    assert here["absent"] == ""
    assert (consortium.folder / "flower" / "report.html").exists()
    assert_nothing_per_row_left(consortium)


def assert_nothing_per_row_left(consortium):
    """Every reply is in the site's own record, and none has a vector as long as its rows."""
    setup = json.loads((consortium.folder / "flower" / "setup.json").read_text())
    for site in consortium.sites:
        lines = (consortium.state(site) / "egress.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        kinds = [entry["request"] for entry in entries]
        assert kinds[:5] == ["hello", "look", "count", "squares", "prepare"]
        assert kinds.count("phase") == 3
        assert all(entry["status"] == "ok" and entry["bytes"] > 0 for entry in entries)
        assert {entry["experiment"] for entry in entries} == {None, setup["experiment"]}
