"""How functions are called: with which numbers, and with what limits of theirs."""

import time
from typing import Any

import numpy as np
import pytest

from rope_xp import QKNorm, RoPE, RopeError
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._open import CallError

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


def test_calls_have_as_few_tokens_as_asked_for() -> None:
    sizes = []

    def function(q: Any, k: Any, positions: Any) -> Any:
        sizes.append(q.shape[0] * q.shape[2])
        return rotate(q, k, positions)

    assert_rotates(function, ROPE, HEAD_DIM, max_tokens=64)
    assert identify(function, HEAD_DIM, max_tokens=64).rope == ROPE
    with pytest.raises(AssertionError, match="base is 10000, and not 100"):
        assert_rotates(function, RoPE(layout="half", base=100.0), HEAD_DIM, max_tokens=64)
    assert max(sizes) <= 64
    with pytest.raises(RopeError, match="max_tokens must be at least 32; got 8"):
        identify(function, HEAD_DIM, max_tokens=8)


def test_a_slow_function_ends_in_time() -> None:
    sizes = []

    def function(q: Any, k: Any, positions: Any) -> Any:
        sizes.append(q.shape[0] * q.shape[2])
        time.sleep(1e-4 * sizes[-1])
        return rotate(q, k, positions)

    assert_rotates(function, ROPE, HEAD_DIM, seconds=0.05)
    assert max(sizes) < 1031
    with pytest.raises(AssertionError, match="no answer within the given seconds"):
        assert_rotates(function, RoPE(), HEAD_DIM, seconds=0.05)
    with pytest.raises(RopeError, match="no answer within the given seconds"):
        identify(function, HEAD_DIM, seconds=0.05)


def test_seconds_leave_time_for_the_cause() -> None:
    """No call takes more than a tenth of them, but what all causes need."""

    def function(q: Any, k: Any, positions: Any) -> Any:
        time.sleep(1e-3 * q.shape[0] * q.shape[2])
        return rotate(q, k, -positions)

    start = time.monotonic()
    with pytest.raises(AssertionError, match="turns by the negative angle"):
        assert_rotates(function, ROPE, HEAD_DIM, seconds=6.0)
    assert time.monotonic() - start < 6.5


def test_slots_of_a_cache_are_read() -> None:
    def function(q: Any, k: Any, positions: Any, k_cache: Any, slots: Any) -> Any:
        slots = slots.reshape(len(k), -1)
        return ROPE.apply(q, k, positions, axes="bhsd", out=(None, k_cache), slots=slots)

    def leaves_one(q: Any, k: Any, positions: Any, k_cache: Any, slots: Any) -> Any:
        before = k_cache[slots[-1:]].copy()
        result = function(q, k, positions, k_cache, slots)
        k_cache[slots[-1:]] = before
        return result

    assert_rotates(function, ROPE, HEAD_DIM, slots=True)
    with pytest.raises(AssertionError, match="1 of .* are not written"):
        assert_rotates(leaves_one, ROPE, HEAD_DIM, slots=True)
    with pytest.raises(AssertionError, match="layout is 'half', and not 'interleaved'"):
        assert_rotates(function, RoPE(), HEAD_DIM, slots=True)


def test_a_norm_is_compared_and_undone() -> None:
    weights = np.linspace(0.5, 2.0, HEAD_DIM), np.linspace(2.0, 0.5, HEAD_DIM)
    norm = QKNorm(*weights, eps=1e-5, offset=1.0)

    def function(q: Any, k: Any, positions: Any) -> Any:
        return rotate(q, k, positions, norm=QKNorm(*map(np.float32, weights), 1e-5, 1.0))

    assert_rotates(function, ROPE, HEAD_DIM, norm=norm)
    with pytest.raises(AssertionError, match="layout is 'half', and not 'interleaved'"):
        assert_rotates(function, RoPE(), HEAD_DIM, norm=norm)
    with pytest.raises(AssertionError, match="q is multiplied by the weights of the other array"):
        assert_rotates(function, ROPE, HEAD_DIM, norm=QKNorm(*weights[::-1], 1e-5, 1.0))
    with pytest.raises(TypeError, match="norm must be a rope_xp.QKNorm; got float"):
        assert_rotates(function, ROPE, HEAD_DIM, norm=1e-5)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(RopeError, match=r"norm.q_weight must have shape \(16,\); got \(8,\)"):
        assert_rotates(function, ROPE, HEAD_DIM, norm=QKNorm(np.ones(8)))
    with pytest.raises(RopeError, match="norm.k_weight . offset must not be 0"):
        assert_rotates(function, ROPE, HEAD_DIM, norm=QKNorm(None, np.zeros(HEAD_DIM)))


def test_a_layer_without_positions() -> None:
    assert_rotates(lambda q, k, positions: (q, k), None, HEAD_DIM)
    with pytest.raises(AssertionError, match="it rotates as RoPE.*, in a layer without positions"):
        assert_rotates(rotate, None, HEAD_DIM)


def test_tables_in_one_argument() -> None:
    table = np.asarray(ROPE.table(4096, HEAD_DIM, form="vllm"))

    def function(q: Any, k: Any, rows: Any) -> Any:
        return ROPE.with_tables(rows[..., :8], rows[..., 8:]).apply(q, k, axes="bhsd")

    def of_cache(q: Any, k: Any, positions: Any, cos_sin_cache: Any) -> Any:
        return function(q, k, cos_sin_cache[positions])

    assert_rotates(function, ROPE, HEAD_DIM, tables=lambda p: table[p], positions=range(99))
    bind = r"lambda q, k, positions: of_cache\(q, k, positions, cos_sin_cache\), or see"
    with pytest.raises(CallError, match=bind):
        identify(of_cache, HEAD_DIM)
    identify(lambda q, k, positions: of_cache(q, k, positions, table), HEAD_DIM)
