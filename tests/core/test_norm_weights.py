"""Weights of a norm are read at each call, whatever their memory, and are held by nobody."""

import numpy as np
import pytest
from support.bits import same, sample
from support.kinds import KINDS
from support.programs import run
from support.targets import truth

from rope_xp import QKNorm, RoPE, RopeError, use_path

ROPE = RoPE(layout="half")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_any_memory_equal_plain_ones(kind, rng):
    q, weight = sample(rng, 1, 5, 3, 16), sample(rng, 16)
    expected, _ = ROPE.apply(q, q, norm=QKNorm(weight, weight))
    changed = KINDS[kind](weight)
    for _ in range(3):
        same(ROPE.apply(q, q, norm=QKNorm(changed, changed))[0], expected)


def test_weights_that_change_between_calls_are_read_anew(rng):
    q, weight = sample(rng, 1, 5, 3, 16), sample(rng, 16)
    norm = QKNorm(weight, weight)
    for _ in range(4):
        weight += 1
        same(ROPE.apply(q, q, norm=norm), truth(ROPE.apply, q, q, norm=norm))


def test_rows_of_zeros_stay_zeros_at_the_smallest_eps():
    x = np.zeros((5, 2, 16), np.float32)
    for path in ("portable", "chunked", None):
        with use_path(path):
            assert not ROPE.rotate(x, norm=(None, 2.0**-126)).any()
    with pytest.raises(RopeError, match=r"eps must be at least 2\*\*-126, .*; got 5e-324"):
        QKNorm(eps=5e-324)


def test_weights_of_unequal_parts_of_a_head_are_refused():
    q = np.ones((5, 2, 16), np.float32)
    with pytest.raises(RopeError, match="must normalize the same components of q and k"):
        RoPE(rotary_dim=8).apply(q, q, norm=QKNorm(np.ones(16), np.ones(8)))


def test_a_norm_without_weights_is_a_pytree_before_any_array():
    pytest.importorskip("jax")
    rotate = "f = jax.jit(lambda q, norm: rope_xp.RoPE().rotate(q, norm=norm))"
    call = "f(jax.numpy.ones((3, 2, 8)), rope_xp.QKNorm()).shape"
    assert run("-c", f"import jax, rope_xp\n{rotate}\nprint({call})") == "(3, 2, 8)\n"
