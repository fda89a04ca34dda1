"""The `[federation]` section."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FederationOptions(BaseModel):
    """Selection, availability and the enough-responses rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients_per_round: int = Field(
        0, ge=0, description="clients selected in each phase (0: all that have training rows)"
    )
    enough: float = Field(
        1.0, gt=0, le=1, description="go on with the first this share of the selected clients"
    )
    quorum: float = Field(
        0.5, ge=0, le=1, description="below this share of good replies the phase is tried again"
    )
    retries: int = Field(3, ge=0, description="how often, before the run stops")
    availability: Literal["always", "uniform-response", "dropout", "cyclic", "latency", "trace"] = (
        Field(
            "always",
            description="who answers: all; ⌈p·selected⌉ with p uniform on [0.5, 1] (CDMA); "
            "each client but for its dropout probability; all, but selected among those whose time "
            "of day it is (cyclic); the fastest, on a simulated clock (latency); those who did in "
            "an earlier run (trace)",
        )
    )
    trace: Path | None = Field(
        None, description="trace: the ledger.jsonl of the run whose participation is replayed"
    )
    dropout: float | dict[str, float] = Field(
        0.1, description="probability of no answer: one number, or one per client name"
    )
    cycle_rounds: int = Field(24, ge=1, description="cyclic: rounds of a day")
    cycle_share: float = Field(
        0.5, gt=0, le=1, description="cyclic: the share of a day in which a client can be reached"
    )
    latency_seconds: float = Field(
        0.1, ge=0, description="latency: a median client's delay of request and reply together"
    )
    bandwidth: float = Field(
        1e6, gt=0, description="latency: a median client's bytes per second, either way"
    )
    seconds_per_phase: float = Field(
        1.0,
        ge=0,
        description="latency: a median client's work in a phase with local training "
        "(a tenth of it in one without)",
    )
    device_spread: float = Field(
        0.5, ge=0, le=5, description="latency: how unlike clients are (σ of log-normal factors)"
    )
    tail: float = Field(
        2.0,
        ge=0.5,
        description="latency: Pareto index of the work's jitter; smaller: more stragglers",
    )
    groups: dict[str, list[str]] = Field(
        default_factory=dict,
        description="clients by group name, for methods that weigh groups; else each is its own",
    )
    max_norm: float | None = Field(
        None, gt=0, description="a reply with a longer vector is refused"
    )
