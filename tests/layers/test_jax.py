"""The layers of flax nnx and equinox under transformations of jax."""

import importlib

import pytest
from support.layers import EQUINOX, FLAX, ROPES, assert_same, inputs

jax = pytest.importorskip("jax")

ROPE = ROPES["yarn"]
Q, K, POSITIONS = inputs(FLAX, ROPE)
either = pytest.mark.parametrize("framework", [FLAX, EQUINOX], ids=lambda f: f.name)


@either
def test_equal_layers_share_a_compilation(framework):
    traced = []

    def rotate(layer, *arrays):
        traced.append(layer.rope)
        return layer(*arrays)

    layers = [framework.layer(ROPES[name]) for name in ("yarn", "yarn", "half")]
    module, jit = {"flax": ("flax.nnx", "jit"), "equinox": ("equinox", "filter_jit")}[
        framework.name
    ]
    compiled = getattr(importlib.import_module(module), jit)(rotate)
    results = [compiled(layer, Q, K, POSITIONS) for layer in layers]
    assert_same(results[0], jax.jit(ROPE.apply)(Q, K, POSITIONS))
    assert_same(results[1], results[0])
    assert traced == [ROPES["yarn"], ROPES["half"]]


@either
def test_equal_layers_have_equal_structures_and_merge_back(framework):
    def split(rope):
        layer = framework.layer(rope, axes="bshd")
        if framework is EQUINOX:
            return jax.tree.flatten(layer)[::-1]
        return importlib.import_module("flax.nnx").split(layer)

    structure, state = split(ROPE)
    assert structure == split(ROPE)[0] != split(ROPES["slice"])[0]
    merge = (
        jax.tree.unflatten if framework is EQUINOX else importlib.import_module("flax.nnx").merge
    )
    merged = merge(structure, state)
    assert (merged.rope, merged.axes) == (ROPE, "bshd")
    assert_same(merged(Q, K, POSITIONS), ROPE.apply(Q, K, POSITIONS))
    assert "scaling=YaRN(factor=4.0" in repr(merged)
