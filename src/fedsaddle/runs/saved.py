"""A trained model on disk: architecture, preprocessing and weights, enough to predict anywhere.

`model.json` says what the network is and how rows become inputs; `model.safetensors` holds the
returned weights, `best.safetensors` those of the best evaluated round.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsaddle.data import Preprocessing
from fedsaddle.data.facts import Facts
from fedsaddle.data.federated import Store, as_numbers
from fedsaddle.data.sources.images import ImageFormat
from fedsaddle.errors import UserError, nearest
from fedsaddle.layout import Layout
from fedsaddle.metrics import SiteEvaluation, evaluate_site
from fedsaddle.models import ModelOptions, build
from fedsaddle.problems import NetworkProblem, Problem
from fedsaddle.problems.base import DataFacts
from fedsaddle.runs.folder import read_tensors, write_json, write_tensors

FORMAT = 1
MOST_NUMBERS = 2**24
"""About so many input numbers go through the network at once."""


def describe(problem: Problem, facts: Facts, model: ModelOptions | None) -> dict[str, Any]:
    """The contents of `model.json`."""
    return {
        "format": FORMAT,
        "problem": problem.name or type(problem).__name__,
        "task": facts.task,
        "classes": list(facts.classes),
        "input_shape": list(facts.input_shape),
        "outputs": outputs_for(facts),
        "positive": facts.positive,
        "images": None if facts.images is None else vars(facts.images),
        "model": None if model is None else _architecture(model),
        "preprocessing": None if facts.preprocessing is None else facts.preprocessing.to_json(),
    }


def _architecture(model: ModelOptions) -> dict[str, Any]:
    """How to build the network again, without the weights that it started from."""
    started = {"init", "init_skip"}
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=started)


def outputs_for(facts: DataFacts) -> int:
    """One output for two classes, otherwise one per class or finding."""
    return facts.n_classes if facts.task in ("multiclass", "multilabel") else 1


def save_weights(path: Path, layout: Layout, z: Tensor, carried: Tensor) -> None:
    """Every named tensor of a point; dual variables under `dual.`."""
    x, y = layout.unflatten(z, carried)
    write_tensors(path, x | {f"dual.{name}": value for name, value in y.items()})


def save_description(folder: Path, description: dict[str, Any]) -> None:
    write_json(folder / "model.json", description)


def starting_network(options: ModelOptions, facts: DataFacts, seed: int) -> nn.Module:
    """The network for this data, with the weights of `model.init` where one is given."""
    network = build(options, facts.input_shape, outputs_for(facts), seed)
    if options.init is None:
        return network
    names = list(network.state_dict())
    for prefix in options.init_skip:
        if not any(name.startswith(prefix) for name in names):
            hint = nearest(prefix, names)
            raise UserError(f"model.init_skip: no weight is called '{prefix}…'; {hint}")
    weights = read_tensors(options.init)[0]
    try:
        return load_network(network, weights, f"model.init: {options.init}", options.init_skip)
    except UserError as error:
        raise UserError(
            f"{error} It must be the same network; a part that differs, such as the last layer, "
            "keeps its random start when model.init_skip names it."
        ) from None


def load_network(
    network: nn.Module, weights: dict[str, Tensor], where: str, skip: Sequence[str] = ()
) -> nn.Module:
    """Put named weights into a network; what is not the network's (a, b, duals) is left aside.

    A network may be dual itself, as a discriminator is.
    """
    weights = {name.removeprefix("dual."): value for name, value in weights.items()} | weights
    own = {k: v for k, v in network.state_dict().items() if not k.startswith(tuple(skip))}
    missing = [name for name in own if name not in weights]
    if missing:
        raise UserError(f"{where}: there is no '{missing[0]}', which the network needs.")
    for name, value in own.items():
        if weights[name].shape != value.shape:
            raise UserError(
                f"{where}: '{name}' has shape {tuple(weights[name].shape)}, "
                f"the network wants {tuple(value.shape)}."
            )
    given = {name: weights[name].to(own[name].dtype) for name in own}
    network.load_state_dict(given, strict=not skip)
    return network.eval()


@dataclass(frozen=True)
class SavedModel:
    """A network with its preprocessing, ready to score new rows."""

    network: nn.Module
    task: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing | None
    positive: str | None = None
    """The values that mean a finding is present, where they are not the usual ones."""
    images: ImageFormat | None = None
    """How image files become inputs, for a model that was trained on some."""
    input_shape: tuple[int, ...] | None = None
    """The shape of one row's inputs, where it was saved."""

    @classmethod
    def load(cls, folder: Path, best: bool = False) -> "SavedModel":
        """From a run's `model/` folder alone."""
        path = folder / "model.json"
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such file; give a run's model folder.") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}).") from None
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise UserError(f"{path}: not a model description of format {FORMAT}.")
        if saved["model"] is None:
            raise UserError(
                f"{path}: this model was given as a Python object; load it in Python, "
                "or train with [model] name = 'package.module:Class'."
            )
        network = build(
            ModelOptions(**saved["model"]), tuple(saved["input_shape"]), saved["outputs"]
        )
        weights = folder / ("best.safetensors" if best else "model.safetensors")
        preprocessing, images = saved["preprocessing"], saved.get("images")
        return cls(
            load_network(network, read_tensors(weights)[0], str(weights)),
            saved["task"],
            tuple(saved["classes"]),
            None if preprocessing is None else Preprocessing.from_json(preprocessing),
            saved.get("positive"),
            None if images is None else ImageFormat(images["size"], images["mode"]),
            tuple(saved["input_shape"]),
        )

    @property
    def findings(self) -> tuple[str, ...]:
        """The names of several findings; empty for another task."""
        return self.classes if self.task == "multilabel" else ()

    def logits(self, inputs: Tensor | Store) -> np.ndarray:
        """The network's outputs, `(n,)` for two classes, as doubles."""
        rows = max(1, min(1024, MOST_NUMBERS // max(prod(inputs.shape[1:]), 1)))
        with torch.no_grad():
            parts = [
                self.network(as_numbers(inputs[torch.arange(i, min(i + rows, len(inputs)))]))
                for i in range(0, len(inputs), rows)
            ]
        outputs = torch.cat(parts).double().numpy() if parts else np.zeros((0, 1))
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs

    def scores(self, inputs: Tensor | Store) -> np.ndarray:
        """Probabilities, of the positive class or of every class or finding."""
        logits = torch.from_numpy(self.logits(inputs))
        if logits.ndim == 1 or self.task == "multilabel":
            return torch.sigmoid(logits).numpy()
        return torch.softmax(logits, dim=1).numpy()

    def evaluate(
        self, inputs: Tensor | Store, labels: Tensor, clients: "list[str] | None", name: str
    ) -> list[SiteEvaluation]:
        """Counts per client, or for the whole file."""
        logits, truth = self.logits(inputs), labels.numpy()
        if clients is None:
            return [evaluate_site(name, logits, truth, nan, findings=self.findings)]
        owners = np.asarray(clients)
        own = {str(client): owners == client for client in dict.fromkeys(clients)}
        return [
            evaluate_site(client, logits[rows], truth[rows], nan, findings=self.findings)
            for client, rows in own.items()
        ]


def trained_network(
    problem: Problem, layout: Layout, z: Tensor, carried: Tensor
) -> nn.Module | None:
    """A copy of the problem's network with these weights; None for a problem without one."""
    import copy

    if not isinstance(problem, NetworkProblem):
        return None
    x, y = layout.unflatten(z.detach().clone(), carried.detach().clone())
    network = copy.deepcopy(problem.model)
    return load_network(network, y | x, "the trained point")
