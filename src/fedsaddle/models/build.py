"""From a name, or an import path, to a network that fits the data."""

import importlib
import inspect
from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from fedsaddle import keyed
from fedsaddle.errors import UserError, nearest
from fedsaddle.models.dcgan import DCGAN
from fedsaddle.models.images import cifar_cnn, lenet_5, small_cnn
from fedsaddle.models.medical import densenet_121
from fedsaddle.models.resnet import ResNet20
from fedsaddle.models.text import CharGRU


def logistic(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer (DRFA's logistic regression on Adult)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))


def mlp(input_shape: tuple[int, ...], outputs: int, hidden: list[int] | None = None) -> nn.Module:
    """Linear layers with ReLU: `hidden` [50, 50] is DRFA's, [200, 200] CDMA's robust network."""
    widths = [prod(input_shape), *(hidden if hidden is not None else [64, 64])]
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "lenet-5": lenet_5,
    "small-cnn": small_cnn,
    "cifar-cnn": cifar_cnn,
    "resnet-20": ResNet20,
    "densenet-121": densenet_121,
    "dcgan": DCGAN,
    "char-gru": CharGRU,
}


class ModelOptions(BaseModel):
    """The `[model]` section: which network, its own arguments, and where its weights start.

    >>> ModelOptions(**{"import": "torch.nn:Identity"}).factory
    'torch.nn:Identity'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str = Field(
        "logistic", description='a network by name, or any nn.Module as "package.module:Class"'
    )
    import_path: str | None = Field(
        None, alias="import", description='any nn.Module as "package.module:Class", before name'
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the network, e.g. { hidden = [50] }"
    )
    init: Path | None = Field(
        None, description="weights to start from, e.g. another run's model/model.safetensors"
    )
    init_skip: list[str] = Field(
        default_factory=list,
        description='what keeps its random start, by the first letters of its name: ["head."]',
    )

    @property
    def factory(self) -> str:
        """The network's name or import path."""
        return self.import_path or self.name


def _factory(options: ModelOptions) -> Callable[..., nn.Module]:
    name, key = options.factory, "import" if options.import_path else "name"
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"model.{key}: cannot import '{name}': {error}.") from None
        return found
    if options.import_path:
        raise UserError(f"model.import: write it as 'package.module:Class', not '{name}'.")
    if name not in MODELS:
        raise UserError(f"model.name: there is no network '{name}'; {nearest(name, list(MODELS))}")
    return MODELS[name]


def build(
    options: ModelOptions, input_shape: tuple[int, ...], outputs: int, seed: int = 0
) -> nn.Module:
    """The network for inputs of this shape, with initial weights that depend on the seed alone.

    A factory is given `input_shape` and `outputs` if it has parameters of those names.

    >>> build(ModelOptions(name="mlp", arguments={"hidden": [3]}), (4,), 1)[1]
    Linear(in_features=4, out_features=3, bias=True)
    """
    factory, called = _factory(options), options.factory
    parameters = inspect.signature(factory).parameters
    known = {"input_shape": tuple(input_shape), "outputs": outputs}
    arguments = {name: value for name, value in known.items() if name in parameters}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in options.arguments:
        if name not in parameters and not open_ended:
            hint = nearest(name, [key for key in parameters if key not in known])
            raise UserError(f"model.arguments: '{called}' has no argument '{name}'; {hint}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(keyed.torch_generator(seed, "weights").initial_seed())
        try:
            model = factory(**arguments, **options.arguments)
        except (TypeError, ValueError) as error:
            raise UserError(f"model.arguments: '{called}' cannot be made: {error}.") from None
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name: '{called}' gives no torch.nn.Module.")
    return model
