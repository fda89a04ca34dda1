"""Runs on a pretended device and on the CPU, for a process of their own."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pretend
import torch
from torch import nn

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS, CDMAAda, LocalSGDA
from fedsaddle.data import FederatedData
from fedsaddle.data.sources.storage import Mapped
from fedsaddle.engines import simulation
from fedsaddle.models import ModelOptions, build
from fedsaddle.problems import GAN, PROBLEMS, Risk

SIZES = (24, 15, 24, 18, 24)


def data_of(shape=(3,), classes: int = 2, sizes=SIZES, **options: Any) -> FederatedData:
    random = np.random.default_rng(0)
    clients = []
    for n in sizes:
        y = np.arange(n) % classes
        clients.append((random.normal(size=(n, *shape)) + y.reshape(-1, *[1] * len(shape)), y))
    return FederatedData.from_clients(clients, **options)


def dense(outputs: int = 1, *between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *between, nn.Tanh(), nn.Linear(4, outputs))


class Adversaries(nn.Module):
    latent = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.discriminator = nn.Linear(2, 3), nn.Linear(3, 1)


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(4, 3),
    )


def tokens() -> FederatedData:
    random = np.random.default_rng(0)
    clients = [(random.integers(0, 9, (n, 5)), np.arange(n) % 3) for n in SIZES]
    return FederatedData.from_clients(clients)


def findings() -> FederatedData:
    random = np.random.default_rng(0)
    rows = [(random.normal(size=(n, 3)), random.integers(0, 2, (n, 2))) for n in SIZES]
    return FederatedData.from_clients(rows, findings=["edema", "nodule"])


def in_a_file(data: FederatedData, folder: Path) -> FederatedData:
    file, rows = folder / "rows", data.inputs.numpy()
    rows.tofile(file)
    return replace(data, inputs=Mapped(file, rows.shape, rows.dtype))


def problem_for(method: str) -> str:
    solved = ALGORITHMS[method].solves
    return next(name for name, problem in PROBLEMS.items() if problem.kind in solved)


def cases(folder: Path) -> dict[str, dict[str, Any]]:
    """Every method, every problem, and many kinds of layers: what `fedsaddle.train` is given."""
    rows, image = data_of(), data_of((1, 6, 6), 3)
    made: dict[str, dict[str, Any]] = {}
    for name in ALGORITHMS:
        problem = problem_for(name)
        settings = {"local_steps": 3} if "local_steps" in ALGORITHMS[name].model_fields else {}
        made[name] = {
            "problem": problem,
            "data": data_of(classes=3) if problem == "ratio" else rows,
            "algorithm": ALGORITHMS[name](batch_size=8, **settings),
            "model": dense(3 if problem == "ratio" else 1),
        }
    for name in ("risk", "focal", "robust"):
        made[f"problem {name}"] = {"problem": name, "data": rows, "model": dense()}
    made["problem multilabel-auc"] = {
        "problem": "multilabel-auc",
        "data": findings(),
        "model": dense(2),
    }
    made["problem gan"] = {"problem": GAN(model=Adversaries()), "data": rows}
    made["batch norm"] = {"problem": "auc", "data": rows, "model": dense(1, nn.BatchNorm1d(4))}
    made["clipped"] = {
        "problem": "auc",
        "data": rows,
        "model": dense(),
        "algorithm": LocalSGDA(clip=0.1),
    }
    made["images"] = {"problem": "risk", "data": image, "model": images()}
    text = tokens()
    network = build(ModelOptions(name="char-gru"), text.input_shape, 3, 0)
    made["text"] = {"problem": "risk", "data": text, "model": network}
    made["rows in a file"] = {"problem": "auc", "data": in_a_file(rows, folder), "model": dense()}
    made["own noise"] = {"problem": Noisy(model=dense()), "data": rows}
    return made


class Noisy(Risk):
    """A loss that draws from torch's own generator of the device."""

    def loss(self, x, y, batch):
        return super().loss(x, y, batch) + 0 * torch.rand((), device=batch.inputs.device)


def numbers(result) -> torch.Tensor:
    return torch.cat([value.flatten() for value in (*result.x.values(), *result.y.values())])


def trained(device: str, **what: Any):
    return fedsaddle.train(
        **what,
        rounds=2,
        evaluation={"every": 1},
        engine={"device": device, "dtype": "float64", "workers": 0},
    )


def measured(result) -> dict[str, float]:
    return {name: value for name, value in result.history[-1].items() if name != "seconds"}


def with_devices(*names: str) -> pretend.Backend:
    """Makes a simulation find these devices where it is asked for CUDA."""
    backend = pretend.register()
    found = simulation._devices
    simulation._devices = lambda wanted: found("cpu") if wanted == "cpu" else [*names]
    return backend


def on_one_device(folder: str) -> dict[str, Any]:
    """For every case a run on the device and one on the CPU."""
    os.environ["FEDSADDLE_CACHE"] = folder
    backend = with_devices("pretend:0")
    found: dict[str, Any] = {}
    for name, what in cases(Path(folder)).items():
        backend.seeds.clear()
        pretend.MADE.clear()
        try:
            there, here = trained("cuda", **what), trained("cpu", **what)
        except Exception as error:
            found[name] = repr(error)
            continue
        found[name] = {
            "far": float((numbers(there) - numbers(here)).abs().max()),
            "measured": (measured(there), measured(here)),
            "devices": {str(device) for device in pretend.MADE},
            "seeds": len(set(backend.seeds)),
        }
    return found


class Telling(CDMAAda):
    """Every stack notes the process and the device that it is computed in."""

    name: ClassVar[str] = "test-telling"
    notes: Path

    def steps(self, at, received, memory, client):
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()} {client.layout.device}\n")
        return super().steps(at, received, memory, client)


def on_two_devices(folder: str) -> dict[str, Any]:
    """A run on two devices, once more in the same process, and on the CPU."""
    with_devices("pretend:0", "pretend")  # torch knows of one; each process has its own name for it
    found: dict[str, Any] = {}
    points = {}
    for run, device in {"first": "cuda", "second": "cuda", "cpu": "cpu"}.items():
        notes = Path(folder) / run
        method = Telling(batch_size=8, local_steps=3, notes=notes)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = trained(device, problem="auc", data=data_of(), algorithm=method)
        points[run] = numbers(result)
        found[run] = {
            "far": float((points[run] - points["first"]).abs().max()),
            "warned": [str(warning.message) for warning in warned],
            "processes": sorted({tuple(line.split()) for line in notes.read_text().splitlines()}),
            "own": os.getpid(),
        }
    return found
