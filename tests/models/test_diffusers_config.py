"""from_config of diffusers: what it refuses, and what it needs."""

import subprocess
import sys

import pytest

from rope_xp import RopeError
from rope_xp.integrations.diffusers import from_config

WAN, FLUX = "WanTransformer3DModel", "FluxTransformer2DModel"


@pytest.mark.parametrize(
    ("name", "fields", "grid", "message"),
    [
        (None, {}, {}, "_class_name is missing"),
        ("UNet2DModel", {}, {}, "is unknown or does not rotate"),
        ("MochiTransformer3DModel", {}, {}, "no RoPE: its frequencies are learned"),
        (FLUX, {"axes_dims_rope": [3, 5]}, {}, f"config of {FLUX}: .* must be even"),
        (FLUX, {"axes_dims_rope": 3}, {}, f"config of {FLUX}: .*not iterable"),
        ("Flux2Transformer2DModel", {"rope_theta": -1}, {}, "must be positive"),
        (WAN, {}, {"text": 1}, "does not rotate its text"),
        (WAN, {}, {"height": 0}, "height must be positive"),
        (WAN, {}, {"text": -1}, "text must not be negative; got -1"),
        (WAN, {}, {"device": "cpu"}, "needs xp"),
        ("CogVideoXTransformer3DModel", {}, {"height": 0}, "height must be positive"),
        ("AceStepTransformer1DModel", {}, {}, "one axis, width"),
        ("GlmImageTransformer2DModel", {}, {"frames": 2}, "only rows and columns"),
    ],
)
def test_from_config_refuses_wrong_configurations_and_its_positions_wrong_grids(
    name, fields, grid, message
):
    with pytest.raises(RopeError, match=message):
        from_config({"_class_name": name, **fields}).positions(**{"height": 2, "width": 2, **grid})


def test_from_config_leaves_out_axes_without_pairs():
    rope = from_config({"_class_name": "BriaTransformer2DModel", "axes_dims_rope": [0, 4, 8]}).rope
    assert rope.position_axes == (1, 1, 2, 2, 2, 2)


def test_from_config_and_pickle_import_no_torch():
    program = (
        "import pickle\n"
        "from rope_xp.integrations.diffusers import from_config\n"
        "config = from_config({'_class_name': 'WanTransformer3DModel'})\n"
        "rope, positions = pickle.loads(pickle.dumps(config))\n"
        "import sys; assert not {'torch', 'diffusers', 'jax'} & set(sys.modules)\n"
        "print(rope.rotary_dim, positions(2, 3, frames=4).shape)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "128 (3, 24)\n"
