"""Networks: the papers' own by name, any `nn.Module` by import path."""

from fedsaddle.models.build import MODELS, ModelOptions, build

__all__ = ["MODELS", "ModelOptions", "build"]
