"""mlx: derivatives, vmap, compile, refusals."""

import numpy as np
import pytest
from support.targets import truth

import rope_xp
from rope_xp import RoPE

mx = pytest.importorskip("mlx.core")

ROPE = RoPE(layout="half")
Q = np.random.default_rng(0).standard_normal((2, 7, 3, 16)).astype(np.float32)


def test_gradients_equal_the_inverse_rotation():
    weights = Q[::-1].copy()
    for positions in (mx.arange(7), mx.arange(7) + 0.25, None):
        turn = mx.grad(lambda x, p=positions: (ROPE.rotate(x, p) * mx.array(weights)).sum())
        expected = ROPE.unrotate(mx.array(weights), positions)
        np.testing.assert_array_equal(turn(mx.array(Q)), expected)


def test_gradients_of_float_positions_are_those_of_the_formula():
    at = np.array([0.25, 1.7, 2.1, 1000.5], np.float32)
    x, w = Q[0, :4].astype(np.float64), 1e4 ** (-np.arange(8) / 8)
    square = x[..., :8] ** 2 + x[..., 8:] ** 2

    def slope(p):  # of the product of x and x rotated by p
        return -(square * np.sin(p[:, None, None].astype(np.float64) * w) * w).sum((1, 2))

    keys, old = mx.array(Q[0, :4]), mx.array(at)
    for expected, function in (
        (slope(at), lambda p: (ROPE.rotate(keys, p) * keys).sum()),
        (slope(at - 3 * at), lambda p: (ROPE.rerotate(keys, 3 * old, p) * keys).sum()),
        (-(np.sin(at[:, None] * w) * w).sum(1), lambda p: ROPE.cos_sin(p, 16)[0].sum()),
    ):
        np.testing.assert_allclose(mx.grad(function)(old), expected, rtol=1e-4, atol=1e-4)


def test_vmapped_sequences_equal_a_batch():
    positions = np.arange(14).reshape(2, 7)
    got = mx.vmap(ROPE.rotate)(mx.array(Q), mx.array(positions))
    np.testing.assert_array_equal(got, truth(ROPE.rotate, Q, positions))


def test_angles_within_a_compiled_model_equal_plain_calls():
    def model(x: mx.array, positions: mx.array) -> mx.array:
        angles = ROPE.at(positions, like=x)
        return angles.rotate(angles.rotate(x))

    positions = np.arange(1_000_000, 1_000_007)
    got = mx.compile(model)(mx.array(Q), mx.array(positions))
    expected = truth(lambda x: ROPE.rotate(ROPE.rotate(x, positions), positions), Q)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_out_and_mixed_libraries_are_refused():
    x = mx.array(Q)
    with pytest.raises(TypeError, match="mlx arrays are values"):
        ROPE.rotate(x, out=x)
    with pytest.raises(TypeError, match="numpy"):
        ROPE.apply(x, Q)
    assert rope_xp.explain(x, x).path == "portable"
