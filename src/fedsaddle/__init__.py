"""Federated minimax learning: many parties, one model, nobody's data leaves home.

>>> import fedsaddle
>>> result = fedsaddle.train("auc", "breast-cancer", "codasca", rounds=2)
>>> result.history[-1]["round"]
2
"""

from importlib import import_module
from typing import Any

__all__ = ["algorithms", "data", "metrics", "models", "problems", "train"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: `fedsaddle --help` should not wait for torch.
    if name == "train":
        return import_module("fedsaddle.runs").train
    if name in __all__:
        return import_module(f"fedsaddle.{name}")
    raise AttributeError(f"module 'fedsaddle' has no attribute '{name}'")
