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
    module = importlib.import_module("flax.nnx" if framework is FLAX else "equinox")
    compiled = module.jit(rotate) if framework is FLAX else module.filter_jit(rotate)
    results = [compiled(layer, Q, K, POSITIONS) for layer in layers]
    assert_same(results[0], jax.jit(ROPE.apply)(Q, K, POSITIONS))
    assert_same(results[1], results[0])
    assert traced == [ROPES["yarn"], ROPES["half"]]


@either
def test_equal_layers_have_equal_structures_and_merge_back(framework):
    if framework is EQUINOX:
        split, merge = lambda layer: jax.tree.flatten(layer)[::-1], jax.tree.unflatten
    else:
        nnx = importlib.import_module("flax.nnx")
        split, merge = nnx.split, nnx.merge
    structure, state = split(framework.layer(ROPE, axes="bshd"))
    assert structure == split(framework.layer(ROPE, axes="bshd"))[0]
    assert structure != split(framework.layer(ROPES["slice"], axes="bshd"))[0]
    merged = merge(structure, state)
    assert (merged.rope, merged.axes) == (ROPE, "bshd")
    assert_same(merged(Q, K, POSITIONS), ROPE.apply(Q, K, POSITIONS))
    assert "scaling=YaRN(factor=4.0" in repr(merged)
