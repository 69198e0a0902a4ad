"""jax: Angles are a tree, so that transformations take and return them."""

import subprocess
import sys

import numpy as np
import pytest

from rope_xp import Angles, RoPE
from rope_xp.scaling import YaRN

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

ROPE = RoPE(layout="half")
POSITIONS = jnp.array([0, 70_000, 1_000_000, -3])
# Two compilations of the same operations may fuse differently: 2 ulp at |x| up to 4, each layer.
ATOL = 1e-6


def sample(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def close(a: jax.Array, b: jax.Array, atol: float = ATOL) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def test_its_leaves_are_cos_and_sin() -> None:
    angles = ROPE.at(POSITIONS, like=sample(4, 2, 8))
    leaves, tree = jax.tree.flatten(angles)
    assert [x.shape for x in leaves] == [(4, 4), (4, 4)]
    assert tree != jax.tree.structure(RoPE().at(POSITIONS, like=sample(4, 2, 8)))
    back = jax.tree.map(jnp.negative, angles)
    assert isinstance(back, Angles)
    assert back.rope == ROPE
    np.testing.assert_array_equal(back.sin, -angles.sin)
    other = RoPE(scaling=YaRN(4.0, 4096)).at(POSITIONS, like=sample(4, 2, 8))
    assert len(jax.tree.leaves(other)) == 4  # with those that undo its factor


def test_scan_over_layers() -> None:
    q, k = sample(2, 4, 4, 8), sample(2, 4, 2, 8)

    @jax.jit
    def layers(q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        angles = ROPE.at(POSITIONS, like=q)

        def layer(carry: tuple[jax.Array, jax.Array, Angles], _: None) -> tuple[object, None]:
            q, k, angles = carry
            return (*angles.apply(q, k), angles), None

        return jax.lax.scan(layer, (q, k, angles), None, length=3)[0][:2]

    expected = q, k
    for _ in range(3):
        expected = ROPE.apply(*expected, POSITIONS)
    for got, e in zip(layers(q, k), expected, strict=True):
        close(got, e, 3 * ATOL)


def test_gradients() -> None:
    x = sample(4, 2, 8)
    angles = ROPE.at(POSITIONS, like=x)
    gradients = jax.jit(jax.grad(lambda a, x: (a.rotate(x) ** 2).sum() / 2, (0, 1)))
    by_angles, by_x = gradients(angles, x)
    close(by_x, x)  # a rotation keeps the norm
    assert isinstance(by_angles, Angles)
    x1, x2 = x[..., :4], x[..., 4:]
    close(by_angles.cos, ((x1**2 + x2**2).sum(1)) * angles.cos, 20 * ATOL)


def test_vmap() -> None:
    x, positions = sample(3, 4, 2, 8), POSITIONS + jnp.arange(3)[:, None]
    angles = jax.vmap(lambda p, x: ROPE.at(p, like=x))(positions, x)
    assert angles.cos.shape == (3, 4, 4)
    got = jax.vmap(lambda a, x: a.rotate(x))(angles, x)
    close(got, ROPE.rotate(x, positions))


@pytest.mark.exhaustive
def test_the_tree_is_known_when_the_first_angles_are_made() -> None:
    code = """import jax, jax.numpy as jnp, rope_xp
x = jnp.ones((1, 4))
assert len(jax.tree.leaves(rope_xp.RoPE().with_tables(x[:, :2], x[:, :2]))) == 2"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
