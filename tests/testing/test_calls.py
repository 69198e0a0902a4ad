"""How identify and assert_rotates call a function: with which numbers, and with what limits."""

import time
from functools import partial

import numpy as np
import pytest

from rope_xp import QKNorm, RoPE, RopeError
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._open import CallError

HEAD_DIM = 16
HALF = RoPE(layout="half")


def rotate(q, k, positions, **more):
    return HALF.apply(q, k, positions, axes="bhsd", **more)


def test_identify_calls_with_lengths_batches_heads_and_positions_of_their_own():
    shapes = []

    def function(q, k, positions):
        if positions.ndim != 2:
            raise ValueError("positions must be (batch, tokens)")
        shapes.append((q.shape, k.shape))
        if len(q) == 3:  # as large as no call of unit vectors is
            assert not np.array_equal(positions[0], positions[1])
            assert not np.array_equal(q, k[: len(q), : q.shape[1]])
        return rotate(q, k, positions)

    assert identify(function, HEAD_DIM).notes == ()
    assert any(q[1] != k[1] for q, k in shapes)  # heads
    assert any(q[0] > 1 and q[2] % 2 and q[2] > 32 for q, _ in shapes)
    assert any(q[2] > 1024 for q, _ in shapes)


def test_assert_rotates_calls_with_the_same_numbers_each_time():
    calls = [], []
    for own in calls:
        assert_rotates(lambda *x, own=own: (own.extend(x), rotate(*x))[1], HALF, HEAD_DIM)
    for first, second in zip(*calls, strict=True):
        np.testing.assert_array_equal(first, second)


def refuse(are_refused):
    def function(q, k, positions):
        if are_refused(q, k):
            raise ValueError("such are refused")
        return rotate(q, k, positions, out=(q, k))

    return function


@pytest.mark.parametrize(
    "are_refused", [lambda q, k: q.shape != k.shape, lambda q, k: q.shape[2] > 512]
)
def test_assert_rotates_and_identify_allow_functions_in_place_and_their_limits(are_refused):
    assert_rotates(refuse(are_refused), HALF, HEAD_DIM)
    result = identify(refuse(are_refused), HEAD_DIM)
    assert (result.faults, result.notes) == ((), ())


def test_assert_rotates_and_identify_tell_of_calls_that_are_refused():
    function = refuse(lambda q, k: q.shape[2] == 37)
    with pytest.raises(AssertionError, match="37 tokens at positions .* are rejected: ValueError"):
        assert_rotates(function, HALF, HEAD_DIM)
    assert "such are refused" in " ".join(identify(function, HEAD_DIM).notes)
    with pytest.raises(RopeError, match="but not one: ValueError: such are refused"):
        identify(refuse(lambda q, k: q.shape[2] == 1), HEAD_DIM)


def sleep(sizes, seconds, q, k, positions):
    sizes.append(q.shape[0] * q.shape[2])
    time.sleep(seconds * sizes[-1])
    return rotate(q, k, positions)


def test_max_tokens_bounds_calls_and_leaves_results():
    function = partial(sleep, sizes := [], 0.0)
    assert_rotates(function, HALF, HEAD_DIM, max_tokens=64)
    assert identify(function, HEAD_DIM, max_tokens=64).rope == HALF
    with pytest.raises(AssertionError, match="base is 10000, and not 100"):
        assert_rotates(function, RoPE(layout="half", base=100.0), HEAD_DIM, max_tokens=64)
    assert max(sizes) <= 64


def test_seconds_end_calls_of_a_slow_function():
    function = partial(sleep, sizes := [], 4e-4)
    assert_rotates(function, HALF, HEAD_DIM, seconds=0.2)
    assert max(sizes) < 1031
    slower = partial(sleep, [], 4e-3)  # 50 tokens in that time
    with pytest.raises(AssertionError, match="no answer within the given seconds"):
        assert_rotates(slower, RoPE(), HEAD_DIM, seconds=0.2)
    with pytest.raises(RopeError, match="no answer within the given seconds"):
        identify(slower, HEAD_DIM, seconds=0.2)


def test_seconds_leave_time_for_the_cause():
    """No call takes more than a tenth of them, but what all causes need."""
    start = time.monotonic()
    with pytest.raises(AssertionError, match="turns by the negative angle"):
        assert_rotates(lambda q, k, p: sleep([], 1e-3, q, k, -p), HALF, HEAD_DIM, seconds=6.0)
    assert time.monotonic() - start < 6.5


def write_slots(q, k, positions, k_cache, slots, left=0):
    before, rows = k_cache[slots[:left]].copy(), slots.reshape(len(k), -1)
    result = rotate(q, k, positions, out=(None, k_cache), slots=rows)
    k_cache[slots[:left]] = before
    return result


@pytest.mark.parametrize(
    ("function", "rope", "message"),
    [
        (partial(write_slots, left=1), HALF, "1 of .* are not written"),
        (lambda q, k, p, *cache: q, HALF, "k is written to no slot of the cache"),
        (write_slots, RoPE(), "layout is 'half', and not 'interleaved'"),
    ],
)
def test_assert_rotates_reads_slots_of_a_cache(function, rope, message):
    assert_rotates(write_slots, HALF, HEAD_DIM, slots=True)
    with pytest.raises(AssertionError, match=message):
        assert_rotates(function, rope, HEAD_DIM, slots=True)


WEIGHTS = np.linspace(0.5, 2.0, HEAD_DIM), np.linspace(2.0, 0.5, HEAD_DIM)
NORM = QKNorm(*WEIGHTS, eps=1e-5, offset=1.0)


@pytest.mark.parametrize(
    ("rope", "norm", "error", "message"),
    [
        (RoPE(), NORM, AssertionError, "layout is 'half', and not 'interleaved'"),
        (HALF, QKNorm(*WEIGHTS[::-1], 1e-5, 1.0), AssertionError, "the weights of the other array"),
        (HALF, 1e-5, TypeError, "norm must be a rope_xp.QKNorm; got float"),
        (HALF, QKNorm(np.ones(8)), RopeError, r"norm.q_weight must have shape \(16,\); got \(8,\)"),
        (HALF, QKNorm(None, np.zeros(16)), RopeError, "norm.k_weight . offset must not be 0"),
    ],
)
def test_assert_rotates_undoes_a_norm_and_compares_it(rope, norm, error, message):
    function = partial(rotate, norm=NORM)
    assert_rotates(function, HALF, HEAD_DIM, norm=NORM)
    with pytest.raises(error, match=message):
        assert_rotates(function, rope, HEAD_DIM, norm=norm)


def test_assert_rotates_takes_none_for_a_layer_without_positions():
    assert_rotates(lambda q, k, positions: (q, k), None, HEAD_DIM)
    with pytest.raises(AssertionError, match="it rotates as RoPE.*, in a layer without positions"):
        assert_rotates(rotate, None, HEAD_DIM)


def test_assert_rotates_takes_tables_in_one_argument():
    table = np.asarray(HALF.table(4096, HEAD_DIM, form="vllm"))

    def function(q, k, rows):
        return HALF.with_tables(*np.split(rows, 2, axis=-1)).apply(q, k, axes="bhsd")

    assert_rotates(function, HALF, HEAD_DIM, tables=lambda p: table[p], positions=range(99))


def test_identify_says_how_to_bind_arguments_that_it_does_not_know():
    def of_cache(q, k, positions, cos_sin_cache):
        return rotate(q, k, positions)

    bind = r"lambda q, k, positions: of_cache\(q, k, positions, cos_sin_cache\), or see"
    with pytest.raises(CallError, match=bind):
        identify(of_cache, HEAD_DIM)
