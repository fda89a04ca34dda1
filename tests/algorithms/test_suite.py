"""What every method must do, by being registered: one table, one suite."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import LibraryRun, State, World, members_of
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

import fedsaddle.runs.rounds as rounds_module
from fedsaddle import train
from fedsaddle.algorithms import ALGORITHMS, ALIASES, Algorithm, Round
from fedsaddle.algorithms.refresh import phases_of_round
from fedsaddle.federation import Answer, FederationOptions
from fedsaddle.runs.config import make_algorithm
from problems import Case, Quadratic, auc, bilinear, bowl, compositional, quadratic, ratio, solution

LOCAL = {"learning_rate": 0.07, "local_steps": 4, "batch_size": 2}
MOMENTUM = {"learning_rate": 0.3, "primal_rate": 0.4, "dual_rate": 0.3, "local_steps": 3}
MOMENTUM |= {"primal_momentum": 1.5, "dual_momentum": 2.0, "batch_size": 2}
STAGES = {**LOCAL, "stage_rounds": 2, "prox": 0.2}
ONE_STAGE = {"stage_rounds": 10_000, "prox": 0.0, "output_rule": "last"}
FULL = {"batch_size": 0}


@dataclass(frozen=True)
class Facts:
    """What the suite knows of a method."""

    settings: dict[str, Any]
    """Ordinary settings, minibatches and all, for the tests of the machinery."""
    floats: tuple[str, str]
    """Floats up and down of one client in a round, as ALGORITHMS.md has them."""
    exact: dict[str, Any] | None = None
    """Settings with many local steps and full batches that reach the exact solution."""
    biased: dict[str, Any] | None = None
    """Settings with many local steps and full batches that do not, by the method's own theory."""
    central: dict[str, Any] | None = None
    """Settings that make one client's run gradient descent-ascent with step size 0.1."""
    weighted: bool = False
    """Whether clients count by their rows."""
    quiet: dict[str, Any] = field(default_factory=dict)
    """What to change in `settings` so that a round has its ordinary cost."""


MANY = {"local_steps": 6, "learning_rate": 0.08, **FULL}
TENTH = {"learning_rate": 0.1, "local_steps": 1, **FULL}
FACTS: dict[str, Facts] = {
    "parallel-sgda": Facts(
        {"learning_rate": 0.1, "batch_size": 2},
        ("d", "d"),
        exact={"learning_rate": 0.3, **FULL},
        central={"learning_rate": 0.1, **FULL},
    ),
    "local-sgda": Facts(LOCAL, ("d", "d"), biased=MANY, central=TENTH),
    "local-sgda-plus": Facts(
        {**LOCAL, "snapshot_rounds": 2},
        ("d", "d"),
        biased={**MANY, "snapshot_rounds": 1},
        central={**TENTH, "snapshot_rounds": 1},
        quiet={"snapshot_rounds": 100},
    ),
    "extra-step-local-sgd": Facts(LOCAL, ("d", "d"), biased=MANY),
    "fedavg": Facts(LOCAL, ("d", "d"), biased=MANY, central=TENTH, weighted=True),
    "fedprox": Facts(
        {**LOCAL, "prox": 0.3},
        ("d", "d"),
        biased={**MANY, "prox": 0.05},
        central={**TENTH, "prox": 1.0},
        weighted=True,
    ),
    "local-sgdam": Facts(
        MOMENTUM,
        ("2*d", "2*d"),
        biased={**MOMENTUM, "local_steps": 6, **FULL},
        central={
            "learning_rate": 0.5,
            "primal_rate": 0.2,
            "dual_rate": 0.2,
            "primal_momentum": 2.0,
            "dual_momentum": 2.0,
            "local_steps": 1,
            **FULL,
        },
    ),
    "local-sgdm": Facts(
        {**LOCAL, "momentum": 0.8},
        ("2*d", "2*d"),
        biased={**MANY, "learning_rate": 0.05, "momentum": 0.5},
        central={**TENTH, "momentum": 0.0},
    ),
    "local-sgdm-rl": Facts({**LOCAL, "momentum": 0.8}, ("2*d + 2", "2*d + 2")),
    "local-scgdam": Facts({**MOMENTUM, "inner_rate": 1.5}, ("3*dx + 2*dy", "3*dx + 2*dy")),
    "coda": Facts(STAGES, ("d", "d"), quiet=ONE_STAGE),
    "coda-plus": Facts(
        STAGES, ("d", "d"), biased=MANY | ONE_STAGE, central=TENTH | ONE_STAGE, quiet=ONE_STAGE
    ),
    "codasca": Facts(
        STAGES, ("2*d", "2*d"), exact=MANY | ONE_STAGE, central=TENTH | ONE_STAGE, quiet=ONE_STAGE
    ),
    "cdma-one": Facts(LOCAL, ("2*d", "3*d"), exact=MANY, central=TENTH),
    "cdma-ada": Facts(
        {**LOCAL, "correction_rate": 0.6, "power": 0.3},
        ("2*d", "4*d"),
        exact={**MANY, "correction_rate": 0.6, "power": 0.01},
        central={**TENTH, "power": 0.0},
    ),
    "catalyst-scaffold-s": Facts(
        {**LOCAL, "prox": 0.3, "center_steps": 5},
        ("2*d", "2*d"),
        exact={**MANY, "prox": 0.1, "center_steps": 1},
        central={**TENTH, "prox": 0.0},
    ),
    "scaffold": Facts(LOCAL, ("2*d", "2*d"), exact=MANY, central=TENTH),
    "q-fedavg": Facts(
        {**LOCAL, "q": 0.7},
        ("d + 1", "d"),
        biased={**MANY, "q": 0.0},
        central={**TENTH, "q": 0.0},
    ),
    "afl": Facts(
        {"learning_rate": 0.1, "dual_rate": 0.05, "batch_size": 2},
        ("d + 1", "d"),
        central={"learning_rate": 0.1, "dual_rate": 0.3, "output_rule": "last", **FULL},
    ),
    "drfa": Facts({**LOCAL, "dual_rate": 0.05}, ("2*d + 1", "2*d"), central=TENTH),
    "drfa-prox": Facts(
        {**LOCAL, "dual_rate": 0.05, "regulariser": 0.5}, ("2*d + 1", "2*d"), central=TENTH
    ),
    "drfa-ga": Facts({**LOCAL, "dual_rate": 0.05}, ("d + 1", "2*d"), central=TENTH),
}

EVERY = sorted(ALGORITHMS)
SOME = {"clients_per_round": 4, "availability": "dropout", "dropout": 0.35}


def facts(name: str) -> Facts:
    assert name in FACTS, f"'{name}' is registered but has no row in the suite's table"
    return FACTS[name]


def made(name: str, **changes: Any) -> Algorithm:
    return ALGORITHMS[name](**(facts(name).settings | changes))


def case_for(name: str, sizes: tuple[int, ...] = (6, 4, 5, 6, 3)) -> Case:
    """A problem that the method solves: a quadratic where possible."""
    solves = ALGORITHMS[name].solves
    if "minimax" in solves:
        return quadratic(sizes)
    if "risk" in solves:
        return bowl(sizes)
    return {"auc": auc, "compositional": compositional, "ratio": ratio}[min(solves)]()


def having(what: str) -> list[str]:
    return [name for name in EVERY if getattr(facts(name), what) is not None]


def final(case: Case, method: Algorithm, rounds: int, **options: Any) -> State:
    return LibraryRun(case, method, **options).rounds(rounds)[-1]


# --- declaration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_is_declared(name: str) -> None:
    cls = ALGORITHMS[name]
    assert cls.name == name
    assert cls().name == name
    assert cls.paper
    assert cls.solves
    assert cls.__doc__
    assert ">>>" in cls.__doc__
    assert "__doc__" in vars(cls), "the docstring is the parent's"
    for field_name, info in cls.model_fields.items():
        assert info.description, f"{field_name} says nothing"


@pytest.mark.parametrize("name", EVERY)
def test_refuses_what_makes_no_sense(name: str) -> None:
    cls = ALGORITHMS[name]
    numbers = [
        field_name
        for field_name, value in cls().model_dump().items()
        if isinstance(value, int | float) or value is None
    ]
    assert "batch_size" in numbers
    for field_name in numbers:
        with pytest.raises(ValidationError, match=field_name):
            cls(**{field_name: -1})
    with pytest.raises(ValidationError, match="learning_rates"):
        cls(learning_rates=0.1)
    with pytest.raises(ValidationError, match="output_rule"):
        cls(output_rule="best")
    with pytest.raises(ValidationError, match="frozen"):
        cls().batch_size = 3
    if "learning_rate" in numbers:
        with pytest.raises(ValidationError, match="learning_rate"):
            cls(learning_rate=0)


@pytest.mark.parametrize("name", EVERY)
def test_declared_vectors_are_the_states(name: str) -> None:
    """Every name that goes down is in the state, of the declared length, in every round."""
    run = LibraryRun(case_for(name), made(name))
    for number in range(3):
        for phase in run.method.phases(number):
            for vector, size in phase.down.items():
                assert run.state[vector].shape == (
                    {"point": run.layout.d, "primal": run.layout.dx}.get(size, size),
                )
        before = {key: value.shape for key, value in run.state.items()}
        assert {key: value.shape for key, value in run.step().items()} == before


def test_papers_other_names_are_aliases() -> None:
    assert ALIASES == {"npa": "parallel-sgda", "cdma-nc": "local-sgda"}
    assert not set(ALIASES) & set(ALGORITHMS)
    for alias, name in ALIASES.items():
        assert make_algorithm({"name": alias}) == ALGORITHMS[name]()


# --- where it goes --------------------------------------------------------------------------------

SMALL = (2, 2, 2)


@pytest.mark.parametrize("name", having("exact"))
def test_reaches_the_exact_solution_with_many_local_steps(name: str) -> None:
    case = case_for(name, SMALL)
    z = final(case, ALGORITHMS[name](**facts(name).exact), rounds=45)["z"]
    assert float((z - solution(case)).abs().max()) < 1e-4


@pytest.mark.parametrize("name", having("biased"))
def test_stays_within_its_bias_with_many_local_steps(name: str) -> None:
    """Local steps without correction stop at another point, at a distance of the order of η.

    Where clients count by rows, the reference is the solution of the row-weighted mean.
    """
    weighted = facts(name).weighted
    case = case_for(name, (1, 2, 3) if weighted else SMALL)
    rows = case.data.train.counts / case.data.train.counts.sum()
    exact = solution(case, rows if weighted else None)
    settings = facts(name).biased
    halved = settings | {"learning_rate": settings["learning_rate"] / 2}
    if "primal_momentum" in settings:  # these, too, are multiplied by the learning rate
        halved |= {key: 2 * settings[key] for key in ("primal_momentum", "dual_momentum")}
    bias, smaller = (
        float((final(case, ALGORITHMS[name](**chosen), rounds)["z"] - exact).norm())
        for chosen, rounds in ((settings, 25), (halved, 50))
    )
    assert 1e-2 < bias < 0.5
    assert smaller < 0.75 * bias


def test_local_sgda_stops_where_its_averaged_map_has_its_fixed_point() -> None:
    """The bias in closed form: K steps are an affine map, and the mean of affine maps is one."""
    case, K, eta = quadratic(SMALL), 6, 0.08
    d = len(case.z0)

    def averaged(z: Tensor) -> Tensor:
        ends = []
        for i in range(case.n_clients):
            z_i = z
            for _ in range(K):
                z_i = z_i - eta * case.full_gradient(i, z_i)
            ends.append(z_i)
        return sum(ends) / len(ends)

    shift = averaged(torch.zeros(d, dtype=torch.float64))
    matrix = torch.stack([averaged(e) - shift for e in torch.eye(d, dtype=torch.float64)], dim=1)
    fixed = torch.linalg.solve(torch.eye(d, dtype=torch.float64) - matrix, shift)
    z = final(case, ALGORITHMS["local-sgda"](**MANY), rounds=45)["z"]
    assert float((z - fixed).abs().max()) < 1e-4
    assert float((z - solution(case)).norm()) > 1e-2


def test_extra_step_converges_on_a_bilinear_game_where_descent_ascent_does_not() -> None:
    """The dual residual `Bᵀx − q` of xᵀBy + pᵀx − qᵀy, B of full column rank, one client."""
    case = bilinear((3,), seed=5)
    settings = {"learning_rate": 0.4, "local_steps": 10, **FULL}
    start, ahead, plain = (
        float(case.full_gradient(0, z)[case.dx :].norm())
        for z in (
            case.z0,
            final(case, ALGORITHMS["extra-step-local-sgd"](**settings), 8)["z"],
            final(case, ALGORITHMS["local-sgda"](**settings), 8)["z"],
        )
    )
    assert ahead < 0.05 * start
    assert plain > 10 * start


@pytest.mark.parametrize("name", having("central"))
def test_one_client_with_one_step_is_gradient_descent_ascent(name: str) -> None:
    case = case_for(name, (5,))
    method = ALGORITHMS[name](**facts(name).central)
    z = case.z0
    for state in LibraryRun(case, method).rounds(4):
        z = z - 0.1 * case.full_gradient(0, z)
        assert float((state["z"] - z).abs().max()) <= 1e-12


AGNOSTIC = {
    "afl": {"learning_rate": 0.2, "dual_rate": 0.2, **FULL},
    "drfa": {"learning_rate": 0.05, "local_steps": 2, "dual_rate": 0.02, **FULL},
    "drfa-prox": {"learning_rate": 0.05, "local_steps": 2, "dual_rate": 0.02, **FULL}
    | {"regulariser": 0.05},
    "drfa-ga": {"learning_rate": 0.05, "local_steps": 2, "dual_rate": 0.05, **FULL},
}


@pytest.mark.parametrize("name", sorted(AGNOSTIC))
def test_agnostic_methods_lower_the_worst_loss(name: str) -> None:
    """Nearer to min_w max_i f_i (found by a general solver) than the mean's minimiser is."""
    from scipy.optimize import minimize

    case = bowl((2, 2, 2, 2))

    def losses(w: np.ndarray) -> np.ndarray:
        z = torch.from_numpy(np.asarray(w, dtype=float))
        return np.array([float(case.full_loss(i, z)) for i in range(case.n_clients)])

    mean_point = solution(case).numpy()
    start = np.append(mean_point, losses(mean_point).max())
    below = {"type": "ineq", "fun": lambda v: v[-1] - losses(v[:-1])}
    best = minimize(lambda v: v[-1], start, constraints=[below], method="SLSQP").fun
    method = ALGORITHMS[name](**AGNOSTIC[name], output_rule="average")
    worst = losses(final(case, method, rounds=120)["output"].numpy()).max()
    ordinary = losses(mean_point).max()
    assert ordinary - best > 0.05, "the problem shows no difference"
    assert worst < best + 0.5 * (ordinary - best)


def test_q_fedavg_stops_where_its_own_objective_is_stationary() -> None:
    """One full step: Σ F_i^q ∇f_i = 0, and losses less uneven than at the mean's minimum."""
    case = bowl((2, 2, 2))
    method = ALGORITHMS["q-fedavg"](learning_rate=0.3, local_steps=1, q=2.0, **FULL)
    z = final(case, method, rounds=150)["z"]
    slope = sum(case.full_loss(i, z) ** 2 * case.full_gradient(i, z) for i in range(3))
    assert float(slope.norm()) < 1e-6
    spread = [
        float(torch.stack([case.full_loss(i, at) for i in range(3)]).std())
        for at in (z, solution(case))
    ]
    assert spread[0] < spread[1]


def test_local_scgdam_nears_a_stationary_point_of_the_compositional_objective() -> None:
    """The saddle gradient of `mean_k f_k(mean_j g_j(x), y)`, by autograd, falls."""
    case = compositional(rho=0.3)

    def residual(z: Tensor) -> float:
        x = z[: case.dx].clone().requires_grad_()
        y = z[case.dx :].clone().requires_grad_()
        n = case.n_clients
        h = sum(case.inner(x, case.rows(i)) for i in range(n)) / n
        value = sum(case.outer(h, y, case.rows(i)) for i in range(n)) / n
        return float(torch.cat(torch.autograd.grad(value, (x, y))).norm())

    settings = {"learning_rate": 0.1, "local_steps": 1, "primal_rate": 9.0, "dual_rate": 9.0}
    method = ALGORITHMS["local-scgdam"](**settings, inner_rate=3.0, **FULL)
    z = final(case, method, rounds=60)["z"]
    assert residual(z) < 0.1 * residual(case.z0)


def test_local_sgdm_rl_lowers_the_ratio_loss() -> None:
    case = ratio(strength=0.5)
    method = ALGORITHMS["local-sgdm-rl"](learning_rate=0.2, momentum=0.5, local_steps=2, **FULL)
    state = final(case, method, rounds=40)
    weights = state["carried"]
    assert not torch.allclose(weights, torch.ones(2, dtype=torch.float64))
    gradient = case.weighted(weights)

    def slope(z: Tensor) -> float:
        return float(sum(gradient(z, case.rows(i)) for i in range(case.n_clients)).norm())

    assert slope(state["z"]) < 0.3 * slope(case.z0)


# --- the machinery --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_one_client_after_another_is_the_same_as_a_stack(name: str) -> None:
    federation = FederationOptions(**SOME)
    loop, stack, pairs = (
        LibraryRun(case_for(name), made(name), federation=federation, clients=mode, stack_size=size)
        for mode, size in (("loop", 8), ("stack", 8), ("stack", 2))
    )
    for _ in range(3):
        one, many, two = loop.step(), stack.step(), pairs.step()
        for key in one:
            assert float((one[key] - many[key]).abs().sum()) <= 1e-10
            assert float((one[key] - two[key]).abs().sum()) <= 1e-10
    for client in range(loop.case.n_clients):
        for key, value in loop.memory(client).items():
            assert float((value - stack.memory(client)[key]).abs().sum()) <= 1e-10


def checkpoint(folder: Path) -> dict[str, Tensor]:
    return load_file(max((folder / "checkpoints").iterdir()))


@pytest.mark.parametrize("name", EVERY)
def test_resumed_run_is_the_uninterrupted_one_to_the_bit(name: str, tmp_path: Path) -> None:
    case, method = case_for(name), made(name, output_rule="average")

    def go(folder: str, rounds: int, resume: bool = False) -> Any:
        return train(
            case.problem,
            case.data,
            method,
            rounds=rounds,
            out=tmp_path / folder,
            resume=resume,
            federation=SOME,
            engine={"dtype": "float64"},
            evaluation={"every": 5},
            checkpoint_every=5,
        )

    through = go("through", 5)
    go("stopped", 3)
    resumed = go("stopped", 5, resume=True)
    for part in ("x", "y"):
        expected, found = getattr(through, part), getattr(resumed, part)
        assert expected.keys() == found.keys()
        for key in expected:
            assert torch.equal(expected[key], found[key])
    expected, found = checkpoint(tmp_path / "through"), checkpoint(tmp_path / "stopped")
    assert expected.keys() == found.keys()
    assert {f"state.{key}" for key in LibraryRun(case, method).state} <= expected.keys()
    if ALGORITHMS[name]().memory():
        assert len(expected["memory.clients"]) > 0
    for key in expected:
        assert torch.equal(expected[key], found[key]), key
    for entry in (ledgers := [*through.record.ledger, *resumed.record.ledger]):
        entry.pop("norms", None)  # known where there was an evaluation: the stopped run's last too
    assert ledgers[: len(ledgers) // 2] == ledgers[len(ledgers) // 2 :]


@pytest.mark.parametrize("rule", ["last", "average", "random"])
@pytest.mark.parametrize("name", ["local-sgda", "codasca", "afl"])
def test_train_returns_what_the_output_rule_says(name: str, rule: str) -> None:
    case, method = case_for(name), made(name, output_rule=rule)
    run = LibraryRun(case, method, seed=8)
    engine = {"dtype": "float64", "stack_size": run.stack_size}
    result = train(case.problem, case.data, method, rounds=5, seed=8, engine=engine)
    state = run.rounds(5)[-1]
    found = torch.cat([v for part in (result.x, result.y) for v in part.values()])
    assert torch.equal(found, state["output"])
    if rule == "average" and name != "codasca":  # CODASCA's rule is about whole stages
        assert not torch.allclose(found, state["z"], atol=1e-6)


@pytest.mark.parametrize("name", ["local-sgda", "codasca"])
def test_random_output_is_uniform_over_the_rounds(name: str) -> None:
    """The pick is made as the rounds go; over many seeds every round comes out as often."""
    stage = {"stage_rounds": 5} if name == "codasca" else {}  # the pick is of a whole stage
    method = made(name, output_rule="random", **stage)
    layout, seeds, rounds = Quadratic().layout(torch.float64), 2000, 5
    picks = np.zeros(rounds)
    for seed in range(seeds):
        state: State = dict.fromkeys(("output", "pick"), torch.full((1,), -1.0))
        for number in range(rounds):
            at = Round(number, seed, layout, None, None)
            state = state | {"z": torch.full((1,), float(number))}
            if name == "codasca":
                state = method.hand_on(at, state, None)
            else:
                state = method.after_round(at, state)
        picks[int(state["output"])] += 1
    expected = seeds / rounds
    assert ((picks - expected) ** 2 / expected).sum() < 18.5  # chi², 4 degrees: p = 0.001


ABSENT, IN_ROUND = 1, 2


def run_with(
    name: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> tuple[list[State], list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """A run in which client 1 plays no part in one round, in one of three ways."""
    select, answering = rounds_module.select, rounds_module.answering

    def without(clients: np.ndarray) -> np.ndarray:
        return clients[clients != ABSENT]

    def selecting(options: Any, at: Any, phase: Any, state: Any, attempt: int = 0) -> Any:
        selected, draws = select(options, at, phase, state, attempt)
        if how == "not there" and at.number == IN_ROUND:
            draws = draws[selected != ABSENT]
            selected = without(selected)
        return selected, draws

    def silent(options: Any, selected: Any, names: Any, at: Any, *rest: Any) -> Any:
        answered = answering(options, selected, names, at, *rest)
        return without(answered) if how == "silent" and at.number == IN_ROUND else answered

    monkeypatch.setattr(rounds_module, "all_take_part", lambda *_: False)
    monkeypatch.setattr(rounds_module, "select", selecting)
    monkeypatch.setattr(rounds_module, "answering", silent)
    run = LibraryRun(case_for(name), made(name))
    ask = run.engine.ask

    def garbled(
        phase: Any, number: int, clients: np.ndarray, received: State, *_: Any
    ) -> list[Answer]:
        answers = ask(phase, number, clients, received)
        if number == IN_ROUND:
            for answer in answers:
                for vector in answer.vectors.values():
                    vector[torch.from_numpy(answer.clients == ABSENT)] = torch.nan
        return [Answer(answer.clients, answer.vectors) for answer in answers]  # unmeasured

    if how == "garbled":
        monkeypatch.setattr(run.engine, "ask", garbled)
    states, own, other = [], [], []
    for _ in range(4):
        states.append(run.step())
        own.append(run.memory(ABSENT))
        other.append(run.memory(0))
    monkeypatch.undo()
    return states, own, other


@pytest.mark.parametrize("how", ["silent", "garbled"])
@pytest.mark.parametrize("name", EVERY)
def test_no_trace_of_a_client_without_a_good_answer(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selected and silent, or refused, is as if it had not been there in that round.

    Stages of two rounds: round 2 begins the second one, where memory is zero before the client's
    first good answer, and round 3 is the first in which it has a memory of this stage.
    """
    expected = run_with(name, monkeypatch, "not there")
    found = run_with(name, monkeypatch, how)
    present = run_with(name, monkeypatch, "always there")
    for a, b in zip(expected[0], found[0], strict=True):
        for key in a:
            assert float((a[key] - b[key]).abs().sum()) <= 1e-12, key
    for memories in (1, 2):
        for a, b in zip(expected[memories], found[memories], strict=True):
            for key in a:
                assert float((a[key] - b[key]).abs().sum()) <= 1e-12, key
    there, away = present[0][IN_ROUND], found[0][IN_ROUND]
    assert any(float((there[key] - away[key]).abs().sum()) > 1e-6 for key in there)
    for key, value in found[1][IN_ROUND].items():
        kept = found[1][IN_ROUND - 1][key] if made(name).era(2) == made(name).era(1) else 0 * value
        assert torch.equal(value, kept)


# --- the bill -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_ledger_is_the_declared_formula_over_who_took_part(name: str) -> None:
    """Down: to everyone asked; up: from everyone who answered; what clients keep: once an era."""
    case, federation = case_for(name), FederationOptions(**SOME)
    run = LibraryRun(case, made(name), federation=federation)
    world = World(case, 0, federation=federation)
    dims = {"point": run.layout.d, "primal": run.layout.dx, "dual": run.layout.dy}
    members, carried = members_of(case), run.layout.n_carried
    up = down = 0
    holds: dict[int, int] = {}
    for number in range(6):
        state = run.state
        for phase in phases_of_round(run.method, case.problem, number):
            chances = None if phase.draw is None else phase.draw(state, members)
            key = phase.drawn_as or phase.name
            for times, answered in world.attempts(key, number, phase.everyone, chances):
                for client in times:
                    down += carried
                    for vector, size in phase.down.items():
                        has = holds.get(client) == run.method.era(number)
                        if vector not in phase.kept or not has:
                            down += dims.get(size, size)
                for client in answered:
                    up += sum(dims.get(size, size) for size in phase.up.values())
                    up += carried if phase.trains else 0
                    if phase.kept:
                        holds[client] = run.method.era(number)
        run.step()
    assert run.ledger.totals["floats_up"] == up
    assert run.ledger.totals["floats_down"] == down
    assert run.ledger.totals["bytes_up"] == 8 * up
    assert run.ledger.totals["bytes_down"] == 8 * down
    assert sum(entry["floats_up"] for entry in run.entries) == up
    assert up > 0
    assert down > 0


@pytest.mark.parametrize("name", EVERY)
def test_a_round_costs_what_the_method_is_known_to_cost(name: str) -> None:
    """ALGORITHMS.md: floats up and down of one client in an ordinary round."""
    case = case_for(name, (5,))
    run = LibraryRun(case, made(name, **facts(name).quiet))
    run.rounds(2)
    before = dict(run.ledger.totals)
    run.step()
    sizes = {"d": run.layout.d, "dx": run.layout.dx, "dy": run.layout.dy}
    clients = case.n_clients
    extra_up = extra_down = 0
    if case.problem.refreshes:  # the statistics of the ratio loss, in a phase of their own
        extra_up = case.problem.n_statistics
        extra_down = run.layout.d + run.layout.n_carried
    wanted_up, wanted_down = (eval(text, sizes) for text in facts(name).floats)
    spent = {key: run.ledger.totals[key] - before[key] for key in before}
    assert spent["floats_up"] == clients * (wanted_up + extra_up)
    assert spent["floats_down"] == clients * (wanted_down + extra_down)
