"""The `[engine]` section."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EngineOptions(BaseModel):
    """Where and how clients are computed. None of it changes what is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["simulation", "flower"] = Field(
        "simulation", description="all clients on this machine, or sites across a network (Flower)"
    )
    workers: int = Field(
        0,
        ge=0,
        description="processes; the result does not depend on it (0: one per core, where rounds "
        "are long enough, or one per CUDA device)",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: every CUDA device, where there is one"
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="precision")
    clients: Literal["stack", "vmap", "loop"] = Field(
        "stack",
        description="move clients as one grouped network, by torch.vmap, or one after another "
        "(for debugging)",
    )
    stack_size: int = Field(
        0,
        ge=0,
        description="clients moved at once (0: what the processor's cache or a device is good for)",
    )
    compile: Literal["auto"] | bool = Field(
        "auto",
        description="compile the gradients (auto: in a long run on a CPU with a compiler)",
    )
    memory_mb: float = Field(512.0, gt=0, description="client memory beyond this lies on disk")
    sites: list[str] = Field(
        default_factory=list,
        description="flower: the sites by name; others are refused (empty: all that connect)",
    )
    min_sites: int = Field(
        2, ge=1, description="flower: with no list of sites, fewer than this are not enough"
    )
    wait_seconds: float = Field(
        120.0, gt=0, description="flower: how long the coordinator waits for sites to connect"
    )
    grace_seconds: float = Field(
        600.0, gt=0, description="flower: how long a phase waits for sites that do not answer"
    )
    message_seconds: float = Field(
        3600.0, gt=0, description="flower: a message not answered by then is given up"
    )
    poll_seconds: float = Field(0.2, gt=0, description="flower: time between two looks for replies")
