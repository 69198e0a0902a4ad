"""Compare a rotation with a RoPE: two ropes by their fields, a function by random calls."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core.memory import have_overlap
from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._box import BlackBox, CallRefused, Floats
from rope_xp.testing._norm import simulate_faults
from rope_xp.testing._rounding import NARROW, PRODUCT

_CALLS = [(1, 1), (2, 1), (5, 1), (3, 7), (2, 37), (1, 1031)]
"""Batch and tokens: a batch that decodes, odd numbers, and beyond the blocks of kernels."""
_ORDERED = (3, 7)
"""The call with positions in the order that they are given in: each entry continues the last."""
_SMALL = 2.0**-10
"""The size of vectors in that call, where they are normalised: it makes eps count."""


def list_differences(actual: RoPE, expected: RoPE, head_dim: int) -> list[str]:
    """Return how two ropes differ that rotate heads of head_dim, in sentences."""
    one, other = fix_length(actual, head_dim), fix_length(expected, head_dim)
    sentences = [
        f"{name} is {getattr(one, name)!r}, and not {getattr(other, name)!r}"
        for name in ("layout", "rotary_dim", "rotary_offset", "position_axes")
        if getattr(one, name) != getattr(other, name)
    ]
    series = one.frequencies(head_dim), other.frequencies(head_dim)
    same_length = series[0].shape == series[1].shape
    if not (same_length and np.allclose(*series, rtol=1e-5, atol=1e-12)):
        if actual.base != expected.base:
            sentences.append(f"base is {actual.base:g}, and not {expected.base:g}")
        if actual.scaling != expected.scaling or actual.base == expected.base:
            sentences.append(f"scaling is {actual.scaling}, and not {expected.scaling}")
    factors = actual.attention_factor, expected.attention_factor
    if not math.isclose(*factors, rel_tol=1e-4):
        sentences.append(f"attention factor is {factors[0]:.6g}, and not {factors[1]:.6g}")
    return sentences


def fix_length(rope: RoPE, head_dim: int) -> RoPE:
    """Return a rope for short contexts, with its slice of the head filled in."""
    rotary_dim = rope.rotary_dim or head_dim
    offset = rope.rotary_offset % head_dim
    return replace(rope.for_length(1), rotary_dim=rotary_dim, rotary_offset=offset)


class Problem(NamedTuple):
    """A call that is rejected, or whose errors exceed the bound."""

    message: str
    kind: Literal["wrong", "rounded", "rejected", "norm"] = "wrong"


class _Call(NamedTuple):
    """A call with random vectors, (batch, heads, tokens, head_dim), and its results."""

    arrays: list[Floats]
    positions: NDArray[np.int64]  # (components, batch, tokens)
    results: list[Floats]
    overwritten: list[str]  # names of arrays that the function overwrites while it returns others


def find_problems(
    box: BlackBox,
    rope: RoPE | None,
    positions: ArrayLike,
    atol: float | None = None,
    *,
    whole: bool = False,
    deadline: float = math.inf,
) -> Iterator[Problem]:
    """Yield the errors of a function in random calls at positions (n,) or (components, n).

    It must return what it gets if there is no rope.
    Calls are left out that would not end by the deadline, by the pace of those before.
    """
    line, rope = np.asarray(positions), rope and fix_length(rope, box.head_dim)
    p = line if line.ndim > 1 else np.stack([np.roll(line, c) for c in range(box.components)])
    # Each call has vectors and an order of positions of its own; "whole" adds one with all.
    for batch, tokens in [(1, p.shape[1])] * whole + _CALLS:
        last, size = (batch, tokens) == _CALLS[-1], batch * tokens
        seconds = box.pace * size * 3 * box.heads  # q may have twice as many heads
        if size > box.max_tokens or time.monotonic() + seconds > deadline:
            continue
        try:
            call = _call_randomly(box, p, batch, tokens)
        except CallRefused as refused:
            if not last:  # a function may limit the length of a call
                shown = (p if len(p) > 1 else p[0])[..., :8].tolist()
                message = f"{tokens} tokens at positions {shown} ... are rejected: {refused}"
                yield Problem(message, "rejected")
            continue
        problems = [_compare_array(box, rope, call, i, atol) for i in range(len(call.results))]
        yield from filter(None, problems)
        for name in call.overwritten:
            yield Problem(f"{name} is overwritten, but another array is returned")


def _call_randomly(box: BlackBox, positions: NDArray[np.int64], batch: int, tokens: int) -> _Call:
    """Call a function with standard normal numbers, with more heads of q if it takes them."""
    rng, is_ordered = np.random.default_rng([batch, tokens]), (batch, tokens) == _ORDERED
    size = _SMALL if is_ordered and box.norm else 1.0
    order = np.arange(batch * tokens) % positions.shape[1]
    chosen = positions[:, order] if is_ordered else positions[:, ::-1][:, rng.permutation(order)]
    chosen = chosen.reshape(-1, batch, tokens)
    if "b" not in box.position_format:  # batch entries share their positions
        chosen = np.broadcast_to(chosen[:, :1], chosen.shape)
    for q_heads in (2 * box.heads, box.heads):
        heads = [q_heads, box.heads, box.heads][: len(box.names)]
        shapes = [(batch, h, tokens, box.head_dim) for h in heads]
        arguments = [box.put(size * rng.standard_normal(shape)) for shape in shapes]
        arrays = [np.array(box.read(x)) for x in arguments]  # as rounded to their dtype
        try:
            returned, results = box.call(arguments, chosen)
            break
        except CallRefused:
            if q_heads == box.heads:
                raise
    overwritten = [
        name
        for name, before, x, y in zip(box.names, arrays, arguments, returned, strict=False)
        if x is not y and _lie_apart(box, x, y) and (box.read(x) != before).any()
    ]
    return _Call(arrays, chosen, results, overwritten)


def _lie_apart(box: BlackBox, *arrays: Array) -> bool:
    """Return whether two arrays surely share no memory."""
    a, b = (box.backend.memory(x) for x in arrays)
    return a is not None and b is not None and not have_overlap(a, b)


def _compare_array(
    box: BlackBox, rope: RoPE | None, call: _Call, index: int, atol: float | None
) -> Problem | None:
    """Return the error of one array of a call, with its cause."""
    name, x, result = box.names[index], call.arrays[index], call.results[index]
    components = count_components(rope)

    def turn(x: Floats, positions: NDArray[np.int64] = call.positions) -> Floats:
        if rope is None or name == "v":
            return x
        p = positions[0] if rope.position_axes is None else positions[:components]
        return np.asarray(rope.rotate(x, p, axes="bhsd"))

    def normalize(x: Floats) -> Floats:
        return x if box.norm is None or name == "v" else box.norm.apply(x, name)

    expected = turn(normalize(x))
    size = np.abs(normalize(x)).max()
    bound = _bound_errors(box, rope, call.positions[:components]) * size if atol is None else atol
    bound = np.broadcast_to(bound, x.shape)
    off = np.abs(result - expected)
    if (off <= bound).all():
        return None
    excess = np.where(np.isfinite(off), off - bound, np.inf)
    worst = np.unravel_index(excess.argmax(), x.shape)
    entry, head, token, _ = (int(i) for i in worst)
    position = call.positions[:, entry, token]
    message = (
        f"{name} at position {_show(position)} is off by {off[worst]:.3g} (allowed "
        f"{bound[worst]:.1g}): token {token} of {x.shape[2]}, head {head} of {x.shape[1]}, "
        f"batch entry {entry} of {x.shape[0]}"
    )
    for dtype, to in NARROW.items():
        if (np.abs(result - turn(normalize(to(x)))) <= bound).all():
            cause = f"{name} is rounded to {dtype} before it is rotated"
            return Problem(f"{cause}; {message}", "rounded")
    if box.norm is not None and name != "v":
        for fault, y in simulate_faults(box.norm, x, name, turn, result):
            if (np.abs(y - result) <= bound).all():
                return Problem(f"{fault}; {message}", "norm")
    else:
        doubled = box.call([box.put(2 * array) for array in call.arrays], call.positions)[1][index]
        if not (np.abs(doubled / 2 - result) <= bound).all():
            message = f"it is not linear in {name}, as if it also normalised it; {message}"

    def is_result(expected: Floats) -> NDArray[np.bool_]:
        """Return which heads of the token are these vectors (..., heads, head_dim)."""
        off = np.abs(result[entry, :, token] - expected)
        return np.asarray((off <= bound[entry, :, token]).all(axis=-1))

    if is_result(x[entry, :, token])[head]:
        return Problem(f"{message}, which is unchanged")
    for words, p in _list_positions(call.positions, entry, token) if rope else ():
        one = turn(normalize(x)[entry : entry + 1, :, token : token + 1], p[:, None, None])
        if (p != position).any() and is_result(one[0, :, 0]).all():
            return Problem(f"{message}, which is rotated by position {_show(p)}, {words}")
    vector, allowed = result[entry, head, token], bound[entry, head, token]
    if same := np.argwhere((np.abs(vector - expected) <= allowed).all(axis=-1)).tolist():
        other = "token {2}, head {1}, batch entry {0}".format(*same[0])
        message += f", which got the result of {other}"
    return Problem(message)


def _show(position: NDArray[np.int64]) -> str:
    return str(position[0] if len(position) == 1 else position.tolist())


def _list_positions(
    positions: NDArray[np.int64], entry: int, token: int
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield positions (components,) that a function may take for that of a token, in words."""
    own, (_, batch, tokens) = positions[:, entry, token], positions.shape
    for component in range(len(own) if len(own) > 1 else 0):
        yield f"component {component} for all", np.full_like(own, own[component])
    for other in (0, entry - 1, entry + 1, batch - 1):
        yield f"that of batch entry {other % batch}", positions[:, other % batch, token]
    for other in range(tokens):
        yield f"that of token {other}", positions[:, entry, other]
    yield "its index in the sequence", np.full_like(own, token)
    yield "its index in the batch", np.full_like(own, entry * tokens + token)
    for shift in (-2, -1, 1, 2):
        yield f"off by {shift:+d}", own + shift


def count_components(rope: RoPE | None) -> int:
    return max((rope and rope.position_axes) or (0,)) + 1


def _bound_errors(box: BlackBox, rope: RoPE | None, positions: NDArray[np.int64]) -> Floats:
    """Return the error bound of rotated numbers below 1, (batch, 1, tokens, head_dim)."""
    if rope is None:
        return np.asarray(16 * box.eps)
    frequencies = np.abs(rope.frequencies(box.head_dim))[None]
    # Rotating ones by cos = 1 + frequency puts each pair's frequency at its components.
    ones, sin = np.ones((1, box.head_dim)), np.zeros_like(frequencies)
    scaled = np.asarray(rope.with_tables(1.0 + frequencies, sin).rotate(ones, axes="sd"))
    angles = np.abs(positions).max(axis=0)[:, None, :, None] * (scaled - 1.0)
    return np.asarray(max(1.0, rope.attention_factor) * (16 * box.eps + PRODUCT * angles) + 1e-6)
