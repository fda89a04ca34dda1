from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch

import fedsaddle
from fedsaddle.algorithms import CODASCA, CDMAOne, FedAvg, LocalSGDA, Members
from fedsaddle.data import FederatedData
from fedsaddle.engines import EngineOptions, Simulation
from fedsaddle.engines.clients import FULL_BATCH
from fedsaddle.errors import UserError
from fedsaddle.problems import AUC, Problem, Risk


def data_of(sizes, seed=0, dim=3, **split):
    random = np.random.default_rng(seed)
    clients = []
    for shift, n in enumerate(sizes):
        y = (random.random(n) < 0.4).astype(np.int64)
        y[:2] = [0, 1][: len(y[:2])]
        clients.append((random.normal(size=(n, dim)) + y[:, None] + 0.3 * shift, y))
    return FederatedData.from_clients(clients, **split)


def vectors(result):
    return torch.cat([value.flatten() for value in (*result.x.values(), *result.y.values())])


@pytest.mark.parametrize("stack_size", [2, 8])
def test_the_number_of_workers_changes_nothing(stack_size):
    data = data_of([40, 3, 25, 40, 17, 9])
    engine = {"stack_size": stack_size}
    one, two, three = (
        fedsaddle.train("auc", data, CODASCA(), rounds=4, engine={**engine, "workers": workers})
        for workers in (1, 2, 3)
    )
    assert torch.equal(vectors(one), vectors(two))
    assert torch.equal(vectors(one), vectors(three))
    assert one.history[-1]["test/auc"] == two.history[-1]["test/auc"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_question_is_prepared_once_and_answered_anew(workers):
    """Whatever was asked in between, and by whatever weights, as an engine that never saw it."""
    data, method = data_of([12, 12, 12, 12, 12]), LocalSGDA(local_steps=2, batch_size=4)
    problem = AUC(model=torch.nn.Linear(3, 1)).prepare(data)
    layout, able = problem.layout(), torch.arange(5)
    (phase,) = method.phases(0)
    options = EngineOptions(workers=workers, stack_size=2)

    def engine():
        return Simulation(
            problem, method, data, layout, Members(able, data.names, able), options, seed=1
        )

    kept = engine()
    all_of_them, some, rows = able.numpy(), np.array([1, 3, 4]), torch.tensor([1, 2, 3, 4, 5])
    uniform, of_some = torch.ones(5), torch.tensor([2.0, 1.0, 1.0])
    questions = [
        (0, all_of_them, rows, False),
        (1, all_of_them, rows, False),
        (2, all_of_them, uniform, False),
        (3, some, of_some, False),
        (4, all_of_them, rows, True),
        (5, all_of_them, None, False),
        (6, all_of_them, rows, False),
        (7, all_of_them, rows, False),
    ]
    prepared = []
    try:
        for number, clients, weights, measured in questions:
            z = torch.full((layout.d,), 0.1 * number)
            asked = (phase, number, clients, {"z": z, "carried": torch.zeros(0)}, weights, measured)
            (answer,) = kept.ask(*asked)
            prepared.append(kept._jobs[phase.name])
            means = answer.means.vectors["z"].clone()
            kept.evaluate(z, torch.zeros(0), "test")  # which uses the same memory
            fresh = engine()
            (expected,) = fresh.ask(*asked)
            assert torch.equal(means, expected.means.vectors["z"])
            assert np.array_equal(answer.moved, expected.moved) or not measured
            fresh.close()
    finally:
        kept.close()
    same = [b is a for a, b in pairwise(prepared)]
    assert same == [True, False, False, False, False, False, True]


def test_the_callers_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    fedsaddle.train("auc", data_of([20, 20]), LocalSGDA(), rounds=1)
    assert torch.get_num_threads() == before


def test_loop_and_stack_agree_in_double_precision():
    data = data_of([40, 3, 25, 40])
    runs = [
        fedsaddle.train(
            "auc", data, CODASCA(), rounds=5, engine={"dtype": "float64", "clients": how}
        )
        for how in ("stack", "loop")
    ]
    torch.testing.assert_close(vectors(runs[0]), vectors(runs[1]), rtol=0, atol=1e-12)


def test_dropout_noise_is_the_same_for_any_number_of_workers():
    data = data_of([30, 30, 30])
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )
    runs = [
        fedsaddle.train(AUC(model=network), data, rounds=3, engine={"workers": w, "stack_size": 2})
        for w in (1, 2)
    ]
    assert torch.equal(vectors(runs[0]), vectors(runs[1]))


def test_batch_norm_statistics_are_averaged_and_used_in_evaluation():
    data = data_of([30, 30])
    network = torch.nn.Sequential(
        torch.nn.BatchNorm1d(3, momentum=1.0), torch.nn.Linear(3, 1)
    ).double()
    result = fedsaddle.train(
        AUC(model=network),
        data,
        LocalSGDA(batch_size=0, local_steps=1),
        rounds=1,
        engine={"dtype": "float64"},
    )
    means = [data.inputs[data.train[k]].double().mean(0) for k in range(2)]
    expected = torch.stack(means).mean(0)
    torch.testing.assert_close(result.x["0.running_mean"], expected, rtol=0, atol=1e-6)
    assert result.model.training is False
    torch.testing.assert_close(result.model[0].running_mean, expected, rtol=0, atol=1e-6)


def batch_norm_means(method, **options):
    """The running means after one round over clients of 10 and 30 rows, and each client's own."""
    data = FederatedData.from_clients(
        [(np.full((10, 1), 1.0), np.arange(10) % 2), (np.full((30, 1), 5.0), np.arange(30) % 2)],
        test=0,
        validation=0,
    )
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(1, momentum=0.5), torch.nn.Linear(1, 1))
    result = fedsaddle.train(AUC(model=network), data, method(**options), rounds=1)
    return result.x["0.running_mean"].item()


def test_batch_norm_statistics_weigh_as_the_models_do_and_follow_each_step_once():
    once = {"batch_size": 0, "local_steps": 1}
    assert batch_norm_means(LocalSGDA, **once) == pytest.approx((0.5 + 2.5) / 2)
    assert batch_norm_means(FedAvg, **once) == pytest.approx((10 * 0.5 + 30 * 2.5) / 40)
    # CDMA looks at every batch from two points; only the moving one is the model's
    assert batch_norm_means(CDMAOne, **once) == pytest.approx((0.5 + 2.5) / 2)


def test_cuda_is_refused_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(UserError, match=r"engine\.device"):
        fedsaddle.train("auc", data_of([20]), rounds=1, engine={"device": "cuda"})


class Broken(Problem):
    """Gives a loss that is not finite for clients whose inputs are large."""

    def start(self, generator):
        return {"w": torch.zeros(1)}, {}

    def loss(self, x, y, batch):
        large = batch.inputs.mean() > 50
        return x["w"].sum() * torch.where(large, torch.tensor(float("nan")), torch.tensor(1.0))


def test_a_client_that_answers_nan_is_refused_and_named_and_the_round_goes_on():
    good = [torch.ones(5, 1) for _ in range(3)]
    data = FederatedData.from_clients([*good, 100 * torch.ones(5, 1)], test=0, validation=0)
    result = fedsaddle.train(Broken(), data, LocalSGDA(learning_rate=1.0, local_steps=1), rounds=2)
    assert result.x["w"].item() == pytest.approx(-2.0)
    entries = result.record.ledger
    assert [entry["refused"] for entry in entries] == [{"3": "'z' is not finite"}] * 2
    assert [entry["answered"] for entry in entries] == [[0, 1, 2, 3]] * 2


class Watched(LocalSGDA):
    """Notes whether the server was given means."""

    given: ClassVar[list[bool]] = []

    def average(self, at, state, replies):
        self.given.append(replies.means is not None)
        return super().average(at, state, replies)


@pytest.mark.parametrize("last", [1.0, 100.0])
def test_the_server_gets_means_unless_somebody_in_them_is_refused(last):
    rows = [torch.ones(5, 1) for _ in range(3)]
    data = FederatedData.from_clients([*rows, last * torch.ones(5, 1)], test=0, validation=0)
    Watched.given.clear()
    fedsaddle.train(Broken(), data, Watched(learning_rate=1.0, local_steps=1), rounds=2)
    assert Watched.given == [last == 1.0] * 2


def test_below_the_quorum_the_run_stops_and_says_why():
    data = FederatedData.from_clients(
        [torch.ones(5, 1), 100 * torch.ones(5, 1), 100 * torch.ones(5, 1)], test=0, validation=0
    )
    with pytest.raises(UserError, match=r"only 1 of 3 .* 4 times .*'client-1': 'z' is not finite"):
        fedsaddle.train(Broken(), data, LocalSGDA(), rounds=2)


def test_a_site_with_one_test_row_is_evaluated_though_its_network_normalises_batches():
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    data = data_of([40, 10], test=0.1, validation=0)
    assert data.test.counts.tolist() == [4, 1]
    result = fedsaddle.train(AUC(model=network), data, rounds=1)
    assert 0 <= result.history[-1]["test/auc"] <= 1
    assert result.history[-1]["test/loss"] is not None


def test_losses_are_those_of_the_network_as_it_is_used():
    """With all its units, and normalised by what it has learnt."""
    network = torch.nn.Sequential(
        *(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)),
        torch.nn.Linear(8, 1),
    )
    data = data_of([40, 30], test=0.3, validation=0)
    result = fedsaddle.train(Risk(model=network), data, rounds=2)
    network.load_state_dict({name: result.x[name] for name in network.state_dict()})
    rows = torch.from_numpy(data.test.indices)
    with torch.no_grad():
        outputs = network.eval()(data.take(rows)).squeeze(-1)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, data.labels[rows].float()
    )
    assert result.history[-1]["test/loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_a_client_with_one_training_row_is_named_where_the_network_normalises_batches():
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    data = data_of([40, 1], test=0, validation=0)
    with pytest.raises(UserError, match=r"^client 'client-1' trains on one row .*data\.min_rows"):
        fedsaddle.train(Risk(model=network), data, LocalSGDA(batch_size=4), rounds=1)


def test_all_rows_are_taken_in_passes_of_which_none_is_a_row_alone():
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    data = data_of([FULL_BATCH + 1, 30], test=0, validation=0)
    result = fedsaddle.train(AUC(model=network), data, CDMAOne(local_steps=1), rounds=1)
    assert all(bool(value.isfinite().all()) for value in result.x.values())
