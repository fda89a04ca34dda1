"""How much work a run is: what tells whether more processes or a compiler repay themselves.

It is counted, not timed, so that a run decides the same way each time.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.engines.clients import Setup
from fedsaddle.problems import Batch
from fedsaddle.problems.oracle import Oracle

OPERATIONS_PER_SECOND = 6e10
SECONDS_PER_PASS, SECONDS_PER_LAYER = 1e-4, 3e-4
"""What a stack's gradient takes besides its operations, where it is replayed and not compiled."""
WORTH_WORKERS, WORTH_FORKING = 3e-3, 1.0
"""Seconds of a round, and of a run, from which on worker processes help."""
COMPILING, COMPILING_A_LAYER = 5.0, 0.8
"""Seconds that a compiler takes for one size of minibatch."""
WORTH_COMPILING = 4.0
"""It must save so much more than it takes: there are several shapes, and workers share the gain."""


@dataclass(frozen=True)
class Effort:
    """Of a round, in one process and without a compiler: seconds, about."""

    arithmetic: float
    overhead: float
    """Which compiled code has next to none of."""
    compiling: float
    """Seconds that it is in the making, for one size of minibatch."""

    @property
    def seconds(self) -> float:
        return self.arithmetic + self.overhead


def effort_of_a_round(setup: Setup, clients: int, stacks: int) -> Effort:
    """Where so many clients take part, in so many stacks."""
    operations, layers = _of_a_row(setup)
    rows = setup.data.train.counts.max()
    batch = min(setup.algorithm.batch_size or rows, rows)
    steps = getattr(setup.algorithm, "local_steps", 1)
    arithmetic = operations * float(batch) * steps * clients / OPERATIONS_PER_SECOND
    overhead = stacks * steps * (SECONDS_PER_PASS + layers * SECONDS_PER_LAYER)
    return Effort(arithmetic, overhead, COMPILING + layers * COMPILING_A_LAYER)


def _of_a_row(setup: Setup) -> tuple[float, int]:
    """Of one row's gradient, the operations, roughly, and how many layers with weights there are.

    Operations are three times those of the forward pass, in which a weight is used once, or in a
    convolution once for each place of the output.
    """
    layout, problem, data = setup.layout, setup.problem, setup.data
    index = torch.from_numpy(data.train.indices[:2])
    inputs, labels = data.take(index, layout.dtype), data.labels[index]
    noise = setup.noise(len(index), "effort")
    batch = Batch(*(part.unsqueeze(0) for part in Batch(inputs, labels, noise).parts))
    x, y = problem.start(torch.Generator().manual_seed(0))
    z = layout.flatten(x, y).unsqueeze(0)
    carried = layout.flatten_carried(problem.carried()).unsqueeze(0)
    used = layers = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal used, layers
        own = sum(weight.numel() for weight in module.parameters(recurse=False))
        if own:
            transposed = isinstance(module, nn.ConvTranspose2d)
            places = inputs[0] if transposed else output
            used += own * max(1, math.prod(places.shape[2:])) if isinstance(places, Tensor) else own
            layers += 1

    network = getattr(problem, "model", None)
    hooks = [part.register_forward_hook(count) for part in network.modules()] if network else []
    try:
        Oracle(problem, layout, "loop").loss(z, carried, batch)
    except Exception:  # what is wrong with the problem shows when it runs
        used = layers = 0
    finally:
        for hook in hooks:
            hook.remove()
    return 6.0 * max(used, layout.d), layers
