"""Residual networks for CIFAR.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
"""

from torch import Tensor, nn
from torch.nn import functional

from fedsaddle.models.images import Images, image_shape, normalisation


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut without parameters (the paper's option A)."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = normalisation(norm, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = normalisation(norm, after)
        self.stride, self.added = stride, after - before

    def forward(self, h: Tensor) -> Tensor:
        shortcut = h
        if self.added:
            shortcut = h[:, :, :: self.stride, :: self.stride]
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.added))
        inner = functional.relu(self.first_norm(self.first(h)))
        return functional.relu(shortcut + self.second_norm(self.second(inner)))


class ResNet20(nn.Module):
    """ResNet-20 for CIFAR, batch or group norm: 270k parameters (He et al. 2016; LocalSCGDAM)."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int, norm: str = "batch") -> None:
        super().__init__()
        channels, *_ = image_shape("resnet-20", input_shape, 8)
        self.images = Images()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.stem_norm = normalisation(norm, 16)
        blocks, before = [], 16
        for after in (16, 32, 64):
            for k in range(3):
                stride = 2 if k == 0 and after != 16 else 1
                blocks.append(Block(before, after, stride, norm))
                before = after
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(64, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, rows: Tensor) -> Tensor:
        h = functional.relu(self.stem_norm(self.stem(self.images(rows))))
        pooled = self.body(h).mean(dim=(2, 3))
        logits: Tensor = self.head(pooled)
        return logits
