"""The layer of flax nnx under its transformations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.layers import FRAMEWORKS, ROPES, assert_same, inputs

from rope_xp import RoPE

jax = pytest.importorskip("jax")
pytest.importorskip("flax")

from flax import nnx  # noqa: E402  # may be absent

from rope_xp.layers.flax import Rotary  # noqa: E402  # needs flax

ROPE = ROPES["yarn"]
Q, K, POSITIONS = inputs(FRAMEWORKS[1], ROPE)


class Block(nnx.Module):
    """A projection and a rotation, with a residual connection."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.project = nnx.Linear(16, 16, rngs=rngs)
        self.rotary = Rotary(ROPE)

    def __call__(self, x: Any, positions: Any) -> Any:
        y = self.project(x)
        return x + self.rotary(y, y, positions)[0]


def by_hand(block: Block, x: Any, positions: Any) -> Any:
    return x + ROPE.rotate(block.project(x), positions)


def test_one_compilation_serves_equal_layers() -> None:
    traced = []

    @nnx.jit
    def rotate(layer: Rotary, *arrays: Any) -> Any:
        traced.append(layer.rope)
        return layer(*arrays)

    expected = jax.jit(ROPE.apply)(Q, K, POSITIONS)
    for name in ("yarn", "yarn", "half"):
        rotated = rotate(Rotary(ROPES[name]), Q, K, POSITIONS)
        if name == "yarn":
            assert_same(rotated, expected)
    assert traced == [ROPES["yarn"], ROPES["half"]]
    assert_same(nnx.jit(Rotary(ROPE))(Q, K, POSITIONS), expected)


def test_grad() -> None:
    block = Block(nnx.Rngs(0))
    gradients = nnx.grad(lambda m: (m(Q, POSITIONS) ** 2).sum())(block)
    expected = nnx.grad(lambda m: (by_hand(m, Q, POSITIONS) ** 2).sum())(block)
    assert len(jax.tree.leaves(gradients)) == 2  # kernel and bias
    assert float(abs(expected["project"]["kernel"][...]).max()) > 1
    # Sums of 40 rows of products below 64.
    for ours, theirs in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.exhaustive  # test_grad and test_split_and_merge do what it does, one after the other
def test_scan_over_layers() -> None:
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def stacked(rngs: nnx.Rngs) -> Block:
        return Block(rngs)

    layers = stacked(nnx.Rngs(0))
    assert layers.rotary.rope == ROPE

    @nnx.jit
    def forward(layers: Block, x: Any) -> Any:
        return nnx.scan(lambda x, m: m(x, POSITIONS), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
            x, layers
        )

    graph, state = nnx.split(layers)
    expected = Q
    for i in range(3):
        one = nnx.merge(graph, jax.tree.map(lambda leaf, i=i: leaf[i], state))
        expected = by_hand(one, expected, POSITIONS)
    np.testing.assert_allclose(forward(layers, Q), expected, rtol=0, atol=2e-5)


def test_angles_are_carried_through_a_scan() -> None:
    angles = Rotary(ROPE).at(POSITIONS, like=Q)

    @nnx.jit
    def forward(angles: Any, q: Any, k: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (angles.apply(*carry), None), (q, k), None, length=2)[
            0
        ]

    expected = ROPE.apply(*ROPE.apply(Q, K, POSITIONS), POSITIONS)
    for ours, theirs in zip(forward(angles, Q, K), expected, strict=True):
        # Programs around a rotation may fuse multiply-add otherwise: 2 ulp of numbers below 8.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


def test_split_and_merge() -> None:
    graph, state = nnx.split(Rotary(ROPES["slice"], axes="bshd"))
    assert jax.tree.leaves(state) == []
    assert_same(nnx.merge(graph, state)(Q, K, POSITIONS), ROPES["slice"].apply(Q, K, POSITIONS))
    assert graph == nnx.split(Rotary(ROPES["slice"], axes="bshd"))[0]
    assert graph != nnx.split(Rotary(RoPE(), axes="bshd"))[0]
    assert "scaling=YaRN(factor=4.0" in repr(Rotary(ROPE))
