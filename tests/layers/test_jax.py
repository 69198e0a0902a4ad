"""The layers of flax nnx and equinox under transformations of jax."""

import pkgutil

import pytest
from support.layers import ROPES, assert_same, inputs, make_layer

jax = pytest.importorskip("jax")


@pytest.mark.parametrize(
    ("framework", "jit"), [("flax", "flax.nnx:jit"), ("equinox", "equinox:filter_jit")]
)
def test_equal_layers_share_a_compilation(framework, jit):
    pytest.importorskip(framework)
    arrays, traced = inputs(framework, ROPES["yarn"]), []

    def rotate(layer, *arrays):
        traced.append((layer.rope, layer.axes))
        return layer(*arrays)

    compiled, names = pkgutil.resolve_name(jit)(rotate), ("yarn", "yarn", "half")
    layers = [make_layer(framework, ROPES[name], axes="bshd") for name in names]
    first, again, _ = [compiled(layer, *arrays) for layer in layers]
    assert_same(first, jax.jit(ROPES["yarn"].apply)(*arrays))
    assert_same(again, first)
    assert traced == [(ROPES["yarn"], "bshd"), (ROPES["half"], "bshd")]
    assert "scaling=YaRN(factor=4.0" in repr(layers[0])
