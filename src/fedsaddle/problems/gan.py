"""Generative adversarial training: x is the generator, y the discriminator.

Goodfellow et al., "Generative Adversarial Nets", NeurIPS 2014; federated as in CDMA (Xie et al.,
AAAI 2023, Appendix D.1), noise w uniform on [−1, 1]^100:

    min_x max_y mean_i mean_j log D_y(a_ij) + E_w log(1 − D_y(G_x(w)))

With D = σ(s), s the discriminator's output, this is `−softplus(−s(a)) − softplus(s(G(w)))`: finite
for any output. The noise is a part of the batch: a method that evaluates two points on one batch
(CDMA) sees the same sample at both.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedsaddle.errors import UserError
from fedsaddle.keyed import torch_generator
from fedsaddle.layout import Named
from fedsaddle.metrics.generative import Moments, Scorer, inception_score
from fedsaddle.problems.base import Batch, DataFacts, NetworkProblem, Total

PASS = 500
"""Rows generated at once for the metrics."""


class GAN(NetworkProblem):
    """A generator against a discriminator, the two parts of one network.

    The network has submodules `generator` (noise to rows) and `discriminator` (rows to one
    output each); their parameters are x and y. With `non_saturating` the generator descends on
    `−log D(G(w))` instead, as Goodfellow et al. advise; the loss's value stays the one above.

    Two metrics of its own, by a classifier trained on the same data (`metrics.generative`):
    `inception_score`, and `frechet_distance` to the held-out rows. Data without labels have no
    inception score, and their Fréchet distance is between the rows themselves.
    """

    name: ClassVar[str] = "gan"
    best_metric: ClassVar[str | None] = "validation/frechet_distance"
    wants_scorer: ClassVar[bool] = True

    noise: int | None = Field(
        None, ge=1, description="length of the noise w (left out: the network's `latent`, or 100)"
    )
    non_saturating: bool = Field(
        False, description="let the generator descend on −log D(G(w)): stronger early on"
    )
    generated: int = Field(2000, ge=2, description="how many rows are generated for the metrics")
    splits: int = Field(10, ge=1, description="parts over which the inception score is averaged")

    def prepare(self, facts: DataFacts) -> Self:
        for part in ("generator", "discriminator"):
            if not isinstance(getattr(self.model, part, None), nn.Module):
                raise UserError(
                    f"problem '{self.name}' needs a network with a `generator` and a "
                    f"`discriminator`, such as model.name = 'dcgan'; "
                    f"{type(self.model).__name__} has no `{part}`."
                )
        return self

    def start(self, generator: torch.Generator) -> tuple[Named, Named]:
        named, _ = super().start(generator)
        x = {name: value for name, value in named.items() if name.startswith("generator.")}
        y = {name: value for name, value in named.items() if name.startswith("discriminator.")}
        return x, y

    @property
    def noise_shape(self) -> tuple[int, ...] | None:
        return (self.noise or int(getattr(self.model, "latent", 100)),)

    @property
    def predicts(self) -> bool:
        return False

    def predict(self, x: Named, inputs: Tensor) -> Tensor | None:
        return None

    def _call(self, part: str, weights: Named, inputs: Tensor) -> Tensor:
        prefix = f"{part}."
        own: Any = {
            name.removeprefix(prefix): value
            for name, value in weights.items()
            if name.startswith(prefix)
        }
        outputs: Tensor = torch.func.functional_call(getattr(self.model, part), own, (inputs,))
        return outputs

    def generate(self, x: Named, noise: Tensor, training: bool = False) -> Tensor:
        """`G(w)`."""
        self.switch(training)
        return self._call("generator", x, noise)

    def loss(self, x: Named, y: Named, batch: Batch) -> Tensor:
        assert batch.noise is not None, "a batch for a GAN has noise"
        made = self.generate(x, batch.noise, training=True)
        both = x | y  # the discriminator's buffers are carried in x
        on_data = self._call("discriminator", both, batch.inputs)
        if not self.non_saturating:
            on_made = self._call("discriminator", both, made)
            return -functional.softplus(-on_data).mean() - functional.softplus(on_made).mean()
        on_made = self._call("discriminator", both, made.detach())
        loss = -functional.softplus(-on_data).mean() - functional.softplus(on_made).mean()
        fixed = {name: value.detach().clone() for name, value in both.items()}
        descent = functional.softplus(-self._call("discriminator", fixed, made)).mean()
        return loss + descent - descent.detach()  # the value is the saddle's

    def samples(self, x: Named, number: int) -> Tensor | None:
        """The same noise every time, so that rounds and runs can be compared."""
        return torch.cat(list(self._generated(x, number)))

    def _generated(self, x: Named, number: int) -> Iterator[Tensor]:
        like = next(value for name, value in x.items() if name.startswith("generator."))
        shape = (number, *(self.noise_shape or ()))
        uniform = torch.rand(shape, generator=torch_generator(0, "samples"))
        with torch.no_grad():
            for noise in torch.split((2 * uniform - 1).to(like.device, like.dtype), PASS):
                yield self.generate(x, noise)

    @property
    def extra(self) -> Mapping[str, bool]:
        return {"inception_score": True, "frechet_distance": False}

    def extra_metrics(
        self, x: Named, y: Named, total: Total, scorer: Scorer | None
    ) -> dict[str, float]:
        def features(rows: Tensor) -> Tensor:
            return rows.flatten(1) if scorer is None else scorer.features(rows)

        score, sums, parts = float("nan"), [], []
        for rows in self._generated(x, self.generated):
            sums.append(Moments.sums(features(rows)))
            if scorer is not None:
                parts.append(scorer.probabilities(rows).double().cpu())
        if parts:
            score, _ = inception_score(torch.cat(parts).numpy(), self.splits)
        made = Moments.of_sums(torch.stack(sums).sum(dim=0))
        held_out = Moments.of_sums(total(lambda batch: Moments.sums(features(batch.inputs))))
        return {"inception_score": score, "frechet_distance": made.distance(held_out)}
