"""From a name, or an import path, to a network that fits the data."""

import importlib
import inspect
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from fedsaddle import keyed
from fedsaddle.errors import UserError, nearest


def logistic(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))


def mlp(input_shape: tuple[int, ...], outputs: int, hidden: list[int] | None = None) -> nn.Module:
    """Linear layers with ReLU between them."""
    widths = [prod(input_shape), *(hidden if hidden is not None else [64, 64])]
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


MODELS: dict[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp}


class ModelOptions(BaseModel):
    """The `[model]` section: which network, and its own arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        "logistic", description='a network by name, or any nn.Module as "package.module:Class"'
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the network, e.g. { hidden = [50] }"
    )


def _factory(name: str) -> Callable[..., nn.Module]:
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"model.name: cannot import '{name}': {error}.") from None
        return found
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
    factory = _factory(options.name)
    parameters = inspect.signature(factory).parameters
    known = {"input_shape": tuple(input_shape), "outputs": outputs}
    arguments = {name: value for name, value in known.items() if name in parameters}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in options.arguments:
        if name not in parameters and not open_ended:
            hint = nearest(name, [key for key in parameters if key not in known])
            raise UserError(f"model.arguments: '{options.name}' has no argument '{name}'; {hint}")
    with torch.random.fork_rng():
        torch.manual_seed(keyed.torch_generator(seed, "weights").initial_seed())
        try:
            model = factory(**arguments, **options.arguments)
        except (TypeError, ValueError) as error:
            raise UserError(f"model.arguments: '{options.name}' cannot be made: {error}.") from None
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name: '{options.name}' gives no torch.nn.Module.")
    return model
