"""Compare random calls of a function with a RoPE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp.rope import RoPE
from rope_xp.testing._box import EPS, BlackBox, CallRefused, Floats, find_buffer
from rope_xp.testing._rounding import NARROW, PRODUCT

CALLS = ((1, 1), (3, 7), (2, 37), (1, 1031))
"""Batch and tokens: odd, and beyond the blocks of kernels."""


class Problem(NamedTuple):
    """A call that is refused, or whose errors exceed the bound."""

    message: str
    kind: Literal["wrong", "rounded", "refused"] = "wrong"


class _Call(NamedTuple):
    """A call with random vectors, and its results."""

    arrays: list[Floats]
    """q, k and v as far as there are any, (batch, heads, tokens, head_dim)."""
    positions: NDArray[np.int64]
    """(components, batch, tokens)"""
    results: list[Floats]
    overwritten: list[str]
    """Names of arrays that the function overwrites while it returns others."""


def spread_positions(positions: ArrayLike, components: int) -> NDArray[np.int64]:
    """Return positions (components, n); one line is shifted for each component."""
    p = np.asarray(positions)
    return p if p.ndim > 1 else np.stack([np.roll(p, c) for c in range(components)])


def find_problems(
    box: BlackBox,
    rope: RoPE,
    positions: NDArray[np.int64],
    calls: Sequence[tuple[int, int]] = CALLS,
    atol: float | None = None,
) -> Iterator[Problem]:
    """Yield the errors of a function in random calls at positions (components, n).

    Each call has vectors and an order of positions of its own, from a fixed seed.
    """
    for batch, tokens in calls:
        try:
            call = _call_randomly(box, positions, batch, tokens)
        except CallRefused as refused:
            if (batch, tokens) != CALLS[-1]:  # a function may limit the length of a call
                shown = (positions if len(positions) > 1 else positions[0])[..., :8].tolist()
                message = f"{tokens} tokens at positions {shown} ... are refused: {refused}"
                yield Problem(message, "refused")
            continue
        for index in range(len(call.results)):
            yield from _compare_array(box, rope, call, index, atol)
        for name in call.overwritten:
            yield Problem(f"{name} is written over, and another array returned")


def _call_randomly(box: BlackBox, positions: NDArray[np.int64], batch: int, tokens: int) -> _Call:
    """Call a function with standard normal numbers.

    q has twice the heads of k and v where the function takes that. Entries of the batch have
    positions of their own where positions have an axis for the batch.
    """
    rng = np.random.default_rng([batch, tokens])
    order = rng.permutation(np.arange(batch * tokens) % positions.shape[1])
    shuffled = positions[:, ::-1][:, order].reshape(-1, batch, tokens)
    if "b" not in box.position_axes:
        shuffled = np.broadcast_to(shuffled[:, :1], shuffled.shape)

    def call_with(q_heads: int) -> _Call:
        heads = [q_heads, box.heads, box.heads][: len(box.names)]
        vectors = [rng.standard_normal((batch, h, tokens, box.head_dim)) for h in heads]
        arguments = [box.put(x) for x in vectors]
        arrays = [np.array(box.read(x)) for x in arguments]  # as rounded to their dtype
        returned, results = box.call(arguments, shuffled)
        overwritten = [
            name
            for name, before, x, y in zip(box.names, arrays, arguments, returned, strict=False)
            if find_buffer(x) != find_buffer(y) and not np.array_equal(box.read(x), before)
        ]
        return _Call(arrays, shuffled, results, overwritten)

    try:
        return call_with(2 * box.heads)
    except CallRefused:
        return call_with(box.heads)


def _compare_array(
    box: BlackBox, rope: RoPE, call: _Call, index: int, atol: float | None
) -> Iterator[Problem]:
    """Yield the error of one array of a call, with its cause."""
    name, x, result = box.names[index], call.arrays[index], call.results[index]
    positions = call.positions[0] if rope.position_axes is None else call.positions

    def rotate(x: Floats) -> Floats:
        return x if name == "v" else np.asarray(rope.rotate(x, positions, axes="bhsd"))

    expected = rotate(x)
    bound = _bound_errors(box, rope, call.positions) * np.abs(x).max() if atol is None else atol
    bound = np.broadcast_to(bound, x.shape)
    off = np.abs(result - expected)
    if (off <= bound).all():
        return
    excess = np.where(np.isfinite(off), off - bound, np.inf)
    worst = np.unravel_index(excess.argmax(), x.shape)
    entry, head, token, _ = (int(i) for i in worst)
    position = call.positions[:, entry, token].tolist()
    message = (
        f"{name} at position {position[0] if len(position) == 1 else position} is off by "
        f"{off[worst]:.3g}, and may be by {bound[worst]:.1g}: token {token} of {x.shape[2]}, "
        f"head {head} of {x.shape[1]}, batch entry {entry} of {x.shape[0]}"
    )
    for dtype, to in NARROW.items():
        if (np.abs(result - rotate(to(x))) <= bound).all():
            cause = f"{name} is rounded to {dtype} before it is rotated"
            yield Problem(f"{cause}; {message}", "rounded")
            return
    doubled = box.call([box.put(2 * array) for array in call.arrays], call.positions)[1][index]
    if not (np.abs(doubled / 2 - result) <= bound).all():
        message = f"it is not linear in {name}, as if it also normalised; {message}"
    vector = result[entry, head, token]
    vector_bound = bound[entry, head, token]
    if (np.abs(vector - x[entry, head, token]) <= vector_bound).all():
        message += ", which is left as it is"
    same = np.argwhere((np.abs(vector - expected) <= vector_bound).all(axis=-1)).tolist()
    if same:
        entry, head, token = same[0]
        message += f", which has the result of token {token}, head {head}, batch entry {entry}"
    yield Problem(message)


def _bound_errors(box: BlackBox, rope: RoPE, positions: NDArray[np.int64]) -> Floats:
    """Return the error bound of rotated numbers below 1, (batch, 1, tokens, head_dim)."""
    frequencies = np.abs(rope.frequencies(box.head_dim))[None]
    # Rotating ones by cos = 1 + frequency puts each pair's frequency at its components.
    ones, sin = np.ones((1, box.head_dim)), np.zeros_like(frequencies)
    scaled = np.asarray(rope.with_tables(1.0 + frequencies, sin).rotate(ones, axes="sd"))
    angles = np.abs(positions).max(axis=0)[:, None, :, None] * (scaled - 1.0)
    relative = 16 * EPS[box.dtype] + PRODUCT * angles
    return np.asarray(max(1.0, rope.attention_factor) * relative + 1e-6)
