"""Properties of the layers of every framework."""

import copy
import doctest
import importlib
import pickle
import pkgutil

import numpy as np
import pytest
from support.cases import slow
from support.layers import ARRAYS, ROPES, assert_same, every_framework, inputs, make_layer, put

import rope_xp
from rope_xp import Angles, QKNorm, RopeError


# A layer hands its RoPE on: many are tested once, and each framework once. jax compiles each anew.
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *(("torch", "longrope"), ("flax", "half"), ("equinox", "slice"), ("keras", "yarn")),
        *(slow("torch", "mscale"), slow("flax", "sections"), slow("equinox", "axial")),
    ],
)
def test_layer_rotates_as_its_rope_does(framework, name):
    rope = ROPES[name]
    q, k, positions = inputs(framework, rope)
    layer = make_layer(framework, rope, axes="bshd")
    expected = rope.apply(q, k, positions)
    assert_same(layer(q, k, positions), expected)
    assert_same(layer(q, k), rope.apply(q, k))
    norm = QKNorm(eps=1e-3)
    assert_same(layer(q, k, norm=norm), rope.apply(q, k, norm=norm))
    by_heads = {"positions": positions[..., :4], "k_positions": positions[..., 1:3]}
    rotated = make_layer(framework, rope, axes="bhsd")(q, k, **by_heads)
    assert_same(rotated, rope.apply(q, k, axes="bhsd", **by_heads))
    angles = layer.at(positions, like=q)
    assert isinstance(angles, Angles)
    assert angles.rope == rope
    assert_same(angles.apply(q, k), rope.at(positions, like=q).apply(q, k))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (copied.rope, copied.axes) == (rope, "bshd")
        assert_same(copied(q, k, positions), expected)


@every_framework
def test_layer_writes_where_its_rope_does(framework):
    rope = ROPES["half"]
    q, k, positions = inputs(framework, rope)
    layer, expected = make_layer(framework, rope), rope.apply(q, k, positions)
    slots = np.arange(2 * 5)[::-1].reshape(2, 5) * 3
    cache = put(framework, np.zeros((32, 2, 16), np.float32))
    rotated, filled = layer(q, k, positions, out=(None, cache), slots=put(framework, slots.copy()))
    assert_same([rotated, filled[slots.ravel()].reshape(k.shape)], expected)
    if ARRAYS[framework] == "jax":
        with pytest.raises(TypeError, match="jax arrays cannot be written to"):
            layer(q, k, positions, out=(q, k))
        return
    assert filled is cache
    results = layer(q, k, positions, out=(q, k))
    assert_same(results, expected)
    assert results[0] is q


STATES = {
    "torch": lambda layer: [*layer.parameters(), *layer.buffers(), *layer.state_dict()],
    "flax": lambda layer: pkgutil.resolve_name("jax.tree:leaves")(
        pkgutil.resolve_name("flax.nnx:state")(layer)
    ),
    "equinox": lambda layer: pkgutil.resolve_name("jax.tree:leaves")(layer),
    "keras": lambda layer: [*layer.weights, *layer.losses],
}
"""Returns the arrays of a layer that could be cast, trained or saved."""


@every_framework
def test_layer_holds_no_arrays(framework):
    layer = make_layer(framework, ROPES["yarn"])
    q, k, positions = inputs(framework, ROPES["yarn"])
    layer(q, k, positions)
    layer.at(positions, like=q)
    assert STATES[framework](layer) == []


@pytest.mark.parametrize(
    ("framework", "jit"), [("flax", "flax.nnx:jit"), ("equinox", "equinox:filter_jit")]
)
def test_equal_layers_of_jax_share_a_compilation(framework, jit):
    pytest.importorskip(framework)
    arrays, traced = inputs(framework, ROPES["yarn"]), []

    def rotate(layer, *arrays):
        traced.append((layer.rope, layer.axes))
        return layer(*arrays)

    compiled, names = pkgutil.resolve_name(jit)(rotate), ("yarn", "yarn", "half")
    layers = [make_layer(framework, ROPES[name], axes="bshd") for name in names]
    first, again, _ = [compiled(layer, *arrays) for layer in layers]
    assert_same(first, pkgutil.resolve_name("jax:jit")(ROPES["yarn"].apply)(*arrays))
    assert_same(again, first)
    assert traced == [(ROPES["yarn"], "bshd"), (ROPES["half"], "bshd")]
    assert "scaling=YaRN(factor=4.0" in repr(layers[0])


@every_framework
def test_layer_refuses_the_ropes_of_all_layer_types(framework):
    ropes = rope_xp.from_hf_config({"model_type": "gemma3_text"})
    with pytest.raises(RopeError, match=r"rope is a dict of 'full_attention', 'sliding_.*rope\["):
        make_layer(framework, ropes)
    assert make_layer(framework, ropes["full_attention"]).rope.base == 1e6
    with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got"):
        make_layer(framework, 10000.0)


@every_framework
def test_examples_of_layers_run(framework):
    pytest.importorskip(framework)
    module = importlib.import_module(f"rope_xp.layers.{framework}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 4
    assert results.failed == 0
