"""A comparison as it is asked for: the configuration's `[compare]` and `[sweep]` tables."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedsaddle.errors import UserError
from fedsaddle.runs.compare.entrants import Entrant, named_entrants, settle
from fedsaddle.runs.compare.execution import Watcher, compare
from fedsaddle.runs.compare.metrics import check_metric, outlook, usual_metric
from fedsaddle.runs.compare.processes import LOCK
from fedsaddle.runs.compare.results import write_results
from fedsaddle.runs.compare.sweep import Sweep, one_split, tune
from fedsaddle.runs.compare.tables import Findings
from fedsaddle.runs.config import Sections, validated, write_sections
from fedsaddle.runs.folder import disk_errors, write_text

REQUEST = "compare.toml"


class CompareOptions(BaseModel):
    """The `[compare]` section."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithms: list[str] = Field(
        default_factory=list, description="methods, each alone or as method:problem"
    )
    entrants: dict[str, dict[str, dict[str, Any]]] = Field(
        default_factory=dict, description="further entrants: by label, sections that differ"
    )
    seeds: list[int] = Field(
        [0, 1, 2, 3, 4], description="how many seeds, counted from 0, or which ones"
    )
    budget_mb: float | None = Field(
        None, gt=0, description="megabytes that a run may send (otherwise run.rounds)"
    )
    metric: str | None = Field(
        None, description="what is compared: by default test/auc, or else test/accuracy"
    )
    sweep: int = Field(0, ge=0, description="trials per method to find its settings (0: none)")
    sampler: Literal["tpe", "random", "grid"] = Field(
        "tpe", description="how the trials are chosen"
    )

    @field_validator("algorithms", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        """As on the command line: `a,b,c`."""
        if not isinstance(given, str):
            return given
        return [name.strip() for name in given.split(",") if name.strip()]

    @field_validator("seeds", mode="before")
    @classmethod
    def _every_seed(cls, given: Any) -> Any:
        """Also as on the command line: `5` is how many, `0,3,7` are which, and so is `3,`."""
        wrong = ValueError(f"how many seeds (5), or which ones (0,3,7), is wanted, not {given!r}")
        try:
            if isinstance(given, str):
                parts = [int(part) for part in given.split(",") if part.strip()]
                given = parts if "," in given else parts[0]
        except (ValueError, IndexError):
            raise wrong from None
        seeds = list(range(given)) if isinstance(given, int) else given
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise wrong
        return seeds


def carry_out(
    sections: Sections,
    out: Path,
    *,
    resume: bool = False,
    jobs: int = 0,
    observer: Watcher | None = None,
) -> Findings:
    """Sweep where asked for, run every entrant with every seed, and write the results."""
    base = dict(sections)
    table = base.pop("sweep", {})
    options: CompareOptions = validated(CompareOptions, base.pop("compare", {}), "compare")
    entrants = named_entrants(base, options.algorithms)
    entrants += [Entrant(label, given) for label, given in options.entrants.items()]
    if not entrants:
        raise UserError("--algorithms: say which methods to compare, as in codasca,fedavg:risk.")
    seeds = options.seeds
    if options.sweep:
        base = one_split(base, seeds[0])
    seen = outlook(settle(base, entrants, seeds[0]))
    metric = options.metric or usual_metric(seen)
    higher = check_metric(metric, seen)
    with _begun(sections, out, resume):
        if options.sweep:
            entrants = tune(
                base,
                entrants,
                seeds[0],
                out,
                Sweep(options.sweep, options.sampler, table),
                metric,
                jobs=jobs,
                budget_mb=options.budget_mb,
                observer=observer,
            )
        done = compare(
            base, entrants, seeds, out, jobs=jobs, budget_mb=options.budget_mb, observer=observer
        )
        return write_results(done, metric, higher)


@contextmanager
def _begun(sections: Sections, out: Path, resume: bool) -> Iterator[None]:
    """The request written down while it is carried out; a folder that is in use is refused."""
    request = out / REQUEST
    if not resume and request.is_file():
        raise UserError(
            f"{out}: a comparison is here already; continue it with --resume, "
            "or choose another folder."
        )
    if not request.is_file() and out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: the folder has other files in it; choose another.")
    with disk_errors(str(out)):
        if not request.is_file():
            write_text(request, write_sections(sections))
        try:
            yield
        except UserError:
            if {path.name for path in out.iterdir()} <= {REQUEST, LOCK}:  # before anything ran
                shutil.rmtree(out)
            raise
        write_text(request, write_sections(sections))
