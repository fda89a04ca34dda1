"""Networks of MONAI, the medical imaging library (extra `medical`)."""

import importlib
from collections import OrderedDict

from torch import nn

from fedsaddle.errors import UserError
from fedsaddle.models.images import Images, image_shape


def densenet_121(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """DenseNet-121 through MONAI: 7.0M parameters (Huang et al. 2017; CODASCA, LocalSCGDAM)."""
    channels, *_ = image_shape("densenet-121", input_shape, 32)
    try:
        nets = importlib.import_module("monai.networks.nets")
    except ImportError as error:
        raise UserError(
            "model.name: 'densenet-121' comes from MONAI, which cannot be imported "
            f"({error}); install it with: pip install 'fedsaddle[medical]'"
        ) from None
    network = nets.DenseNet121(spatial_dims=2, in_channels=channels, out_channels=outputs)
    return nn.Sequential(OrderedDict(images=Images(), network=network))
