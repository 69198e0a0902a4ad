"""The layer of equinox under its transformations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.layers import FRAMEWORKS, ROPES, assert_same, inputs

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")

from rope_xp.layers.equinox import Rotary  # noqa: E402  # needs equinox

ROPE = ROPES["yarn"]
Q, K, POSITIONS = inputs(FRAMEWORKS[2], ROPE)


class Block(eqx.Module):
    """A projection and a rotation, with a residual connection."""

    weight: Any
    rotary: Rotary

    def __call__(self, x: Any, positions: Any) -> Any:
        y = x @ self.weight
        return x + self.rotary(y, y, positions)[0]


def by_hand(block: Block, x: Any, positions: Any) -> Any:
    return x + ROPE.rotate(x @ block.weight, positions)


def test_one_compilation_serves_equal_layers() -> None:
    traced = []

    @eqx.filter_jit
    def rotate(layer: Rotary, *arrays: Any) -> Any:
        traced.append(layer.rope)
        return layer(*arrays)

    for name in ("yarn", "yarn", "half"):
        rotated = rotate(Rotary(ROPES[name]), Q, K, POSITIONS)
        assert_same(rotated, jax.jit(ROPES[name].apply)(Q, K, POSITIONS))
    assert traced == [ROPES["yarn"], ROPES["half"]]


def test_vmap() -> None:
    rotated = eqx.filter_vmap(Rotary(ROPE))(Q, K, POSITIONS)
    # A batched program may fuse multiply-add otherwise: 2 ulp of numbers below 8.
    for ours, theirs in zip(rotated, ROPE.apply(Q, K, POSITIONS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.exhaustive  # test_vmap transforms the same layer
def test_scan_over_layers() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    make = eqx.filter_vmap(lambda key: Block(jax.random.normal(key, (16, 16)) / 4, Rotary(ROPE)))
    layers = make(keys)
    arrays, rest = eqx.partition(layers, eqx.is_array)

    @eqx.filter_jit
    def forward(x: Any) -> Any:
        def step(x: Any, leaves: Any) -> Any:
            return eqx.combine(leaves, rest)(x, POSITIONS), None

        return jax.lax.scan(step, x, arrays)[0]

    expected = Q
    for weight in layers.weight:
        expected = by_hand(Block(weight, Rotary(ROPE)), expected, POSITIONS)
    # Three layers in another program: some ulp of numbers below 64.
    np.testing.assert_allclose(forward(Q), expected, rtol=0, atol=2e-5)


def test_equal_layers_are_equal_trees() -> None:
    one, two = Rotary(ROPES["slice"], axes="bshd"), Rotary(ROPES["slice"], axes="bshd")
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.structure(one) != jax.tree.structure(Rotary(ROPE, axes="bshd"))
    assert "scaling=YaRN(factor=4.0" in repr(Rotary(ROPE))
