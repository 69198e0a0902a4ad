"""Right rotations, wrapped so that a token, batch entry, head, position or bit goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rope_xp import RoPE, RopeError, scaling
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._compare import list_differences

HEAD_DIM = 16
ROPE = RoPE(layout="half")
YARN = RoPE(layout="half", scaling=scaling.YaRN(4.0, 4096))
SLICE = RoPE(layout="half", rotary_dim=8)


def right(x: Any, positions: Any, rope: RoPE = ROPE) -> Any:
    return rope.rotate(x, positions, axes="bhsd")


def to(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x.astype(dtype).astype(np.float32)


def left_where(choose: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Rotate all but some of x."""

    def function(x: Any, positions: Any) -> Any:
        y = np.array(right(x, positions))
        chosen = choose(x)
        y[chosen] = x[chosen]
        return y

    return function


def of_both(
    function: Callable[[Any, Any], Any], of_k: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any, Any, Any], Any]:
    return lambda q, k, positions: (function(q, positions), (of_k or function)(k, positions))


def by_rows(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Take positions (batch, tokens) alone."""

    def rows(x: Any, positions: Any) -> Any:
        if positions.ndim != 2:
            raise ValueError("positions must be (batch, tokens)")
        return function(x, positions)

    return of_both(rows)


def in_place_halves(x: Any, positions: Any) -> Any:
    """Write the first half before the second half has read it."""
    angles = positions[:, None] * ROPE.frequencies(HEAD_DIM)
    cos, sin = np.cos(angles), np.sin(angles)
    y, n = np.array(x), HEAD_DIM // 2
    y[..., :n] = y[..., :n] * cos - y[..., n:] * sin
    y[..., n:] = y[..., n:] * cos + y[..., :n] * sin
    return y


def scratch(x: Any, positions: Any) -> Any:
    """Return a copy of what is written over the argument."""
    x[...] = right(x, positions)
    return x.copy()


def only_as_many_heads_as_k(q: Any, k: Any, positions: Any) -> Any:
    heads = k.shape[1]
    rest = q[:, heads:]
    return np.concatenate([right(q[:, :heads], positions), rest], axis=1), right(k, positions)


def first_entry(x: Any, positions: Any) -> Any:
    return right(x, np.broadcast_to(positions[:1], positions.shape))


@dataclass(frozen=True)
class Fault:
    name: str
    function: Callable[..., Any]
    words: str
    """In the message of assert_rotates and, unless it is another RoPE, of identify."""
    outcome: str = "error"
    """Of identify: it raises an "error", names a "fault", or returns "another" RoPE."""
    meant: RoPE = ROPE


def tokens(start: int) -> Callable[[Any], Any]:
    return lambda x: np.s_[:, :, start:]


LEFT = "which is left as it is"
FAULTS = [
    Fault("first 32 tokens only", of_both(left_where(tokens(32))), LEFT),
    Fault("first 1024 tokens only", of_both(left_where(tokens(1024))), LEFT),
    Fault("the last token of an odd number left",
          of_both(left_where(lambda x: np.s_[:, :, x.shape[2] // 2 * 2 + (x.shape[2] == 1):])),
          LEFT, "fault"),
    Fault("the last block of 16 tokens left where it is not full",
          of_both(left_where(lambda x: np.s_[:, :, max(16, x.shape[2] // 16 * 16):])), LEFT),
    Fault("tokens reversed", of_both(lambda x, p: right(x, p)[:, :, ::-1]),
          "turned otherwise alone in a call than with others"),
    Fault("vectors of reversed tokens", of_both(lambda x, p: right(x[:, :, ::-1], p)),
          "q at position"),
    Fault("vector of the token before", of_both(lambda x, p: right(np.roll(x, 1, 2), p)),
          "q at position"),
    Fault("positions reversed", of_both(lambda x, p: right(x, p[::-1])),
          "turned otherwise alone in a call than with others"),
    Fault("position of the token before", of_both(lambda x, p: right(x, np.roll(p, 1))),
          "turned otherwise alone in a call than with others"),
    Fault("position of the first token", of_both(lambda x, p: right(x, np.full_like(p, p[0]))),
          "function turns nothing"),
    Fault("places beside the first position",
          of_both(lambda x, p: right(x, p[0] + np.arange(len(p)))), "place in the call counts too"),
    Fault("positions ignored", of_both(lambda x, p: right(x, np.arange(len(p)))),
          "the function ignores positions"),
    Fault("batch entries swapped", of_both(lambda x, p: right(x, p)[::-1]), ""),
    Fault("the next batch entry", of_both(lambda x, p: np.roll(right(x, p), 1, 0)), ""),
    Fault("the first batch entry for all",
          of_both(lambda x, p: np.broadcast_to(right(x, p)[:1], x.shape)), ""),
    Fault("one batch entry left", of_both(left_where(lambda x: np.s_[1:2] if len(x) < 4 else [])),
          LEFT),
    Fault("positions of the first batch entry for all", by_rows(first_entry), "q at position"),
    Fault("positions of batch entries swapped", by_rows(lambda x, p: right(x, p[::-1])),
          "q at position"),
    Fault("heads swapped", of_both(lambda x, p: right(x, p)[:, ::-1]), "mixes heads"),
    Fault("half of the heads left",
          of_both(left_where(lambda x: np.s_[:, x.shape[1] // 2:])), "angles differ between heads"),
    Fault("four heads at most", of_both(left_where(lambda x: np.s_[:, 3:])), LEFT),
    Fault("as many heads of q as of k", only_as_many_heads_as_k, LEFT),
    Fault("q and k swapped", lambda q, k, p: (right(k, p), right(q, p)), ""),
    Fault("k made of q", lambda q, k, p: (right(q, p), right(q, p)), ""),
    Fault("k by positions of its own", of_both(right, lambda x, p: right(x, p + 1)),
          "positions are off by +1", "fault"),
    Fault("k by positions reversed", of_both(right, lambda x, p: right(x, p[::-1])),
          "turned otherwise alone"),
    Fault("x cast to bfloat16", of_both(lambda x, p: right(to(ml_dtypes.bfloat16)(x), p)),
          "q is rounded to bfloat16 before it is rotated", "fault"),
    Fault("x cast to float16", of_both(lambda x, p: right(to(np.float16)(x), p)),
          "q is rounded to float16 before it is rotated", "fault"),
    Fault("k cast to bfloat16", of_both(right, lambda x, p: right(to(ml_dtypes.bfloat16)(x), p)),
          "k is rounded to bfloat16 before it is rotated", "fault"),
    Fault("the result cast to bfloat16", of_both(lambda x, p: to(ml_dtypes.bfloat16)(right(x, p))),
          "rounded to bfloat16", "fault"),
    Fault("large numbers clipped", of_both(lambda x, p: right(np.clip(x, -2, 2), p)),
          "not linear in q"),
    Fault("small numbers flushed", of_both(lambda x, p: right(np.where(abs(x) < 0.1, 0, x), p)),
          "q at position"),
    Fault("positions off by one", of_both(lambda x, p: right(x, p + 1)), "off by +1", "fault"),
    Fault("positions modulo 2048", of_both(lambda x, p: right(x, p % 2048)), "anew at 2048",
          "fault"),
    Fault("positions modulo 65536", of_both(lambda x, p: right(x, p % 65536)), "anew at 65536",
          "fault"),
    Fault("sign of the sine", of_both(lambda x, p: ROPE.unrotate(x, p, axes="bhsd")),
          "turns by the negative angle", "fault"),
    Fault("half without the second sine", of_both(in_place_halves), "the norm is not kept"),
    Fault("another slice",
          of_both(lambda x, p: right(x, p, RoPE(layout="half", rotary_dim=8, rotary_offset=8))),
          "rotary_offset is 8, and not 0", "another", SLICE),
    Fault("a slice of half the length", of_both(lambda x, p: right(x, p, SLICE)),
          "rotary_dim is 8, and not 16", "another"),
    Fault("another layout", of_both(lambda x, p: right(x, p, RoPE())),
          "layout is 'interleaved', and not 'half'", "another"),
    Fault("attention factor missing",
          of_both(lambda x, p: right(x, p, YARN) / np.float32(YARN.attention_factor)),
          "attention factor is 1, and not 1.13863", "another", YARN),
    Fault("k without the attention factor",
          of_both(lambda x, p: right(x, p, YARN),
                  lambda x, p: right(x, p, YARN) / np.float32(YARN.attention_factor)),
          "of k, attention factor is 1, and not 1.13863", "fault", YARN),
    Fault("k not rotated", of_both(right, lambda x, p: x), "k is not turned", "fault"),
    Fault("v alone rotated", lambda q, k, v, p: (q, k, right(v, p)), "v is turned as well",
          "fault"),
    Fault("arguments written over", of_both(scratch), "is written over, and another array"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_of_calls_are_noticed(fault: Fault) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_rotates(fault.function, fault.meant, HEAD_DIM)
    assert fault.words in str(raised.value)
    assert "nothing that is known here" not in str(raised.value)
    if fault.outcome == "error":
        with pytest.raises(RopeError) as refused:
            identify(fault.function, HEAD_DIM)
        assert fault.words in str(refused.value)
        return
    result = identify(fault.function, HEAD_DIM)
    if fault.outcome == "another":
        assert fault.words in " ".join(list_differences(result.rope, fault.meant, HEAD_DIM))
    else:
        assert fault.words in " ".join(result.faults)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("torch", "first 32 tokens only"),
        ("torch", "x cast to bfloat16"),
        ("jax", "batch entries swapped"),
    ],
)
def test_faults_in_other_libraries(library: str, name: str) -> None:
    module = pytest.importorskip({"jax": "jax.numpy"}.get(library, library))
    fault = next(fault for fault in FAULTS if fault.name == name)

    def function(*arguments: Any) -> Any:
        host = [np.asarray(x) for x in arguments]
        return tuple(module.asarray(np.array(y)) for y in fault.function(*host))

    with pytest.raises(AssertionError) as raised:
        assert_rotates(function, ROPE, HEAD_DIM, like=module.zeros(1))
    assert fault.words in str(raised.value)


def test_the_same_call_has_the_same_numbers() -> None:
    seen: list[list[np.ndarray]] = [[], []]
    for calls in seen:

        def function(q: Any, k: Any, positions: Any, calls: Any = calls) -> Any:
            calls.extend([q, k, positions])
            return of_both(right)(q, k, positions)

        assert_rotates(function, ROPE, HEAD_DIM)
    assert len(seen[0]) == len(seen[1])
    for first, second in zip(*seen, strict=True):
        np.testing.assert_array_equal(first, second)


def test_calls_have_lengths_batches_heads_and_positions_of_their_own() -> None:
    shapes = []

    def function(q: Any, k: Any, positions: Any) -> Any:
        if positions.ndim != 2:
            raise ValueError("positions must be (batch, tokens)")
        shapes.append((q.shape, k.shape))
        if len(q) == 3:  # as large as no call of unit vectors is
            assert not np.array_equal(positions[0], positions[1])
            assert not np.array_equal(q, k[: len(q), : q.shape[1]])
        return of_both(right)(q, k, positions)

    identify(function, HEAD_DIM)
    assert any(q[1] != k[1] for q, k in shapes)  # heads
    assert any(q[0] > 1 and q[2] % 2 and q[2] > 32 for q, _ in shapes)
    assert any(q[2] > 1024 for q, _ in shapes)


@pytest.mark.parametrize("limit", ["equal heads", "512 tokens"])
def test_limits_of_a_function_that_are_no_fault(limit: str) -> None:
    def function(q: Any, k: Any, positions: Any) -> Any:
        if q.shape != k.shape if limit == "equal heads" else q.shape[2] > 512:
            raise ValueError(limit)
        return of_both(right)(q, k, positions)

    assert_rotates(function, ROPE, HEAD_DIM)
    result = identify(function, HEAD_DIM)
    assert (result.faults, result.notes) == ((), ())


def test_calls_that_are_refused_are_noted() -> None:
    def function(x: Any, positions: Any) -> Any:
        if x.shape[2] == 37:
            raise ValueError("37 is too odd")
        return right(x, positions)

    with pytest.raises(AssertionError, match="37 tokens at positions .* are refused: ValueError"):
        assert_rotates(function, ROPE, HEAD_DIM)
    assert "37 is too odd" in " ".join(identify(function, HEAD_DIM).notes)


def test_a_function_that_refuses_one_token() -> None:
    def function(x: Any, positions: Any) -> Any:
        if x.shape[2] == 1:
            raise ValueError("no decoding here")
        return right(x, positions)

    with pytest.raises(RopeError, match="not one alone: ValueError: no decoding here"):
        identify(function, HEAD_DIM)


def test_a_function_in_place_passes() -> None:
    def function(q: Any, k: Any, positions: Any) -> Any:
        return ROPE.apply(q, k, positions, axes="bhsd", out=(q, k))

    assert_rotates(function, ROPE, HEAD_DIM)
    assert identify(function, HEAD_DIM).faults == ()
