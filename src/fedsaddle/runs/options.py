"""The `[evaluation]` and `[run]` sections."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EvaluationOptions(BaseModel):
    """When and how the model is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(0, ge=0, description="rounds between evaluations (0: about 50 in all)")
    auc: Literal["exact", "binned"] = Field(
        "exact", description="from the scores, or from per-site histograms as across a network"
    )
    best: str | None = Field(
        None,
        description="metric that picks the best model; by default validation/auc, "
        "validation/accuracy or train/objective, whichever the problem has",
    )
    guard: bool = Field(
        True, description="stop at the last good state when the run diverges or collapses"
    )
    sites: int = Field(
        64, ge=0, description="write every site's own metrics when there are at most this many"
    )


class RunOptions(BaseModel):
    """How long, from which seed, how often saved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(100, ge=1, description="communication rounds")
    seed: int = Field(0, ge=0, description="every random choice follows from it")
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")
