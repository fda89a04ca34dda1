"""How much arithmetic a run is: what tells whether more processes or a compiler repay themselves.

It is counted, not timed, so that a run decides the same way each time.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsaddle.engines.clients import Setup
from fedsaddle.problems import Batch
from fedsaddle.problems.oracle import Oracle

WORTH_WORKERS = 3e7
"""Operations of a round from which on worker processes help."""
WORTH_COMPILING = 2e12
"""Operations of a run from which on compiled code, some tens of seconds in the making, helps."""


def operations_per_round(setup: Setup, clients: int) -> float:
    """Floating-point operations of a round's gradients, roughly."""
    method, rows = setup.algorithm, setup.data.train.counts
    clients = clients or int(np.count_nonzero(rows))
    batch = min(method.batch_size or rows.max(), rows.max())
    return _of_a_row(setup) * float(batch) * getattr(method, "local_steps", 1) * clients


def _of_a_row(setup: Setup) -> float:
    """Of one row's gradient: three times its forward pass, in which a weight is used once, or in a
    convolution once for each place of the output."""
    layout, problem, data = setup.layout, setup.problem, setup.data
    index = torch.from_numpy(data.train.indices[:2]).to(layout.device)
    inputs, labels = data.take(index, layout.dtype), data.labels[index]
    noise = setup.noise(len(index), "effort")
    batch = Batch(*(part.unsqueeze(0) for part in Batch(inputs, labels, noise).parts))
    x, y = problem.start(torch.Generator().manual_seed(0))
    z = layout.flatten(x, y).to(layout.device).unsqueeze(0)
    carried = layout.flatten_carried(problem.carried()).to(layout.device).unsqueeze(0)
    used = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal used
        own = sum(weight.numel() for weight in module.parameters(recurse=False))
        if own:
            transposed = isinstance(module, nn.ConvTranspose2d)
            places = inputs[0] if transposed else output
            used += own * max(1, math.prod(places.shape[2:])) if isinstance(places, Tensor) else own

    network = getattr(problem, "model", None)
    hooks = [part.register_forward_hook(count) for part in network.modules()] if network else []
    try:
        Oracle(problem, layout, "loop").loss(z, carried, batch)
    except Exception:  # what is wrong with the problem shows when it runs
        used = 0
    finally:
        for hook in hooks:
            hook.remove()
    return 6.0 * max(used, layout.d)
