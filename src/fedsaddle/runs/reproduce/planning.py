"""An experiment at one scale: every run's settings, and every claim about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsaddle.errors import UserError, nearest
from fedsaddle.runs.compare.entrants import Entrant, merged
from fedsaddle.runs.config import Config, Sections, resolve
from fedsaddle.runs.options import RunOptions
from fedsaddle.runs.reproduce.claims import Claim
from fedsaddle.runs.reproduce.experiment import (
    Experiment,
    Participant,
    Scale,
    ScaleName,
    Settings,
    Vary,
)


@dataclass(frozen=True)
class Plan:
    """An experiment at one scale: what `compare` is given, and what is asked of the outcome."""

    experiment: Experiment
    scale: ScaleName
    base: Sections
    entrants: tuple[Entrant, ...]
    claims: tuple[Claim, ...]

    @property
    def seeds(self) -> range:
        return range(self.experiment.scale[self.scale].seeds)

    @property
    def reduced(self) -> str:
        return self.experiment.scale[self.scale].reduced

    @property
    def values(self) -> tuple[int | float, ...]:
        """The values of [vary]; none without it."""
        vary = self.experiment.vary
        return () if vary is None else self.experiment.scale[self.scale].values or vary.values

    def label(self, participant: str, value: int | float | None) -> str:
        """A participant's label at one of the values."""
        return varied(participant, self.experiment.vary, value)

    def config(self, entrant: Entrant) -> Config:
        """An entrant's configuration, checked."""
        try:
            return resolve(merged(self.base, entrant.overrides))
        except UserError as error:
            where = f"experiment {self.experiment.name}, {self.scale}, {entrant.label}"
            raise UserError(f"{where}: {error}") from None


def plan(experiment: Experiment, scale: ScaleName) -> Plan:
    """The experiment at a scale, every configuration in it checked."""
    if scale not in experiment.scale:
        known = ", ".join(experiment.scale)
        raise UserError(f"experiment {experiment.name} has no scale '{scale}'; it has {known}.")
    chosen, vary = experiment.scale[scale], experiment.vary
    values = () if vary is None else chosen.values or vary.values
    shown = [p for p in experiment.entrants if not chosen.only or p.label in chosen.only]
    base = merged(experiment.base.sections, _without_algorithm(chosen.sections))
    entrants = []
    for participant in shown:
        for value in values or (None,):
            differences = _overrides(participant, chosen, vary, value)
            label = varied(participant.label, vary, value)
            entrants.append(Entrant(label, _measured(differences, base, chosen.evaluations)))
    made = Plan(experiment, scale, base, tuple(entrants), _claims(experiment, values))
    for entrant in entrants:
        made.config(entrant)
    return made


def _claims(experiment: Experiment, values: Sequence[int | float]) -> tuple[Claim, ...]:
    """The claims at the values of a scale, the labels in them checked."""
    vary, participants = experiment.vary, [p.label for p in experiment.entrants]
    symbol, all_values = (vary.symbol, vary.values) if vary else ("", ())
    at = (*all_values, *values) or (None,)
    known = {varied(name, vary, value) for name in participants for value in at}
    claims = []
    for claim in experiment.claims:
        for value in values if claim.each else (None,):
            labels = {name: varied(name, vary, value) for name in participants}
            made = claim.at(labels, value, symbol, values)
            for label in made.labels:
                if label not in known:
                    raise UserError(
                        f"experiment {experiment.name}: the claim '{claim.text}' names '{label}', "
                        f"which does not take part; {nearest(label, sorted(known))}"
                    )
            claims.append(made)
    return tuple(claims)


def varied(participant: str, vary: Vary | None, value: int | float | None) -> str:
    """The label of a participant at a value: "CODASCA, I = 32"."""
    return (
        participant if vary is None or value is None else f"{participant}, {vary.symbol} = {value}"
    )


def _overrides(
    participant: Participant, scale: Scale, vary: Vary | None, value: int | float | None
) -> Sections:
    """A participant's differences from the base, those of a value and of the scale included."""
    sections: Sections = {name: dict(given) for name, given in participant.sections.items()}
    if vary is not None and value is not None:
        section, _, key = vary.setting.partition(".")
        sections.setdefault(section, {})[key] = value
    for name, given in scale.sections.items():
        if name in sections:
            sections[name] |= given
    steps = sections.get("algorithm", {}).get("local_steps", 1)
    if scale.iterations is not None:
        sections.setdefault("run", {})["rounds"] = max(1, scale.iterations // steps)
    if scale.stage_iterations is not None:
        sections["algorithm"]["stage_rounds"] = max(1, scale.stage_iterations // steps)
    return sections


def _measured(sections: Sections, base: Sections, evaluations: int) -> Sections:
    """Overrides with the rounds between two evaluations."""
    rounds = merged(base, sections).get("run", {}).get("rounds", RunOptions().rounds)
    every = max(1, rounds // evaluations)
    return sections | {"evaluation": sections.get("evaluation", {}) | {"every": every}}


def _without_algorithm(sections: Mapping[str, Settings]) -> Sections:
    """A scale's own [algorithm] goes over the participants', never over the base's."""
    return {name: given for name, given in sections.items() if name != "algorithm"}
