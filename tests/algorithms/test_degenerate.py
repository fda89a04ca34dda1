"""Where one method is another: special values of the hyper-parameters, under the same draws."""

from typing import Any

import numpy as np
import pytest
import torch
from harness import LibraryRun, State, World

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.federation import FederationOptions
from problems import Case, auc, bowl, compositional, quadratic

ROUNDS = 4
SOME = {"clients_per_round": 3, "availability": "dropout", "dropout": 0.3}


def run(name: str, case: Case, federation: dict[str, Any] | None = None, **settings: Any) -> Any:
    if name not in ALGORITHMS:
        pytest.skip(f"'{name}' is not registered yet")
    options = FederationOptions(**(federation or {}))
    return LibraryRun(case, ALGORITHMS[name](**settings), federation=options).rounds(ROUNDS)


def assert_same(left: list[State], right: list[State], key: str = "z", exact: bool = False) -> None:
    assert not torch.allclose(left[0][key], left[-1][key], atol=1e-4), "nothing moved"
    for a, b in zip(left, right, strict=True):
        if exact:
            assert torch.equal(a[key], b[key])
        else:
            assert float((a[key] - b[key]).abs().max()) <= 1e-12


LOCAL = {"learning_rate": 0.07, "local_steps": 3, "batch_size": 2}
STAGE = {"learning_rate": 0.07, "stage_rounds": 100, "output_rule": "last"}


@pytest.mark.parametrize("case", [quadratic(), auc()], ids=["quadratic", "auc"])
def test_coda_plus_with_one_local_step_is_parallel_sgda(case: Case) -> None:
    one = run("coda-plus", case, **STAGE, local_steps=1, prox=0.0, batch_size=0)
    assert_same(one, run("parallel-sgda", case, learning_rate=0.07, batch_size=0))


def test_local_sgda_with_one_step_is_parallel_sgda() -> None:
    rates = {"learning_rate": 0.07, "dual_rate": 0.02, "batch_size": 0}
    one = run("local-sgda", quadratic(), local_steps=1, **rates)
    assert_same(one, run("parallel-sgda", quadratic(), **rates))


@pytest.mark.parametrize("federation", [{}, SOME], ids=["all", "some"])
def test_codasca_in_a_stages_first_round_is_coda_plus(federation: dict[str, Any]) -> None:
    """Stages of one round: the controls are zero in every round."""
    settings = {**LOCAL, "stage_rounds": 1, "prox": 0.2, "output_rule": "last"}
    sca = run("codasca", quadratic(), federation, **settings)
    assert_same(sca, run("coda-plus", quadratic(), federation, **settings))


def test_codasca_leaves_coda_plus_once_controls_are_there() -> None:
    settings = {**LOCAL, "stage_rounds": 4, "prox": 0.2, "output_rule": "last"}
    sca, plus = run("codasca", quadratic(), **settings), run("coda-plus", quadratic(), **settings)
    assert float((sca[0]["z"] - plus[0]["z"]).abs().max()) <= 1e-12
    assert float((sca[1]["z"] - plus[1]["z"]).abs().max()) > 1e-3


def test_coda_plus_without_prox_in_one_stage_is_local_sgda() -> None:
    plus = run("coda-plus", quadratic(), SOME, **(LOCAL | STAGE), prox=0.0)
    assert_same(plus, run("local-sgda", quadratic(), SOME, **LOCAL))


def test_coda_in_its_first_stage_is_coda_plus() -> None:
    settings = {**LOCAL, "stage_rounds": ROUNDS + 1, "prox": 0.2}
    coda = run("coda", auc(), SOME, **settings)
    assert_same(coda, run("coda-plus", auc(), SOME, **settings), exact=True)


def test_cdma_one_with_one_full_step_is_parallel_sgda() -> None:
    """`G_i(z) + u − G_i(z) = u`, whoever takes the step."""
    rates = {"learning_rate": 0.07, "dual_rate": 0.02, "batch_size": 0}
    one = run("cdma-one", quadratic(), local_steps=1, **rates)
    assert_same(one, run("parallel-sgda", quadratic(), **rates))


def test_cdma_ada_with_alpha_one_and_constant_steps_is_cdma_one() -> None:
    ada = run("cdma-ada", quadratic(), SOME, **LOCAL, dual_rate=0.02, correction_rate=5.0, power=0)
    assert_same(ada, run("cdma-one", quadratic(), SOME, **LOCAL, dual_rate=0.02))


def test_cdma_ada_with_all_clients_has_the_mean_gradient_as_correction() -> None:
    """The recursion telescopes when everybody answers, whatever α_t is."""
    settings = {**LOCAL, "correction_rate": 0.3, "power": 0.2}
    case = quadratic()
    states, z = run("cdma-ada", case, **settings), case.z0
    for state in states:
        gradient = sum(case.full_gradient(i, z) for i in range(case.n_clients)) / case.n_clients
        assert float((state["correction"] - gradient).abs().max()) <= 1e-12
        z = state["z"]


def test_local_scgdam_without_inner_step_is_local_sgdam() -> None:
    """ρ = 0 makes g the identity, αη = 1 makes h its newest value."""
    settings = {"learning_rate": 0.25, "local_steps": 3, "batch_size": 2}
    settings |= {"primal_rate": 0.5, "dual_rate": 0.8, "primal_momentum": 0.9, "dual_momentum": 1.2}
    plain = run("local-sgdam", auc(), SOME, **settings)
    assert_same(
        run("local-scgdam", compositional(rho=0.0), SOME, **settings, inner_rate=4.0), plain
    )


def test_drfa_with_frozen_weights_is_uniform_averaging_over_its_draws() -> None:
    case, settings = bowl(), {**LOCAL, "dual_rate": 0.0}
    states = run("drfa", case, SOME, **settings)
    world = World(case, LOCAL["batch_size"], federation=FederationOptions(**SOME))
    uniform, z = torch.full((case.n_clients,), 1 / case.n_clients, dtype=torch.float64), case.z0
    several = 0
    for t, state in enumerate(states):
        total, count = torch.zeros_like(z), 0
        for client, times in world.asked("steps", t, chances=uniform):
            w = z
            for rows in world.draw(client, t, "steps", LOCAL["local_steps"]):
                w = w - LOCAL["learning_rate"] * case.gradient(w, rows)
            total, count, several = total + times * w, count + times, several + (times > 1)
        z = total / count
        assert float((state["z"] - z).abs().max()) <= 1e-12
        assert float((state["lambda"] - uniform).abs().max()) <= 1e-15
    assert several, "no client was drawn twice: the test shows too little"


def test_drfa_prox_without_regulariser_is_drfa() -> None:
    settings = {**LOCAL, "dual_rate": 0.05}
    prox = run("drfa-prox", bowl(), SOME, **settings, regulariser=0.0)
    plain = run("drfa", bowl(), SOME, **settings)
    assert_same(prox, plain, exact=True)
    assert_same(prox, plain, key="lambda", exact=True)


def test_afl_with_frozen_weights_is_parallel_sgda() -> None:
    afl = run("afl", bowl(), learning_rate=0.07, dual_rate=0.0, batch_size=0)
    assert_same(afl, run("parallel-sgda", bowl(), learning_rate=0.07, batch_size=0))


def test_fedprox_without_prox_is_fedavg() -> None:
    prox = run("fedprox", quadratic(), SOME, **LOCAL, prox=0.0)
    assert_same(prox, run("fedavg", quadratic(), SOME, **LOCAL), exact=True)


def test_fedavg_with_clients_of_one_size_is_local_sgda() -> None:
    case = quadratic(sizes=(4, 4, 4, 4))
    assert_same(run("fedavg", case, **LOCAL), run("local-sgda", case, **LOCAL))


def test_q_fedavg_with_q_zero_is_the_uniform_mean() -> None:
    """`w − ΣL(w − w_k) / ΣL`."""
    assert_same(
        run("q-fedavg", bowl(), SOME, **LOCAL, q=0.0), run("local-sgda", bowl(), SOME, **LOCAL)
    )


def test_local_sgdm_without_momentum_is_local_sgda() -> None:
    plain = run("local-sgda", bowl(), SOME, **LOCAL)
    assert_same(run("local-sgdm", bowl(), SOME, **LOCAL, momentum=0.0), plain)


def test_local_sgda_plus_with_a_fresh_snapshot_and_one_step_is_local_sgda() -> None:
    settings = {**LOCAL, "local_steps": 1, "dual_rate": 0.02}
    plus = run("local-sgda-plus", quadratic(), SOME, **settings, snapshot_rounds=1)
    assert_same(plus, run("local-sgda", quadratic(), SOME, **settings))


@pytest.mark.parametrize("federation", [{}, SOME], ids=["all", "some"])
def test_scaffold_is_codasca_on_a_risk_without_prox_in_one_stage(
    federation: dict[str, Any],
) -> None:
    sca = run("codasca", bowl(), federation, **(LOCAL | STAGE), prox=0.0, global_rate=1.2)
    plain = run("scaffold", bowl(), federation, **LOCAL, global_rate=1.2)
    assert_same(sca, plain)
    assert_same(sca, plain, key="control")


def test_catalyst_scaffold_s_without_prox_and_one_full_step_is_parallel_sgda() -> None:
    settings = {"learning_rate": 0.07, "batch_size": 0}
    one = run("catalyst-scaffold-s", quadratic(), **settings, local_steps=1, prox=0.0)
    assert_same(one, run("parallel-sgda", quadratic(), **settings))


def test_extra_step_looks_ahead() -> None:
    """On one client with all rows: z − ηG(z − ηG(z)), the extragradient method."""
    case = quadratic(sizes=(5,))
    states = run("extra-step-local-sgd", case, learning_rate=0.07, local_steps=1, batch_size=0)
    z, rows = case.z0, np.arange(5)
    for state in states:
        z = z - 0.07 * case.gradient(z - 0.07 * case.gradient(z, rows), rows)
        assert float((state["z"] - z).abs().max()) <= 1e-12
