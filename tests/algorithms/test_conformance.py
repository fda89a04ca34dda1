"""The library's methods against naive transcriptions of the papers, step for step."""

import dataclasses
from functools import lru_cache
from typing import Any

import pytest
import torch
from harness import LibraryRun, World
from naive import NAIVE

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.federation import FederationOptions
from fedsaddle.problems import oracle
from problems import CASES, Case

ROUNDS = 4
TOLERANCE = 1e-10

FEDERATIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "some": {"clients_per_round": 3},
    "uniform-response": {"clients_per_round": 4, "availability": "uniform-response"},
    "dropout": {"clients_per_round": 4, "availability": "dropout", "dropout": 0.4},
    "cyclic": {"availability": "cyclic", "cycle_rounds": 4, "cycle_share": 0.6},
}

local = {"learning_rate": 0.07, "local_steps": 4, "batch_size": 2}
stages = {"learning_rate": 0.1, "local_steps": 3, "batch_size": 2, "stage_rounds": 2, "prox": 0.3}
momentum = {
    "learning_rate": 0.3,
    "primal_rate": 0.4,
    "dual_rate": 0.7,
    "primal_momentum": 0.9,
    "dual_momentum": 1.3,
    "local_steps": 3,
    "batch_size": 2,
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "parallel-sgda": [
        {"learning_rate": 0.1, "batch_size": 2},
        {"learning_rate": 0.1, "dual_rate": 0.03, "batch_size": 0},
    ],
    "local-sgda": [local, {**local, "dual_rate": 0.03, "batch_size": 0}],
    "local-sgda-plus": [
        {**local, "snapshot_rounds": 2},
        {**local, "dual_rate": 0.03, "snapshot_rounds": 1},
        {**local, "dual_rate": 0.03, "snapshot_rounds": 3, "batch_size": 0},
    ],
    "extra-step-local-sgd": [local, {**local, "dual_rate": 0.03, "local_steps": 1}],
    "fedavg": [local, {**local, "batch_size": 0}],
    "fedprox": [{**local, "prox": 0.6}, {**local, "prox": 0.1, "batch_size": 0}],
    "local-sgdam": [momentum, {**momentum, "local_steps": 1, "batch_size": 0}],
    "local-sgdm": [{**local, "momentum": 0.9}, {**local, "momentum": 0.3, "batch_size": 0}],
    "local-sgdm-rl": [{**local, "momentum": 0.9}],
    "local-scgdam": [{**momentum, "inner_rate": 0.8}, {**momentum, "inner_rate": 1.7}],
    "coda-plus": [
        stages,
        {**stages, "rounds_growth": 2.0, "stage_rounds": 1, "steps_growth": 1.5, "decay": 2.0},
    ],
    "coda": [stages, {**stages, "stage_rounds": 1, "batch_size": 3}],
    "codasca": [
        {**stages, "global_rate": 1.3},
        {**stages, "stage_rounds": 5, "batch_size": 0},
        {**stages, "rounds_growth": 2.0, "stage_rounds": 1, "steps_growth": 1.5, "decay": 2.0},
    ],
    "cdma-one": [local, {**local, "dual_rate": 0.03, "batch_size": 0}],
    "cdma-ada": [
        {**local, "correction_rate": 0.9, "power": 0.3},
        {**local, "dual_rate": 0.03, "correction_rate": 2.0, "power": 0.5},
    ],
    "catalyst-scaffold-s": [
        {**local, "global_rate": 0.08, "prox": 0.4, "center_steps": 6},
        {**local, "prox": 0.3, "center_steps": 1, "batch_size": 0},
        {**local, "global_rate": 0.05, "prox": 0.0, "center_steps": 1000},
    ],
    "scaffold": [{**local, "global_rate": 1.3}, {**local, "batch_size": 0}],
    "q-fedavg": [{**local, "q": 1.0}, {**local, "q": 0.3}, {**local, "q": 2.0, "batch_size": 0}],
    "afl": [{"learning_rate": 0.1, "dual_rate": 0.07, "batch_size": 2}],
    "drfa": [{**local, "dual_rate": 0.05}, {**local, "dual_rate": 0.01, "batch_size": 0}],
    "drfa-prox": [
        {**local, "dual_rate": 0.05, "regulariser": 0.7},
        {**local, "dual_rate": 0.02, "regulariser": 5.0},
    ],
    "drfa-ga": [{**local, "dual_rate": 0.2}],
}
"""Hyper-parameters that no special value (1, 0, a power of two) makes harmless."""

CASES_OF_KIND = {
    "minimax": ["quadratic", "ball", "bilinear"],
    "auc": ["auc", "auc-margin"],
    "risk": ["bowl", "risk"],
    "compositional": ["compositional"],
    "ratio": ["ratio"],
}
METHODS = [name for name in ALGORITHMS if name in NAIVE]


@lru_cache
def case_of(name: str) -> Case:
    return CASES[name]()


def cases_for(method: str) -> list[str]:
    kinds = ("minimax", "auc", "risk", "compositional", "ratio")
    solved = [kind for kind in kinds if kind in ALGORITHMS[method].solves]
    return [case for kind in solved for case in CASES_OF_KIND[kind] if case in CASES]


def check(
    name: str,
    settings: dict[str, Any],
    case: str,
    federation: dict[str, Any],
    rounds: int = ROUNDS,
    seed: int = 3,
    clients: str = "stack",
) -> list[dict[str, torch.Tensor]]:
    """Both sides agree after every round, in everything both of them keep."""
    method = ALGORITHMS[name](**settings)
    options = FederationOptions(**federation)
    library = LibraryRun(case_of(case), method, seed, options, clients)
    world = World(case_of(case), method.batch_size, seed, options)
    states = []
    for t, expected in enumerate(NAIVE[name](world, method, rounds)):
        state = library.step()
        compared = {"z", "output"} | (set(expected) & set(state))
        for key in sorted(compared):
            error = float((state[key] - expected[key]).abs().max())
            assert error <= TOLERANCE, f"round {t}, '{key}': differs by {error:.2e}"
        states.append(state)
    moved = (states[-1]["z"] - case_of(case).z0).abs().max()
    assert moved > 1e-3, "the run must go somewhere"
    return states


def federations() -> list[Any]:
    return [pytest.param(value, id=key) for key, value in FEDERATIONS.items()]


def test_every_method_has_a_naive_transcription_and_settings() -> None:
    assert set(ALGORITHMS) <= set(NAIVE)
    assert set(ALGORITHMS) <= set(SETTINGS)


@pytest.mark.parametrize("federation", federations())
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in METHODS for case in cases_for(name)[:1]]
)
def test_first_problem_under_every_participation(
    name: str, case: str, federation: dict[str, Any]
) -> None:
    check(name, SETTINGS[name][0], case, federation)


@pytest.mark.parametrize("clients", ["vmap", "loop"])
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in METHODS for case in cases_for(name)[-1:]]
)
def test_other_ways_of_moving_clients(name: str, case: str, clients: str) -> None:
    check(name, SETTINGS[name][0], case, FEDERATIONS["dropout"], rounds=2, clients=clients)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in METHODS for case in cases_for(name)[-1:]]
)
def test_points_in_pieces(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large networks have them."""
    monkeypatch.setattr(oracle, "SMALL", 0)
    check(name, SETTINGS[name][0], case, FEDERATIONS["dropout"], rounds=3)


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in METHODS for case in cases_for(name)[1:]]
)
def test_other_problems(name: str, case: str) -> None:
    check(name, SETTINGS[name][0], case, FEDERATIONS["dropout"], rounds=3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(name, settings, id=f"{name}-{number}")
        for name in METHODS
        for number, settings in enumerate(SETTINGS[name][1:])
    ],
)
@pytest.mark.parametrize("federation", ["all", "uniform-response"])
def test_other_settings(name: str, settings: dict[str, Any], federation: str) -> None:
    check(name, settings, cases_for(name)[0], FEDERATIONS[federation])


@pytest.mark.parametrize("rule", ["last", "average", "random"])
@pytest.mark.parametrize("name", METHODS)
def test_output_rules(name: str, rule: str) -> None:
    settings = {**SETTINGS[name][0], "output_rule": rule}
    states = check(name, settings, cases_for(name)[0], FEDERATIONS["some"], seed=4)
    if rule == "last":
        assert torch.equal(states[-1]["output"], states[-1]["z"])


@pytest.mark.parametrize(
    "name", [n for n in ("afl", "drfa", "drfa-prox", "drfa-ga") if n in METHODS]
)
def test_named_groups_share_a_weight(name: str) -> None:
    clients = case_of("bowl").data.names
    groups = {"one": [clients[3]], "rest": [c for c in clients if c != clients[3]]}
    states = check(name, SETTINGS[name][0], "bowl", {"groups": groups, "clients_per_round": 4})
    assert states[-1]["lambda"].shape == (2,)


@pytest.mark.parametrize("surrogate", ["square", "margin"])
def test_closed_form_variables_are_set_before_every_round(surrogate: str) -> None:
    """a, b, α from four sums of the clients that answer; then local steps on the weights alone."""
    plain = case_of("auc" if surrogate == "square" else "auc-margin")
    problem = plain.problem.model_copy(update={"closed_form": True})
    case = dataclasses.replace(plain, problem=problem)
    options = FederationOptions(**FEDERATIONS["dropout"])
    method = ALGORITHMS["local-sgda"](**local)
    library = LibraryRun(case, method, federation=options)
    world = World(case, method.batch_size, federation=options)
    data, w, fixed = case.data, case.z0[:-3], case.z0[-3:]
    for t in range(3):
        scores: dict[int, list[torch.Tensor]] = {0: [], 1: []}
        for i in world.answers("refresh", t):
            for row in case.rows(i):
                score = torch.sigmoid(w[:-1] @ data.inputs[row] + w[-1])
                scores[int(data.labels[row])].append(score)
        a = torch.stack(scores[1]).mean() if scores[1] else fixed[0]
        b = torch.stack(scores[0]).mean() if scores[0] else fixed[1]
        alpha = b - a if plain.margin is None else (plain.margin + b - a).clamp(min=0)
        fixed, points = torch.stack([a, b, alpha]), []
        for i in world.answers("steps", t):
            w_i = w
            for rows in world.draw(i, t, "steps", method.local_steps):
                w_i = w_i - method.learning_rate * case.gradient(torch.cat([w_i, fixed]), rows)[:-3]
            points.append(w_i)
        w = sum(points) / len(points)
        state = library.step()
        assert float((state["z"] - w).abs().max()) <= TOLERANCE
        assert float((state["carried"] - fixed).abs().max()) <= TOLERANCE
