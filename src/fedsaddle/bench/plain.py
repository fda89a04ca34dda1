"""The same rounds as a researcher would first write them: what the simulator is compared with.

One process, one client after another, one batch after another, lists of tensors, autograd. Nothing
is wasted on purpose: rows are indexed directly, not drawn through a DataLoader, and gradients that
a step needs twice are computed once.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsaddle.bench.cases import METHODS, Case, Size, taking_part
from fedsaddle.data import FederatedData

State = dict[str, Tensor]
Gradient = list[Tensor]
Batch = tuple[Tensor, Tensor]
Clients = Callable[[int], list[list[int]]]
OneRound = Callable[[int], State]
"""Does round number so-and-so and gives the model after it."""


class Ranker(nn.Module):
    """A network with the a, b and α of the AUC loss."""

    def __init__(self, network: nn.Module, positive_ratio: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.5))
        self.b = nn.Parameter(torch.tensor(0.5))
        self.alpha = nn.Parameter(torch.tensor(0.0))
        self.network, self.p = network, positive_ratio

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        p, h = self.p, torch.sigmoid(self.network(inputs)).squeeze(1)
        positive, negative = (labels == 1).float(), (labels == 0).float()
        loss = (1 - p) * (h - self.a) ** 2 * positive + p * (h - self.b) ** 2 * negative
        loss = loss + 2 * (1 + self.alpha) * (p * h * negative - (1 - p) * h * positive)
        return loss.mean() - p * (1 - p) * self.alpha**2

    def gradient(self, inputs: Tensor, labels: Tensor) -> Gradient:
        """Of descent on all but α, which ascends."""
        parts = torch.autograd.grad(self.loss(inputs, labels), list(self.parameters()))
        names = [name for name, _ in self.named_parameters()]
        return [-g if name == "alpha" else g for name, g in zip(names, parts, strict=True)]


def batches(
    data: FederatedData, client: int, size: Size, random: np.random.Generator
) -> Iterator[Batch]:
    """One epoch in random order."""
    rows = torch.from_numpy(random.permutation(data.train[client]))
    for batch in torch.split(rows, size.batch):
        yield torch.as_tensor(data.inputs)[batch], data.labels[batch]


def mean_state(states: list[State]) -> State:
    """The mean of parameters and buffers."""
    return {
        name: torch.stack([state[name] for state in states]).float().mean(0).to(first.dtype)
        for name, first in states[0].items()
    }


def mean_gradient(gradients: list[Gradient]) -> Gradient:
    return [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]


@torch.no_grad()
def move(model: nn.Module, rate: float, direction: Gradient) -> None:
    for parameter, change in zip(model.parameters(), direction, strict=True):
        parameter.sub_(rate * change)


def zeros(model: nn.Module) -> Gradient:
    return [torch.zeros_like(parameter) for parameter in model.parameters()]


def fedavg(
    network: nn.Module, data: FederatedData, size: Size, clients: Clients, method: Any
) -> OneRound:
    """Local SGD on cross-entropy, then the mean of the models."""
    state = copy.deepcopy(network.state_dict())

    def one_round(number: int) -> State:
        nonlocal state
        random, results = np.random.default_rng(number), []
        for client in clients(number)[0]:
            network.load_state_dict(state)
            optimiser = torch.optim.SGD(network.parameters(), lr=method.learning_rate)
            for inputs, labels in batches(data, client, size, random):
                optimiser.zero_grad()
                loss = functional.cross_entropy(network(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            results.append(copy.deepcopy(network.state_dict()))
        state = mean_state(results)
        return state

    return one_round


def codasca(
    model: Ranker, data: FederatedData, size: Size, clients: Clients, method: Any
) -> OneRound:
    """Local steps with control variates and a pull to where the stage began."""
    state = copy.deepcopy(model.state_dict())
    anchor = [parameter.detach().clone() for parameter in model.parameters()]
    anchor_pull = [0.0 if name == "alpha" else method.prox for name, _ in model.named_parameters()]
    control = zeros(model)
    own_controls = {client: zeros(model) for client in range(size.clients)}

    def one_round(number: int) -> State:
        nonlocal state, control
        random, results, changes = np.random.default_rng(number), [], []
        for client in clients(number)[0]:
            model.load_state_dict(state)
            start = [parameter.detach().clone() for parameter in model.parameters()]
            own = own_controls[client]
            for inputs, labels in batches(data, client, size, random):
                gradient = model.gradient(inputs, labels)
                direction = [
                    g + pull * (z.detach() - center) - c_own + c
                    for g, pull, z, center, c_own, c in zip(
                        gradient, anchor_pull, model.parameters(), anchor, own, control, strict=True
                    )
                ]
                move(model, method.learning_rate, direction)
            travel = size.steps * method.learning_rate
            change = [
                (before - after.detach()) / travel - c
                for before, after, c in zip(start, model.parameters(), control, strict=True)
            ]
            own_controls[client] = [c + d for c, d in zip(own, change, strict=True)]
            results.append(copy.deepcopy(model.state_dict()))
            changes.append(change)
        state = mean_state(results)
        share = len(changes) / size.clients
        control = [c + share * d for c, d in zip(control, mean_gradient(changes), strict=True)]
        return state

    return one_round


def cdma_ada(
    model: Ranker, data: FederatedData, size: Size, clients: Clients, method: Any
) -> OneRound:
    """Full gradients of some clients, then corrected local steps of others."""
    state = previous = copy.deepcopy(model.state_dict())
    reference = copy.deepcopy(model)
    correction = zeros(model)

    def full_gradient(client: int, at: State, random: np.random.Generator) -> Gradient:
        reference.load_state_dict(at)
        return mean_gradient([reference.gradient(*b) for b in batches(data, client, size, random)])

    def one_round(number: int) -> State:
        nonlocal state, previous, correction
        random = np.random.default_rng(number)
        kept = 1 - method.alpha(number) if number else 0.0
        asked_first, asked_then = clients(number)
        gradients = []
        for client in asked_first:
            gradient = full_gradient(client, state, random)
            if kept:
                before = full_gradient(client, previous, random)
                gradient = [g - kept * b for g, b in zip(gradient, before, strict=True)]
            gradients.append(gradient)
        correction = [
            kept * u + g for u, g in zip(correction, mean_gradient(gradients), strict=True)
        ]
        rate, results = method.learning_rate / (number + 1) ** method.power, []
        reference.load_state_dict(state)
        for client in asked_then:
            model.load_state_dict(state)
            for inputs, labels in batches(data, client, size, random):
                gradient = model.gradient(inputs, labels)
                at_start = reference.gradient(inputs, labels)
                direction = [
                    g + u - g0 for g, u, g0 in zip(gradient, correction, at_start, strict=True)
                ]
                move(model, rate, direction)
            results.append(copy.deepcopy(model.state_dict()))
        previous, state = state, mean_state(results)
        return state

    return one_round


def local_scgdam(
    model: Ranker, data: FederatedData, size: Size, clients: Clients, method: Any
) -> OneRound:
    """Momentum steps on the AUC of the network that a cross-entropy step would give.

    `ahead` is a second network at h, the running estimate of that network.
    """
    eta, rho = method.learning_rate, 0.1
    ahead = copy.deepcopy(model)
    state, ahead_state = copy.deepcopy(model.state_dict()), copy.deepcopy(model.state_dict())
    momentum = zeros(model)
    names = [name for name, _ in model.named_parameters()]
    weights = list(model.network.parameters())
    duals = [name == "alpha" for name in names]
    rates = [eta * (method.dual_rate if dual else method.primal_rate) for dual in duals]
    shares = [eta * (method.dual_momentum if dual else method.primal_momentum) for dual in duals]

    def gradient(xi: Batch, zeta: Batch, share: float) -> Gradient:
        """Moves h by its share towards a cross-entropy step ahead, and pulls the slope there back
        through that step."""
        outputs = model.network(xi[0]).squeeze(1)
        entropy = functional.binary_cross_entropy_with_logits(outputs, xi[1].float())
        slopes = torch.autograd.grad(entropy, weights, create_graph=True)
        ahead_by = iter(slopes)
        with torch.no_grad():
            for name, h, x in zip(names, ahead.parameters(), model.parameters(), strict=True):
                value = x - rho * next(ahead_by) if name.startswith("network.") else x
                h.copy_(value if name == "alpha" else (1 - share) * h + share * value)
        outer = dict(zip(names, ahead.gradient(*zeta), strict=True))
        pushed = [g for name, g in outer.items() if name.startswith("network.")]
        curved = iter(torch.autograd.grad(slopes, weights, grad_outputs=pushed))
        return [
            g - rho * next(curved) if name.startswith("network.") else g
            for name, g in outer.items()
        ]

    def one_round(number: int) -> State:
        nonlocal state, ahead_state, momentum
        random = np.random.default_rng(number)
        results, estimates, momenta = [], [], []
        for client in clients(number)[0]:
            model.load_state_dict(state)
            ahead.load_state_dict(ahead_state)
            m = momentum
            if number == 0:
                xi, zeta = (next(batches(data, client, size, random)) for _ in range(2))
                m = gradient(xi, zeta, share=1.0)
            samples = (batches(data, client, size, random) for _ in range(2))
            for xi, zeta in zip(*samples, strict=True):
                move(model, 1.0, [rate * part for rate, part in zip(rates, m, strict=True)])
                new = gradient(xi, zeta, eta * method.inner_rate)
                m = [(1 - b) * old + b * g for b, old, g in zip(shares, m, new, strict=True)]
            results.append(copy.deepcopy(model.state_dict()))
            estimates.append(copy.deepcopy(ahead.state_dict()))
            momenta.append(m)
        state, ahead_state = mean_state(results), mean_state(estimates)
        momentum = mean_gradient(momenta)
        return state

    return one_round


def plain_loop(case: Case, data: FederatedData) -> OneRound:
    """The case's rounds without the simulator, with the same clients in every phase."""
    problem = case.problem(data)
    plan = case.plan(data, problem)
    network: nn.Module = problem.model  # type: ignore[attr-defined]
    network.train()

    def clients(number: int) -> list[list[int]]:
        return taking_part(plan, number)

    name = METHODS[case.method].name
    if name == "fedavg":
        return fedavg(network, data, case.size, clients, plan.algorithm)
    loops = {"codasca": codasca, "cdma-ada": cdma_ada, "local-scgdam": local_scgdam}
    ranker = Ranker(network, data.positive_ratio)
    return loops[name](ranker, data, case.size, clients, plan.algorithm)
