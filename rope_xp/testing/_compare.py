"""Random calls of a function, compared with a RoPE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp.rope import RoPE
from rope_xp.testing._box import EPS, BlackBox, Floats, Refused, memory
from rope_xp.testing._rounding import NARROW, PRODUCT

CALLS = ((1, 1), (3, 7), (2, 37), (1, 1031))
"""Batch and tokens: odd, and beyond the blocks of kernels."""


class Problem(NamedTuple):
    """A call that is refused, or whose results are off by more than they may be."""

    what: str
    kind: Literal["wrong", "rounded", "refused"] = "wrong"


class _Call(NamedTuple):
    """A call with random vectors, and what came back."""

    arrays: list[Floats]
    """q, k and v as far as there are any, (batch, heads, tokens, head_dim)."""
    positions: NDArray[np.int64]
    """(components, batch, tokens)"""
    results: list[Floats]
    overwritten: list[str]
    """Names of arrays that a function writes over, and returns others."""


def spread(positions: ArrayLike, components: int) -> NDArray[np.int64]:
    """Return positions (components, n); those of one line are shifted, to tell components apart."""
    p = np.asarray(positions)
    return p if p.ndim > 1 else np.stack([np.roll(p, c) for c in range(components)])


def find_problems(
    box: BlackBox,
    rope: RoPE,
    positions: NDArray[np.int64],
    calls: Sequence[tuple[int, int]] = CALLS,
    atol: float | None = None,
) -> Iterator[Problem]:
    """Yield where a function is off in random calls at positions (components, n).

    Each call has other vectors and an order of positions of its own, but the same ones each time.
    """
    for batch, tokens in calls:
        try:
            call = _call_randomly(box, positions, batch, tokens)
        except Refused as refused:
            if (batch, tokens) == CALLS[-1]:  # a function may have a longest call
                continue
            shown = (positions if len(positions) > 1 else positions[0])[..., :8].tolist()
            what = f"{tokens} tokens at positions {shown} ... are refused: {refused}"
            yield Problem(what, "refused")
        else:
            for index in range(len(call.results)):
                yield from _compare(box, rope, call, index, atol)
            for name in call.overwritten:
                yield Problem(f"{name} is written over, and another array returned")


def _call_randomly(box: BlackBox, positions: NDArray[np.int64], batch: int, tokens: int) -> _Call:
    """Call a function with standard normal numbers.

    q has twice the heads of k and v where the function takes that. Entries of the batch have
    positions of their own where positions have an axis for the batch.
    """
    rng = np.random.default_rng([batch, tokens])
    order = rng.permutation(np.arange(batch * tokens) % positions.shape[1])
    at = positions[:, ::-1][:, order].reshape(-1, batch, tokens)
    if "b" not in box.position_axes:
        at = np.broadcast_to(at[:, :1], at.shape)

    def call(q_heads: int) -> _Call:
        heads = [q_heads, box.heads, box.heads][: len(box.names)]
        vectors = [rng.standard_normal((batch, h, tokens, box.head_dim)) for h in heads]
        arguments = [box.put(x) for x in vectors]
        arrays = [np.array(box.read(x)) for x in arguments]  # as rounded to their dtype
        returned, results = box.run(arguments, at)
        every = zip(box.names, arrays, arguments, returned, strict=False)
        overwritten = [
            name
            for name, before, x, y in every
            if memory(x) != memory(y) and not np.array_equal(box.read(x), before)
        ]
        return _Call(arrays, at, results, overwritten)

    try:
        return call(2 * box.heads)
    except Refused:
        return call(box.heads)


def _compare(
    box: BlackBox, rope: RoPE, call: _Call, index: int, atol: float | None
) -> Iterator[Problem]:
    """Yield by how much one array of a call is off, and what explains it."""
    name, x, result = box.names[index], call.arrays[index], call.results[index]
    positions = call.positions[0] if rope.position_axes is None else call.positions

    def rotate(x: Floats) -> Floats:
        return x if name == "v" else np.asarray(rope.rotate(x, positions, axes="bhsd"))

    expected = rotate(x)
    allowed = _bound(box, rope, call.positions) * np.abs(x).max() if atol is None else atol
    allowed = np.broadcast_to(allowed, x.shape)
    off = np.abs(result - expected)
    if (off <= allowed).all():
        return
    excess = np.where(np.isfinite(off), off - allowed, np.inf)
    worst = np.unravel_index(excess.argmax(), x.shape)
    entry, head, token, _ = (int(i) for i in worst)
    at = call.positions[:, entry, token].tolist()
    what = (
        f"{name} at position {at[0] if len(at) == 1 else at} is off by {off[worst]:.3g}, and may "
        f"be by {allowed[worst]:.1g}: token {token} of {x.shape[2]}, head {head} of {x.shape[1]}, "
        f"batch entry {entry} of {x.shape[0]}"
    )
    for format_name, to in NARROW.items():
        if (np.abs(result - rotate(to(x))) <= allowed).all():
            yield Problem(
                f"{name} is rounded to {format_name} before it is rotated; {what}", "rounded"
            )
            return
    doubled = box.call([2 * array for array in call.arrays], call.positions)[index]
    if not (np.abs(doubled / 2 - result) <= allowed).all():
        what = f"it is not linear in {name}, as if it also normalised; {what}"
    vector = result[entry, head, token]
    close = allowed[entry, head, token]
    if (np.abs(vector - x[entry, head, token]) <= close).all():
        what += ", which is left as it is"
    same = (np.abs(vector - expected) <= close).all(axis=-1)
    if same.any():
        entry, head, token = (int(i) for i in np.argwhere(same)[0])
        what += f", which has the result of token {token}, head {head}, batch entry {entry}"
    yield Problem(what)


def _bound(box: BlackBox, rope: RoPE, positions: NDArray[np.int64]) -> Floats:
    """Return how far rotated numbers below 1 may be off, (batch, 1, tokens, head_dim)."""
    frequencies = np.abs(rope.frequencies(box.head_dim))[None]
    # Tables that multiply by 1 + frequency show which components a pair is written to.
    ones, sin = np.ones((1, box.head_dim)), np.zeros_like(frequencies)
    scaled = np.asarray(rope.with_tables(1.0 + frequencies, sin).rotate(ones, axes="sd"))
    angles = np.abs(positions).max(axis=0)[:, None, :, None] * (scaled - 1.0)
    relative = 16 * EPS[box.dtype] + PRODUCT * angles
    return np.asarray(max(1.0, rope.attention_factor) * relative + 1e-6)
