"""Plain convolutional networks for small pictures, and what all picture networks share."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedsaddle.errors import UserError


class Images(nn.Module):
    """Rows as `(n, channels, height, width)`: grey pictures may come without a channel axis."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.unsqueeze(1) if rows.ndim == 3 else rows


def image_shape(name: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of the pictures, or a UserError that says what would be right.

    >>> image_shape("lenet-5", (28, 28), 16)
    (1, 28, 28)
    """
    if len(input_shape) in (2, 3) and min(input_shape[-2:]) >= smallest:
        channels, height, width = (1, *input_shape)[-3:]
        return channels, height, width
    raise UserError(
        f"model.name: '{name}' takes pictures, (height, width) or (channels, height, width), of at "
        f"least {smallest}x{smallest}; the rows of this data have shape {tuple(input_shape)}."
    )


def normalisation(kind: str, channels: int) -> nn.Module:
    """The layer that "batch", "group" (of 8 groups) or "none" stands for."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(8, channels)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"norm is 'batch', 'group' or 'none', not {kind!r}")


def _cnn(
    image: tuple[int, int, int],
    outputs: int,
    convolutions: Sequence[int],
    kernel: int,
    pools: int,
    hidden: Sequence[int],
) -> nn.Module:
    """Convolutions with ReLU, the first `pools` of them max-pooled by 2, then linear layers."""
    channels, *sides = image
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(pairwise([channels, *convolutions])):
        layers += [nn.Conv2d(before, after, kernel), nn.ReLU()]
        sides = [side - kernel + 1 for side in sides]
        if k < pools:
            layers.append(nn.MaxPool2d(2))
            sides = [side // 2 for side in sides]
    layers.append(nn.Flatten())
    widths = [convolutions[-1] * sides[0] * sides[1], *hidden]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    head = nn.Linear(widths[-1], outputs)
    parts = {"images": Images(), "body": nn.Sequential(*layers), "head": head}
    return nn.Sequential(OrderedDict(parts))


def lenet_5(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """LeNet-5 for 28x28 pictures: 44k parameters (LeCun et al. 1998; CDMA's AUC on MNIST).

    With ReLU and max-pooling, as is usual today.
    """
    image = image_shape("lenet-5", input_shape, 16)
    return _cnn(image, outputs, [6, 16], kernel=5, pools=2, hidden=[120, 84])


def cifar_cnn(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """CNN of TensorFlow's tutorial, for 32x32 pictures: 122k parameters (CDMA's AUC on CIFAR-10).

    The network that CDMA (appendix D) cites as "TensorFlow team 2021".
    """
    image = image_shape("cifar-cnn", input_shape, 18)
    return _cnn(image, outputs, [32, 64, 64], kernel=3, pools=2, hidden=[64])


def small_cnn(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two convolutions of 32 and 64 channels, 224k parameters at 28x28: for Fashion-MNIST.

    LocalSCGDAM (Zhang et al. 2023) describes its Fashion-MNIST classifier in an appendix that we do
    not have: the sizes are ours.
    """
    image = image_shape("small-cnn", input_shape, 10)
    return _cnn(image, outputs, [32, 64], kernel=3, pools=2, hidden=[128])
