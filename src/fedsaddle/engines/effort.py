"""How much arithmetic a run is: what tells whether more processes or a compiler repay themselves.

It is counted, not timed, so that a run decides the same way each time.
"""

import numpy as np
import torch

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
    """Of one row's gradient."""
    from torch.utils.flop_counter import FlopCounterMode

    layout, problem, data = setup.layout, setup.problem, setup.data
    index = torch.from_numpy(data.train.indices[:2]).to(layout.device)
    inputs, labels = data.take(index, layout.dtype), data.labels[index]
    noise = setup.noise(len(index), "effort")
    batch = Batch(*(part.unsqueeze(0) for part in Batch(inputs, labels, noise).parts))
    x, y = problem.start(torch.Generator().manual_seed(0))
    z = layout.flatten(x, y).to(layout.device).unsqueeze(0)
    carried = layout.flatten_carried(problem.carried()).to(layout.device).unsqueeze(0)
    least = 6.0 * layout.d
    try:
        with FlopCounterMode(display=False) as counter:
            Oracle(problem, layout, "loop").gradient(z, carried, batch)
    except Exception:  # what is wrong with the problem shows when it runs
        return least
    return float(max(counter.get_total_flops() / len(index), least))
