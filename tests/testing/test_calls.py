"""How functions are called: with which numbers, and with what limits of theirs."""

import numpy as np
import pytest

from rope_xp import RoPE, RopeError
from rope_xp.testing import assert_rotates, identify

HEAD_DIM = 16
ROPE = RoPE(layout="half")


def rotate(q, k, positions, **more):
    return ROPE.apply(q, k, positions, axes="bhsd", **more)


def test_calls_made_again_have_the_same_numbers():
    calls = []

    def function(*arguments):
        calls.extend(arguments)
        return rotate(*arguments)

    for _ in range(2):
        assert_rotates(function, ROPE, HEAD_DIM)
    n = len(calls) // 2
    for first, second in zip(calls[:n], calls[n:], strict=True):
        np.testing.assert_array_equal(first, second)


def test_calls_have_lengths_batches_heads_and_positions_of_their_own():
    shapes = []

    def function(q, k, positions):
        if positions.ndim != 2:
            raise ValueError("positions must be (batch, tokens)")
        shapes.append((q.shape, k.shape))
        if len(q) == 3:  # as large as no call of unit vectors is
            assert not np.array_equal(positions[0], positions[1])
            assert not np.array_equal(q, k[: len(q), : q.shape[1]])
        return rotate(q, k, positions)

    identify(function, HEAD_DIM)
    assert any(q[1] != k[1] for q, k in shapes)  # heads
    assert any(q[0] > 1 and q[2] % 2 and q[2] > 32 for q, _ in shapes)
    assert any(q[2] > 1024 for q, _ in shapes)


@pytest.mark.parametrize("limit", ["equal heads", "512 tokens"])
def test_limits_of_a_function_are_no_fault(limit):
    def function(q, k, positions):
        if q.shape != k.shape if limit == "equal heads" else q.shape[2] > 512:
            raise ValueError(limit)
        return rotate(q, k, positions)

    assert_rotates(function, ROPE, HEAD_DIM)
    result = identify(function, HEAD_DIM)
    assert (result.faults, result.notes) == ((), ())


def test_calls_that_are_refused_are_noted():
    def function(q, k, positions):
        if q.shape[2] == tokens:
            raise ValueError("so many are refused")
        return rotate(q, k, positions)

    tokens = 37
    with pytest.raises(AssertionError, match="37 tokens at positions .* are rejected: ValueError"):
        assert_rotates(function, ROPE, HEAD_DIM)
    assert "so many are refused" in " ".join(identify(function, HEAD_DIM).notes)
    tokens = 1
    with pytest.raises(RopeError, match="but not one: ValueError: so many are refused"):
        identify(function, HEAD_DIM)


def test_function_in_place_passes():
    def function(q, k, positions):
        return rotate(q, k, positions, out=(q, k))

    assert_rotates(function, ROPE, HEAD_DIM)
    assert identify(function, HEAD_DIM).faults == ()
