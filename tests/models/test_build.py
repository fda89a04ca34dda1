import tomllib

import pytest
import torch
from torch import nn

from fedsaddle.errors import UserError
from fedsaddle.models import ModelOptions, build
from fedsaddle.runs.config import resolve, write_commented, write_sections


class Odd(nn.Module):
    def __init__(self, outputs: int, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(width, outputs)


def not_a_network(outputs):
    return outputs


def test_shapes_of_the_named_networks():
    rows = torch.zeros(5, 2, 3)
    assert build(ModelOptions(name="logistic"), (2, 3), 1)(rows).shape == (5, 1)
    mlp = build(ModelOptions(name="mlp", arguments={"hidden": [7, 4]}), (2, 3), 10)
    assert mlp(rows).shape == (5, 10)
    widths = [layer.out_features for layer in mlp if isinstance(layer, nn.Linear)]
    assert widths == [7, 4, 10]


def test_weights_follow_from_the_seed_alone():
    options = ModelOptions(name="mlp")
    torch.manual_seed(1)
    first = build(options, (4,), 1, seed=3).state_dict()
    before = torch.get_rng_state()
    second = build(options, (4,), 1, seed=3).state_dict()
    assert torch.equal(before, torch.get_rng_state()), "the caller's random state was moved"
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build(options, (4,), 1, seed=4).state_dict()
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_any_module_by_import_path():
    options = ModelOptions(name=f"{__name__}:Odd", arguments={"width": 6})
    assert build(options, (9,), 2).layer.weight.shape == (2, 6)


def test_the_import_key_goes_before_the_name():
    options = ModelOptions(**{"import": f"{__name__}:Odd"})
    assert build(options, (9,), 2).layer.weight.shape == (2, 3)
    assert options == ModelOptions(import_path=f"{__name__}:Odd")


def test_the_import_key_survives_a_configuration():
    config = resolve({"model": {"import": f"{__name__}:Odd", "init": "w.safetensors"}})
    assert config.model.factory == f"{__name__}:Odd"
    for text in (write_sections(config.sections()), write_commented(config)):
        written = tomllib.loads(text)
        assert written["model"]["import"] == f"{__name__}:Odd"
        assert "import_path" not in text
        assert resolve(written).model == config.model
    assert "\n# import =\n" in write_commented(resolve({}))
    with pytest.raises(UserError, match=r"model.imports: .* did you mean 'import'"):
        resolve({"model": {"imports": "a:b"}})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"import": "nowhere.at:all"}, "model.import: cannot import 'nowhere.at:all'"),
        ({"import": ":all"}, "model.import: cannot import ':all'"),
        ({"import": "mlp"}, "model.import: write it as 'package.module:Class', not 'mlp'"),
        ({"name": "logistc"}, "did you mean 'logistic'"),
        ({"name": "nowhere.at:all"}, "cannot import 'nowhere.at:all'"),
        ({"name": "math:missing"}, "cannot import 'math:missing'"),
        ({"name": "mlp", "arguments": {"hiden": [3]}}, "did you mean 'hidden'"),
        ({"name": "mlp", "arguments": {"hidden": ["x"]}}, "cannot be made"),
        ({"name": f"{__name__}:not_a_network"}, "no torch.nn.Module"),
    ],
)
def test_what_cannot_be_built_is_said(options, says):
    with pytest.raises(UserError, match=says):
        build(ModelOptions(**options), (4,), 1)
