"""What a site is willing to answer: a TOML file of the site's own, read before every set-up."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsaddle.errors import UserError


class Refusal(UserError):
    """The site does not answer; the coordinator is told the reason in these words."""


class Policy(BaseModel):
    """The site's own rules. Without a file: every method and problem, networks by name.

    >>> Policy(methods=["codasca"]).check("auc", "fedavg", "mlp")
    Traceback (most recent call last):
    ...
    fedsaddle.flower.policy.Refusal: the site's policy does not allow method 'fedavg'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: list[str] | None = Field(None, description="methods that may be run (all)")
    problems: list[str] | None = Field(None, description="problems that may be solved (all)")
    models: list[str] | None = Field(
        None,
        description="networks; one by import path runs code of the coordinator's choice, "
        "so it must be listed (all that fedsaddle has by name)",
    )
    min_rows: int = Field(
        1, ge=1, description="with fewer rows in a split, no statistic of it is given"
    )
    max_categories: int = Field(
        50,
        ge=1,
        description="a column of more categories, or a label of more values, is not told: "
        "it may be an identifier",
    )

    def check(self, problem: str, method: str, model: str) -> None:
        """Refuse what is not allowed."""
        for what, name, allowed in (
            ("problem", problem, self.problems),
            ("method", method, self.methods),
            ("network", model, self.models),
        ):
            if allowed is not None and name not in allowed:
                raise Refusal(f"the site's policy does not allow {what} '{name}'")
        if ":" in model and self.models is None:
            raise Refusal(
                f"network '{model}' is code that the site's policy must list under models"
            )


def read_policy(path: Path | None) -> Policy:
    """The policy of a file; one that cannot be read allows nothing."""
    import tomllib

    if path is None:
        return Policy()
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Policy(**values)
    except (OSError, ValueError, ValidationError) as error:
        raise UserError(f"{path}: not a policy: {error}") from None
