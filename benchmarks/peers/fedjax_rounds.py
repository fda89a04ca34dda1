# /// script
# dependencies = ["fedjax==0.0.17", "jax==0.10.2"]
# ///
"""FedAvg in FedJAX, compiled by `jax.jit`: its default way of running clients."""

from importlib.metadata import version

import fedjax
import haiku as hk
import jax
from protocol import Turns
from workload import BATCH, CLIENTS, RATE, asked_network, clients

jax.tree_map = jax.tree.map  # FedJAX calls it by the name that newer JAX has dropped


def forward(batch: dict[str, jax.Array]) -> jax.Array:
    """The network for pictures with the channels last."""
    if asked_network() == "mlp":
        return hk.nets.MLP([200, 200, 10])(hk.Flatten()(batch["x"]))
    layers = [
        hk.Conv2D(6, 5, padding="VALID"),
        jax.nn.relu,
        hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID"),
        hk.Conv2D(16, 5, padding="VALID"),
        jax.nn.relu,
        hk.MaxPool((2, 2, 1), (2, 2, 1), "VALID"),
        hk.Flatten(),
        hk.nets.MLP([120, 84, 10]),
    ]
    return hk.Sequential(layers)(batch["x"])


def main() -> None:
    data = {
        str(client): fedjax.ClientDataset({"x": inputs[..., None], "y": labels})
        for client, (inputs, labels) in enumerate(clients())
    }
    model = fedjax.create_model_from_haiku(
        hk.transform(forward),
        sample_batch=next(iter(data["0"].batch(batch_size=BATCH))),
        train_loss=lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(
            batch["y"], logits
        ),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(RATE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    turns, number = Turns(fedjax=version("fedjax"), jax=jax.__version__), 0
    while turns.next():
        keys = jax.random.split(jax.random.PRNGKey(number), CLIENTS)
        cohort = [(name, rows, key) for (name, rows), key in zip(data.items(), keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        number += 1


if __name__ == "__main__":
    main()
