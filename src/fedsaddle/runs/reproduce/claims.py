"""What a paper says, in rules that a machine can check, and the verdicts.

A difference counts when its 95 % interval over the seeds, of which there have to be three, lies on
one side of zero. So a verdict is

    reproduced        every comparison that the claim makes comes out as it says;
    not reproduced    at least one comes out the other way;
    undecided         neither: the seeds do not tell, and the evidence says how far apart they are;
    out of reach      it was not tried, and the reason is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedsaddle.runs.compare import Summary
from fedsaddle.runs.compare.statistics import summarise
from fedsaddle.runs.reproduce.outcomes import Outcomes, When, number, said

Word = Literal["reproduced", "not reproduced", "undecided", "out of reach"]
WORDS: tuple[Word, ...] = ("reproduced", "not reproduced", "undecided", "out of reach")
Side = Literal[-1, 0, 1]
ENOUGH_SEEDS = 3
"""Of two seeds an interval says next to nothing, and may by chance have no width at all."""


@dataclass(frozen=True)
class Verdict:
    """The answer to one claim, and what it rests on."""

    word: Word
    ours: str
    """Our numbers, and why the verdict is what it is."""


class Rule(BaseModel):
    """A claim: a sentence, the paper's numbers where it prints any, and how it is checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(description="the claim in a sentence; {value} stands for that of [vary]")
    paper: str | dict[str, str] = Field(
        "", description="the paper's numbers, where it has any; with `each`, by value of [vary]"
    )
    each: bool = Field(False, description="made for every value of [vary]")
    metric: str = ""
    lower: bool = Field(False, description="small values of the metric are good")
    when: When = Field("end", description="the metric at the end of a run, or its best")
    out_of_reach: dict[str, str] = Field(
        default_factory=dict, description="by scale (or 'all'), why it cannot be checked there"
    )

    @property
    def labels(self) -> list[str]:
        """The participants that it speaks of."""
        raise NotImplementedError

    def at(
        self, label: Mapping[str, str], value: Any, symbol: str, values: Sequence[int | float]
    ) -> "Claim":
        """The claim for one value of [vary], about participants under their labels there."""
        update: dict[str, Any] = {"text": self.text.replace("{value}", str(value))}
        if isinstance(self.paper, dict):
            update["paper"] = self.paper.get(str(value), "")
        if value is not None:
            for field in ("better", "worse", "first", "second", "label"):
                given = getattr(self, field, None)
                if isinstance(given, str):
                    update[field] = label.get(given, given)
                elif given is not None:
                    update[field] = tuple(label.get(name, name) for name in given)
        if isinstance(self, Window):
            update |= {"symbol": symbol, "values": tuple(values)}
        made: Claim = self.model_copy(update=update)  # type: ignore[assignment]
        return made

    def check(self, outcomes: Outcomes) -> Verdict:
        raise NotImplementedError

    def judge(self, outcomes: Outcomes, scale: str) -> Verdict:
        """The verdict at a scale."""
        why = self.out_of_reach.get(scale) or self.out_of_reach.get("all")
        if why:
            return Verdict("out of reach", why)
        missing = [label for label in self.labels if label not in outcomes.rows]
        if missing:
            return Verdict("out of reach", f"not run at this scale: {', '.join(missing)}.")
        return self.check(outcomes)


class Beats(Rule):
    """Each of `better` has a better metric than each of `worse`."""

    rule: Literal["beats"]
    better: tuple[str, ...] = Field(min_length=1)
    worse: tuple[str, ...] = Field(min_length=1)

    @property
    def labels(self) -> list[str]:
        return [*self.better, *self.worse]

    def check(self, outcomes: Outcomes) -> Verdict:
        leads: dict[tuple[str, str], Summary] = {}
        sides: list[Side] = []
        for winner in self.better:
            for loser in self.worse:
                lead, side = self._lead(outcomes, winner, loser)
                leads[winner, loser] = lead
                sides.append(side)
        known = {pair: lead.mean for pair, lead in leads.items() if lead.mean is not None}
        evidence = [self._means(outcomes)]
        if known:
            pair = min(known, key=lambda pair: known[pair])
            which = "lead" if len(leads) == 1 else "smallest lead"
            evidence.append(f"{which}: {pair[0]} over {pair[1]} by {said(leads[pair])}")
        evidence += _divergence(outcomes, self.labels)
        return Verdict(_together(sides), "; ".join(part for part in evidence if part) + ".")

    def _lead(self, outcomes: Outcomes, winner: str, loser: str) -> tuple[Summary, Side]:
        """How far the winner is ahead, seed by seed; a diverged run loses to any other."""
        if outcomes.stopped.get(winner):
            return summarise([]), -1
        first = outcomes.values(winner, self.metric, self.when, self.lower)
        second = outcomes.values(loser, self.metric, self.when, self.lower)
        sign = -1 if self.lower else 1
        leads = [sign * (first[seed] - second[seed]) for seed in first if seed in second]
        lead = summarise(leads)
        if not leads:
            return lead, 1 if outcomes.stopped.get(loser) and first else 0
        return lead, _side(lead)

    def _means(self, outcomes: Outcomes) -> str:
        shown = [self.better[0]] if len(self.better) == 1 else list(self.better)
        shown += self.worse if len(self.worse) <= 2 else []
        return _means(outcomes, shown, self)


class Close(Rule):
    """Two participants differ by at most `within`."""

    rule: Literal["close"]
    first: str
    second: str
    within: float = Field(gt=0, description="the difference that still counts as none; ours")

    @property
    def labels(self) -> list[str]:
        return [self.first, self.second]

    def check(self, outcomes: Outcomes) -> Verdict:
        one, two = (
            outcomes.values(name, self.metric, self.when, self.lower) for name in self.labels
        )
        gaps = [one[seed] - two[seed] for seed in one if seed in two]
        told = _divergence(outcomes, self.labels)
        if not gaps:
            return Verdict("undecided", "; ".join(told) + ".")
        gap = summarise(gaps)
        word: Word = "undecided"
        if gap.low is not None and gap.high is not None and gap.n >= ENOUGH_SEEDS:
            if -self.within <= gap.low and gap.high <= self.within:
                word = "reproduced"
            elif gap.high < -self.within or gap.low > self.within:
                word = "not reproduced"
        evidence = (
            f"{_means(outcomes, self.labels, self)}; difference {said(gap)}, "
            f"at most {number(self.within)} counts as none"
        )
        return Verdict(word, "; ".join([evidence, *told]) + ".")


class AtLeast(Rule):
    """Every seed's run ends with the metric at `value` or better."""

    rule: Literal["at-least"]
    label: str
    value: float

    @property
    def labels(self) -> list[str]:
        return [self.label]

    def check(self, outcomes: Outcomes) -> Verdict:
        found = outcomes.values(self.label, self.metric, self.when, self.lower)
        runs = len(outcomes.rows[self.label])
        good = [v for v in found.values() if (v <= self.value if self.lower else v >= self.value)]
        ends = ", ".join(number(v) for v in found.values())
        evidence = f"{len(good)} of {runs} seeds; they end at {ends or 'nothing'}"
        told = _divergence(outcomes, self.labels)
        word: Word = "reproduced" if len(good) == runs else "not reproduced"
        return Verdict(word, "; ".join([evidence, *told]) + ".")


class Near(Rule):
    """The mean is within `within` of the paper's `value`."""

    rule: Literal["near"]
    label: str
    value: float
    within: float = Field(gt=0, description="ours, where the paper gives no spread")

    @property
    def labels(self) -> list[str]:
        return [self.label]

    def check(self, outcomes: Outcomes) -> Verdict:
        ours = outcomes.summary(self.label, self.metric, self.when, self.lower)
        told = _divergence(outcomes, self.labels)
        if ours.mean is None:
            return Verdict("not reproduced", "; ".join(told) + ".")
        near = abs(ours.mean - self.value) <= self.within
        word: Word = "reproduced" if near else "not reproduced"
        evidence = (
            f"{self.label} {said(ours)}; {number(self.within)} about the paper's counts as the same"
        )
        return Verdict(word, "; ".join([evidence, *told]) + ".")


class Sooner(Rule):
    """Each of `better` needs fewer rounds than each of `worse` to where that one ends."""

    rule: Literal["sooner"]
    better: tuple[str, ...] = Field(min_length=1)
    worse: tuple[str, ...] = Field(min_length=1)

    @property
    def labels(self) -> list[str]:
        return [*self.better, *self.worse]

    def check(self, outcomes: Outcomes) -> Verdict:
        sides: list[Side] = []
        evidence = []
        for winner in self.better:
            for slow in self.worse:
                side, told = self._race(outcomes, winner, slow)
                sides.append(side)
                evidence.append(told)
        evidence += _divergence(outcomes, self.labels)
        return Verdict(_together(sides), "; ".join(evidence) + ".")

    def _race(self, outcomes: Outcomes, winner: str, slow: str) -> tuple[Side, str]:
        levels = outcomes.values(slow, self.metric, "end", self.lower)
        saved, pairs, never = [], [], 0
        for seed, level in levels.items():
            fast = self._first(outcomes, winner, seed, level)
            other = self._first(outcomes, slow, seed, level)
            assert other is not None  # it ends there
            if fast is None:
                never += 1
            else:
                saved.append(other - fast)
                pairs.append((fast, other))
        if not levels:
            return 0, f"{slow} has no end"
        at = _mean(levels.values())
        if never:
            return -1, f"{winner} does not get to {slow}'s {at} in {never} of {len(levels)} seeds"
        fast_mean, slow_mean = (sum(pair[k] for pair in pairs) / len(pairs) for k in (0, 1))
        lead = summarise(saved)
        between = "" if lead.low is None else f" ({lead.low:.0f} to {lead.high:.0f})"
        told = (
            f"to {slow}'s {at}: {winner} {fast_mean:.0f} rounds, {slow} {slow_mean:.0f}, "
            f"saved {lead.mean:.0f}{between}"
        )
        return _side(lead), told

    def _first(self, outcomes: Outcomes, label: str, seed: int, level: float) -> float | None:
        """The round in which a run gets there; an untrained model does not count."""
        for at, value in outcomes.curve(label, seed, self.metric):
            if at and (value <= level if self.lower else value >= level):
                return at
        return None


class Window(Rule):
    """`better` keeps its metric up to a value of [vary] that is `factor` times that of `worse`.

    Kept means: within `loss` of its own at the smallest value, there and at all values before.
    """

    rule: Literal["window"]
    better: str
    worse: str
    values: tuple[int | float, ...] = Field((), description="those of [vary], filled in")
    symbol: str = Field("", description="that of [vary], filled in")
    loss: float = Field(gt=0, description="what counts as no loss; ours")
    factor: float = Field(gt=1)

    @property
    def labels(self) -> list[str]:
        return [self._label(name, v) for name in (self.better, self.worse) for v in self.values]

    def _label(self, participant: str, value: float) -> str:
        return f"{participant}, {self.symbol} = {value}"

    def check(self, outcomes: Outcomes) -> Verdict:
        metric = {
            name: [outcomes.values(self._label(name, v), self.metric) for v in self.values]
            for name in (self.better, self.worse)
        }
        seeds = sorted(outcomes.rows[self._label(self.better, self.values[0])])
        largest = {
            name: [self._kept(found, seed) for seed in seeds] for name, found in metric.items()
        }
        won = [
            wide is not None and (narrow is None or wide >= self.factor * narrow)
            for wide, narrow in zip(largest[self.better], largest[self.worse], strict=True)
        ]
        word: Word = "reproduced" if all(won) else "undecided" if any(won) else "not reproduced"
        evidence = []
        for name, found in metric.items():
            means = ", ".join(_mean(by_seed.values()) for by_seed in found)
            up_to = ", ".join("none" if v is None else str(v) for v in largest[name])
            evidence.append(f"{name}: {means}; largest without loss, by seed: {up_to}")
        at = ", ".join(str(v) for v in self.values)
        return Verdict(word, f"at {self.symbol} = {at}: " + ". ".join(evidence) + ".")

    def _kept(self, found: Sequence[Mapping[int, float]], seed: int) -> float | None:
        """The largest value up to which a seed's metric is kept; None if its first run diverged."""
        sign = -1 if self.lower else 1
        kept = None
        for value, by_seed in zip(self.values, found, strict=True):
            if seed not in by_seed or seed not in found[0]:
                break
            if sign * (by_seed[seed] - found[0][seed]) < -self.loss:
                break
            kept = value
        return kept


class Unchecked(Rule):
    """A claim that nothing here can check; `out_of_reach` says why."""

    rule: Literal["unchecked"]

    @property
    def labels(self) -> list[str]:
        return []

    def check(self, outcomes: Outcomes) -> Verdict:
        return Verdict("out of reach", "nothing here checks it.")


Claim = Annotated[
    Beats | Close | AtLeast | Near | Sooner | Window | Unchecked, Field(discriminator="rule")
]


def _side(lead: Summary) -> Side:
    """On which side of zero an interval lies; 0 when it holds zero, or of too few seeds."""
    if lead.low is None or lead.high is None or lead.n < ENOUGH_SEEDS:
        return 0
    return 1 if lead.low > 0 else -1 if lead.high < 0 else 0


def _together(sides: Iterable[Side]) -> Word:
    found = set(sides)
    return "not reproduced" if -1 in found else "reproduced" if found == {1} else "undecided"


def _mean(values: Iterable[float]) -> str:
    mean = summarise(list(values)).mean
    return "diverged" if mean is None else number(mean)


def _means(outcomes: Outcomes, labels: Iterable[str], rule: Rule) -> str:
    found = ((n, outcomes.summary(n, rule.metric, rule.when, rule.lower)) for n in labels)
    return ", ".join(f"{name} {said(over)}" for name, over in found if over.mean is not None)


def _divergence(outcomes: Outcomes, labels: Iterable[str]) -> list[str]:
    return [
        f"{label} diverged in {len(stopped)} of {len(outcomes.rows[label])} seeds"
        for label in dict.fromkeys(labels)
        if (stopped := outcomes.stopped.get(label))
    ]
