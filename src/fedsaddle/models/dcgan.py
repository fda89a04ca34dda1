"""A generator and a discriminator in one network.

Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative
Adversarial Networks", ICLR 2016, with two strided convolutions each, which fits 28x28 pictures.
"""

from torch import Tensor, nn

from fedsaddle.errors import UserError
from fedsaddle.models.images import Images, image_shape, normalisation


class DCGAN(nn.Module):
    """DCGAN for 28x28 pictures: generator and discriminator (Radford et al. 2016; CDMA's GANs).

    `generator` makes pictures in [−1, 1] of the data's shape from `(n, latent)` noise;
    `discriminator` gives `(n, 1)` logits of being real, and is what calling the network calls.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        latent: int = 100,
        width: int = 64,
        norm: str = "batch",
    ) -> None:
        super().__init__()
        channels, height, breadth = image_shape("dcgan", input_shape, 8)
        if height % 4 or breadth % 4:
            raise UserError(
                "model.name: 'dcgan' takes pictures whose sides are multiples of 4; "
                f"the rows of this data have shape {tuple(input_shape)}."
            )
        self.latent = latent
        small = (2 * width, height // 4, breadth // 4)
        n_small = small[0] * small[1] * small[2]
        self.generator = nn.Sequential(
            nn.Linear(latent, n_small),
            nn.Unflatten(1, small),
            normalisation(norm, 2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            normalisation(norm, width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
            nn.Tanh(),
            *([nn.Flatten(1, 2)] if len(input_shape) == 2 else []),  # no channel axis, as the data
        )
        self.discriminator = nn.Sequential(
            Images(),
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            normalisation(norm, 2 * width),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(n_small, 1),
        )
        for module in self.modules():  # the paper's section 4
            if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0, 0.02)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.discriminator(rows)
        return logits
