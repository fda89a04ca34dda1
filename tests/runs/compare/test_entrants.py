"""Who takes part: names, merged settings, the same data for all."""

import numpy as np
import pytest
import torch

from fedsaddle.errors import UserError
from fedsaddle.runs.compare import Entrant, named_entrants
from fedsaddle.runs.compare.entrants import data_of, merged, settle


def test_an_algorithm_replaces_the_section_and_others_are_merged():
    base = {
        "algorithm": {"name": "codasca", "learning_rate": 9.0},
        "problem": {"name": "auc", "surrogate": "margin"},
        "federation": {"clients_per_round": 3, "quorum": 0.5},
    }
    found = merged(base, {"algorithm": {"name": "fedavg"}, "federation": {"clients_per_round": 2}})
    assert found["algorithm"] == {"name": "fedavg"}
    assert found["federation"] == {"clients_per_round": 2, "quorum": 0.5}
    assert merged(base, {"problem": {"name": "risk"}})["problem"] == {"name": "risk"}
    assert base["federation"]["clients_per_round"] == 3


def test_settings_of_the_base_belong_to_its_method_or_to_all():
    own = {"algorithm": {"name": "codasca", "learning_rate": 0.3}}
    first, second = named_entrants(own, ["codasca", "local-sgda"])
    assert first.overrides["algorithm"] == {"name": "codasca", "learning_rate": 0.3}
    assert second.overrides["algorithm"] == {"name": "local-sgda"}
    shared = {"algorithm": {"local_steps": 7}}
    first, second = named_entrants(shared, ["codasca", "parallel-sgda"])
    assert first.overrides["algorithm"]["local_steps"] == 7
    assert "local_steps" not in second.overrides["algorithm"]  # it has no local steps
    with pytest.raises(UserError, match="did you mean 'local_steps'"):
        named_entrants({"algorithm": {"local_step": 7}}, ["codasca"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["codsca"], "--algorithms: there is no 'codsca'; did you mean 'codasca'?"),
        (["fedavg:rsk"], "--algorithms fedavg:rsk: there is no problem 'rsk'; did you mean 'risk'"),
    ],
)
def test_unknown_names_get_the_nearest_right_one(names, message):
    with pytest.raises(UserError) as error:
        named_entrants({}, names)
    assert message in str(error.value)


def test_a_method_for_another_problem_is_refused_unless_the_problem_is_named():
    with pytest.raises(UserError, match=r"scaffold: algorithm.name: 'scaffold' does not solve"):
        settle({}, named_entrants({}, ["codasca", "scaffold"]), 0)
    named = named_entrants({}, ["codasca", "scaffold:risk", "local-scgdam:compositional-auc"])
    configs = settle({}, named, 0)
    assert [config.problem["name"] for config in configs.values()] == [
        *("auc", "risk", "compositional-auc"),
    ]


def test_cross_entropy_sees_the_very_data_of_the_auc_methods():
    base = {"data": {"source": "digits", "clients": 4}}
    configs = settle(base, named_entrants(base, ["codasca", "fedavg:risk"]), 3)
    auc, risk = (data_of(config) for config in configs.values())
    plain = data_of(settle(base, named_entrants(base, ["codasca"]), 3)["codasca"])
    for other in (risk, plain):
        assert other.classes == auc.classes == ("not 8", "8")
        assert torch.equal(other.labels, auc.labels)
        for split in ("train", "validation", "test"):
            one, two = getattr(auc, split), getattr(other, split)
            assert np.array_equal(one.indices, two.indices)
            assert np.array_equal(one.offsets, two.offsets)


@pytest.mark.parametrize("label", ["", "a/b", "..", ".hidden", "x" * 101])
def test_a_label_must_do_as_a_folder(label):
    with pytest.raises(UserError, match="label must do as the name of a folder"):
        settle({}, [Entrant(label, {})], 0)


def test_a_label_is_used_once():
    with pytest.raises(UserError, match="'codasca' takes part twice"):
        settle({}, named_entrants({}, ["codasca", "codasca"]), 0)
    with pytest.raises(UserError, match="at least one method"):
        settle({}, [], 0)
