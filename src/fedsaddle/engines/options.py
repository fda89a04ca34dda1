"""The `[engine]` section."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineOptions(BaseModel):
    """Where and how clients are computed. None of it changes what is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["simulation"] = Field("simulation", description="all clients on this machine")
    workers: int = Field(1, ge=1, description="processes; the result does not depend on it")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA when present")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision")
    clients: Literal["stack", "loop"] = Field(
        "stack", description="move clients as one stack, or one after another (for debugging)"
    )
    stack_size: int = Field(8, ge=1, description="clients moved at once")
    memory_mb: float = Field(512.0, gt=0, description="client memory beyond this lies on disk")
