"""mlx: derivatives, vmap, compile, refusals."""

import numpy as np
import pytest
from support.targets import truth

import rope_xp
from rope_xp import RoPE

mx = pytest.importorskip("mlx.core")

ROPE = RoPE(layout="half")


@pytest.fixture
def q(rng):
    return rng.standard_normal((2, 7, 3, 16)).astype(np.float32)


def test_gradients_equal_the_inverse_rotation(q):
    weights = q[::-1].copy()
    for positions in (mx.arange(7), mx.arange(7) + 0.25, None):
        turn = mx.grad(lambda x, p=positions: (ROPE.rotate(x, p) * mx.array(weights)).sum())
        expected = ROPE.unrotate(mx.array(weights), positions)
        np.testing.assert_array_equal(turn(mx.array(q)), expected)


def test_vmapped_sequences_equal_a_batch(q):
    positions = np.arange(14).reshape(2, 7)
    got = mx.vmap(ROPE.rotate)(mx.array(q), mx.array(positions))
    np.testing.assert_array_equal(got, truth(ROPE.rotate, q, positions))


def test_angles_within_a_compiled_model_equal_plain_calls(q):
    @mx.compile
    def model(x: mx.array, positions: mx.array) -> mx.array:
        angles = ROPE.at(positions, like=x)
        for _ in range(2):
            x = angles.rotate(x)
        return x

    positions = np.arange(1_000_000, 1_000_007)
    got = model(mx.array(q), mx.array(positions))
    expected = truth(lambda x: ROPE.rotate(ROPE.rotate(x, positions), positions), q)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_out_and_mixed_libraries_are_refused(q):
    x = mx.array(q)
    with pytest.raises(TypeError, match="mlx arrays are values"):
        ROPE.rotate(x, out=x)
    with pytest.raises(TypeError, match="numpy"):
        ROPE.apply(x, q)
    assert rope_xp.explain(x, x).path == "portable"
