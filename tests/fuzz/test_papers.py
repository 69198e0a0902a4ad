"""Attention and the encodings, at random, against loops over tokens in long double."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import bounds, cases, oracle
from support.fuzz.cases import Positions, Shape
from support.fuzz.libraries import LIBRARIES, Library, fuzzed
from support.fuzz.memory import View, lay
from support.fuzz.oracle import WIDE

from rope_xp import RoPE
from rope_xp.papers import attention, encodings

pytestmark = [pytest.mark.fuzz, bounds.needs_long_double]
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Pair:
    """q of (batch, tokens, heads, head_dim) and k of fewer heads, all float64."""

    batch: int
    tokens: int
    k_tokens: int
    k_heads: int
    group: int
    pairs: int
    views: tuple[View, View, View]
    positions: Positions
    k_positions: Positions
    rope: RoPE
    causal: bool
    scale: float | None
    seed: int


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    batch, tokens, k_tokens = (draw(st.integers(1, 3)) for _ in range(3))
    half = draw(st.integers(1, 4))
    rope = draw(cases.ropes(2 * half))
    parts = cases.components(rope)
    return Pair(
        batch, tokens, k_tokens, draw(st.integers(1, 2)), draw(st.integers(1, 2)), half,
        tuple(draw(cases.views(4, ("float64",))) for _ in range(3)),
        draw(cases.positions((batch,), tokens, parts, none=False)),
        draw(cases.positions((batch,), k_tokens, parts, none=False)),
        rope, draw(st.booleans()), draw(st.none() | st.floats(0.1, 3)), draw(st.integers(0, 99)),
    )  # fmt: skip


def softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    found = np.zeros_like(scores)
    for at in np.ndindex(scores.shape[:-1]):
        row, mine = scores[at], allowed[at]
        if mine.any():
            e = np.where(mine, np.exp(row - row[mine].max()), 0)
            found[at] = e / e.sum()
    return found


WIDELY = tuple(each for each in LIBRARIES if "float64" in each.floats and each.path is None)


_AT = Positions("list", (1, 2), "small", View("int8", (0, 1), (1, 1)))
_PLAIN = View("float64", (0, 1, 2, 3), (1, 1, 1, 1))
# torch's empty_like had put heads that are one behind head_dim, and kernels wrote past it.
HEADS_THAT_ARE_ONE = Pair(
    *(1, 2, 2, 2, 1, 2, (_PLAIN, View("float64", (1, 2, 3, 0), (1, 1, 0, 1)), _PLAIN)),
    *(_AT, _AT, RoPE(rotary_dim=2), False, None, 0),
)


@fuzzed(WIDELY)
@example(case=HEADS_THAT_ARE_ONE)
@given(case=pairs())
def test_attention(library: Library, case: Pair) -> None:
    heads, d = case.k_heads * case.group, 2 * case.pairs
    sizes = [(case.tokens, heads), (case.k_tokens, case.k_heads), (case.k_tokens, case.k_heads)]
    q, k, v = (
        lay((case.batch, *size, d), library.view(view, "float64"))[1]
        for size, view in zip(sizes, case.views, strict=True)
    )
    (given_at, at), (given_k, k_at) = (p.given(library) for p in (case.positions, case.k_positions))
    shape = Shape("bshd", True, {})
    right_q, bound_q = bounds.turned(q, shape, case.rope, at, inverse=False)
    right_k, bound_k = bounds.turned(k, shape, case.rope, k_at, inverse=False)
    right_k, bound_k, values = (
        np.repeat(x, case.group, axis=2) for x in (right_k, bound_k, v.astype(WIDE))
    )
    scale = case.scale if case.scale is not None else case.rope.softmax_scale / np.sqrt(WIDE(d))
    scores = np.einsum("bshd,bthd->bhst", right_q, right_k) * scale
    off = np.einsum("bshd,bthd->bhst", np.abs(right_q) + bound_q, np.abs(right_k) + bound_k) * scale
    # Of rotated q and k, and of a sum of d products.
    error = (
        np.einsum("bshd,bthd->bhst", np.abs(right_q), bound_k)
        + np.einsum("bshd,bthd->bhst", bound_q, np.abs(right_k) + bound_k)
    ) * scale + (d + 4) * 2.0**-53 * off
    more = {"k_positions": given_k, "scale": case.scale}
    with library.chosen():
        arrays = [library.make(x) for x in (q, k, v)]
        got = library.back(attention.scores(*arrays[:2], given_at, case.rope, **more))
        assert (np.abs(got - scores) <= error + 1e-300).all()
        allowed = np.ones(scores.shape, bool)
        if case.causal:
            allowed = np.tril(allowed)
        mask = np.random.default_rng(case.seed).random(scores.shape) < 0.7
        result = attention.attention(
            *arrays, given_at, case.rope, mask=library.make(mask), causal=case.causal, **more
        )
    weights = softmax(scores, allowed & mask)
    right = np.einsum("bhst,bthd->bshd", weights, values)
    # A softmax is off by twice the largest error of its scores, relatively.
    most = np.abs(values).max(initial=0) * (2 * error.max(initial=0) + 40 * 2.0**-53)
    assert (np.abs(library.back(result) - right) <= most).all()


@fuzzed(WIDELY)
@given(case=pairs())
def test_linear_attention_and_spans(library: Library, case: Pair) -> None:
    heads, d, tokens = case.k_heads * case.group, 2 * case.pairs, case.tokens
    q, k, v = (
        lay((case.batch, tokens, n, d), library.view(view, "float64"))[1]
        for n, view in zip((heads, case.k_heads, case.k_heads), case.views, strict=True)
    )
    given_at, at = case.positions.given(library)
    shape = Shape("bshd", True, {})

    def rotated(x: np.ndarray, group: int) -> np.ndarray:
        right, _ = bounds.turned(x, shape, case.rope, at, inverse=False)
        return np.repeat(right, group, axis=2)

    features = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k)]
    values = np.repeat(v.astype(WIDE), case.group, axis=2)
    over = np.einsum("bshd,bthd->bhst", rotated(features[0], 1), rotated(features[1], case.group))
    under = np.einsum(
        "bshd,bthd->bhst", features[0].astype(WIDE), np.repeat(features[1], case.group, axis=2)
    )
    if case.causal:
        over, under = np.tril(over), np.tril(under)
    weights = over / under.sum(-1, keepdims=True)
    linear = np.einsum("bhst,bthd->bshd", weights, values)
    spans = np.einsum("bshd,bthd->bhst", rotated(q, 1), rotated(k, case.group))
    spans = np.where(np.triu(np.ones((tokens, tokens), bool)), spans / np.sqrt(WIDE(d)), -1e12)
    with library.chosen():
        arrays = [library.make(x) for x in (q, k, v)]
        got = attention.linear_attention(*arrays, given_at, case.rope, causal=case.causal)
        got_spans = attention.global_pointer(*arrays[:2], given_at, case.rope)
    # Angles are off by 2**-52 of themselves, below 2**31 * 1; sums are of few numbers.
    angle = 1e-12 + np.abs(at).max() * case.rope.frequencies(d).max() * 2.0**-51
    most = np.abs(features[0]).sum(-1).max() * np.abs(features[1]).sum(-1).max()
    factor = case.rope.attention_factor**2 + 1
    off = angle * factor * most * (1 + np.abs(values).max()) * tokens / under[..., 0].min()
    assert np.abs(library.back(got) - linear).max() <= off
    most = (1 + np.abs(q)).sum(-1).max() * (1 + np.abs(k)).sum(-1).max()
    assert np.abs(library.back(got_spans) - spans).max() <= angle * factor * most


@dataclass(frozen=True)
class Buckets:
    """A call of t5_buckets."""

    relative: Positions
    half: int
    beyond: int
    bidirectional: bool


# array_api_compat does not clip bytes in the other order.
SWAPPED = Buckets(
    Positions("numpy", (4,), "small", View("int32", (0,), (1,), swapped=True)), 2, 0, True
)


@fuzzed()
@example(case=SWAPPED)
@given(
    case=st.builds(
        Buckets,
        cases.positions((3,), 4, 0, none=False),
        st.integers(2, 40),
        st.integers(0, 1 << 20),
        st.booleans(),
    )
)
def test_t5_buckets(library: Library, case: Buckets) -> None:
    if bounds.left_out(library, case.relative.view.seed) or "float" in case.relative.view.dtype:
        return
    given_at, at = case.relative.given(library)
    buckets = 2 * case.half
    far = (case.half if case.bidirectional else buckets) // 2 + 1 + case.beyond
    with library.chosen():
        got: Any = encodings.t5_buckets(given_at, buckets, far, case.bidirectional)
    got = library.back(got) if case.relative.kind == "library" else got
    for index in np.ndindex(at.shape):
        right = oracle.bucket(int(at[index]), buckets, far, case.bidirectional)
        assert got[index] == right, at[index]
