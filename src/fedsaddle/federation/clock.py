"""A simulated clock: how long each client takes to answer, without anyone waiting for it.

    seconds = latency + bytes_down/bandwidth + work · jitter/speed + bytes_up/bandwidth

A client's latency, bandwidth and speed are its own for the whole run: log-normal about the medians
of the `[federation]` section, keyed by (seed, client). `work` is `seconds_per_phase` where local
training happens and a tenth of it elsewhere. The jitter is heavy-tailed and new every time: Pareto
with index `tail` and median 1, keyed by (seed, phase, round, attempt, client). A phase lasts until
the last reply that is used has arrived; late ones are not waited for.
"""

import numpy as np

from fedsaddle.algorithms import Phase, Round
from fedsaddle.federation.options import FederationOptions
from fedsaddle.keyed import generator

WITHOUT_TRAINING = 0.1
"""The work of a phase without local training, as a share of one with it."""


def devices(options: FederationOptions, seed: int, clients: np.ndarray) -> np.ndarray:
    """Latency (s), bandwidth (bytes/s) and speed (1: median) of each client, `(3, C)`."""
    normal = [generator(seed, "device", int(client)).standard_normal(3) for client in clients]
    spread = np.exp(options.device_spread * np.array(normal).reshape(-1, 3).T)
    medians = np.array([options.latency_seconds, options.bandwidth, 1.0])
    return np.asarray(medians[:, None] * spread)


def jitter(
    options: FederationOptions, at: Round, phase: Phase, attempt: int, clients: np.ndarray
) -> np.ndarray:
    """How many times longer than usual each client's work takes this time."""
    key = ("jitter", phase.draw_key, at.number, attempt)
    uniform = [1 - generator(at.seed, *key, int(client)).random() for client in clients]
    return np.asarray((2 * np.array(uniform)) ** (-1 / options.tail))


def response_seconds(
    options: FederationOptions,
    at: Round,
    phase: Phase,
    attempt: int,
    clients: np.ndarray,
    bytes_down: np.ndarray,
    bytes_up: int,
) -> np.ndarray:
    """From the server's request to each client's reply."""
    latency, bandwidth, speed = devices(options, at.seed, clients)
    work = options.seconds_per_phase * (1.0 if phase.trains else WITHOUT_TRAINING)
    busy = work * jitter(options, at, phase, attempt, clients) / speed
    return np.asarray(latency + (bytes_down + bytes_up) / bandwidth + busy)
