"""Eager calls on jax's arrays that are cached: the same bits, and no arrays held."""

import gc
import weakref

import numpy as np
import pytest
from support.bits import same, sample
from support.slow_path import run_twice

from rope_xp import RoPE
from rope_xp._dispatch import call_cache

jax = pytest.importorskip("jax")
jnp = jax.numpy

CALLS = call_cache.CALLS
HALF = RoPE(layout="half")
PARTS = RoPE(layout="half", position_axes=(0, 1, 1, 0))
POSITIONS = {
    "counted": None,
    "list": [5, 1_000_000],
    "one list of fractions": [0.5, 7.25],
    "numpy": np.array([[1, 2], [3, -4]]),
    "jax": jnp.asarray([5, 70_000]),
}


def check(first, second):
    for x, y in zip(first, second, strict=True):
        same(np.asarray(x), np.asarray(y))


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_calls_have_the_bits_of_the_slow_path(positions, dtype, rng, monkeypatch):
    q, k = (jnp.asarray(sample(rng, 2, 2, n, 8), dtype) for n in (4, 2))
    at = POSITIONS[positions]
    for call in (
        lambda: HALF.apply(q, k, at),
        lambda: (HALF.rotate(q, at), HALF.unrotate(k, at)),
        lambda: HALF.apply(q, k, at, axes="sbhd") if positions != "numpy" else (),
    ):
        check(*run_twice(call, monkeypatch))


def test_cached_components_and_angles_have_the_bits_of_the_slow_path(rng, monkeypatch):
    q, k = (jnp.asarray(sample(rng, 1, 3, n, 8)) for n in (4, 2))
    images = jnp.asarray([[1, 2, 3], [4, 5, 6]])
    angles = HALF.at(images[0], like=q)
    for call in (
        lambda: PARTS.apply(q, k, images),
        lambda: PARTS.apply(q, k, images.tolist()),
        lambda: angles.apply(q, k),
        lambda: (angles.unrotate(q),),
    ):
        check(*run_twice(call, monkeypatch))


def test_positions_beyond_those_of_a_cached_call_are_exact():
    """What is compiled for small ones reads fewer digits."""
    CALLS.cache_clear()
    x = jnp.ones((1, 2, 8))
    for _ in range(2):
        HALF.rotate(x, [5])
    for far in (5000, 5_000_000, -5, -5_000_000):
        expected = HALF.rotate(np.ones((1, 2, 8), np.float32), [far])
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(HALF.rotate(x, [far])), expected, atol=1e-6)


@pytest.mark.usefixtures("small_heap")
def test_cached_calls_hold_no_arrays():
    CALLS.cache_clear()
    q, k, at = jnp.ones((1, 3, 4, 8)), jnp.ones((1, 3, 2, 8)), jnp.asarray([1, 2, 3])
    made = [*HALF.apply(q, k, at), *HALF.at(at, like=q).apply(q, k)]
    assert len(CALLS) == 2
    held = [weakref.ref(x) for x in (q, k, at, *made)]
    del q, k, at, made
    gc.collect()
    assert [x() for x in held] == [None] * len(held)


def test_transforms_after_cached_calls_take_the_slow_path():
    CALLS.cache_clear()
    x = jnp.arange(48.0).reshape(3, 2, 8)
    expected = np.asarray(HALF.rotate(x))
    np.testing.assert_array_equal(HALF.rotate(x), expected)
    batched = jax.vmap(HALF.rotate)(x[None])
    np.testing.assert_allclose(batched[0], expected, atol=1e-6)
    traced = jax.jit(lambda y: HALF.rotate(x) + y)(jnp.zeros_like(x))  # x is a constant of it
    np.testing.assert_allclose(traced, expected, atol=1e-6)
    (grad,) = jax.vjp(HALF.rotate, x)[1](jnp.ones_like(x))
    np.testing.assert_allclose(grad, HALF.unrotate(jnp.ones_like(x)), atol=1e-6)
    np.testing.assert_array_equal(HALF.rotate(x), expected)
