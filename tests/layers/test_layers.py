"""Properties of the layers of every framework."""

import copy
import doctest
import importlib
import pickle

import numpy as np
import pytest
from support.cases import slow
from support.layers import (
    EQUINOX,
    FLAX,
    KERAS,
    ROPES,
    TORCH,
    assert_same,
    every_framework,
    inputs,
)

import rope_xp
from rope_xp import Angles, QKNorm, RopeError

# A layer hands its RoPE on: many are tested once, and each framework twice. jax compiles each anew.
DEALT = [
    *((TORCH, "plain"), (FLAX, "half"), (EQUINOX, "slice"), (KERAS, "yarn")),
    *((TORCH, "mscale"), (KERAS, "longrope")),
    *(slow(FLAX, "sections"), slow(EQUINOX, "axial")),
]


@pytest.mark.parametrize(("framework", "name"), DEALT, ids=lambda x: getattr(x, "name", x))
def test_layer_rotates_as_its_rope_does(framework, name):
    rope = ROPES[name]
    q, k, positions = inputs(framework, rope)
    layer = framework.layer(rope, axes="bshd")
    expected = rope.apply(q, k, positions)
    assert_same(layer(q, k, positions), expected)
    assert_same(layer(q, k), rope.apply(q, k))
    norm = QKNorm(eps=1e-3)
    assert_same(layer(q, k, norm=norm), rope.apply(q, k, norm=norm))
    by_heads = {"positions": positions[..., :4], "k_positions": positions[..., 1:3]}
    rotated = framework.layer(rope, axes="bhsd")(q, k, **by_heads)
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
    layer, expected = framework.layer(rope), rope.apply(q, k, positions)
    slots = np.arange(2 * 5)[::-1].reshape(2, 5) * 3
    cache = framework.array(np.zeros((32, 2, 16), np.float32))
    rotated, filled = layer(q, k, positions, out=(None, cache), slots=framework.array(slots.copy()))
    assert_same([rotated, filled[slots.ravel()].reshape(k.shape)], expected)
    if framework.arrays == "jax":
        with pytest.raises(TypeError, match="jax arrays cannot be written to"):
            layer(q, k, positions, out=(q, k))
        return
    assert filled is cache
    results = layer(q, k, positions, out=(q, k))
    assert_same(results, expected)
    assert results[0] is q


@every_framework
def test_layer_holds_no_arrays(framework):
    layer = framework.layer(ROPES["yarn"])
    q, k, positions = inputs(framework, ROPES["yarn"])
    layer(q, k, positions)
    layer.at(positions, like=q)
    assert framework.state(layer) == []


@every_framework
def test_layer_refuses_the_ropes_of_all_layer_types(framework):
    ropes = rope_xp.from_hf_config({"model_type": "gemma3_text"})
    with pytest.raises(RopeError, match=r"rope is a dict of 'full_attention', 'sliding_.*rope\["):
        framework.layer(ropes)
    assert framework.layer(ropes["full_attention"]).rope.base == 1e6
    for wrong in (None, 10000.0, "half"):
        with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got"):
            framework.layer(wrong)


@every_framework
def test_examples_of_layers_run(framework):
    pytest.importorskip(framework.name)
    module = importlib.import_module(f"rope_xp.layers.{framework.name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 4
    assert results.failed == 0
