"""The encodings that RoFormer reviews, at random, against their sums in long double."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzz import bounds, cases, oracle
from support.fuzz.cases import Positions
from support.fuzz.libraries import LIBRARIES, Library, fuzzed
from support.fuzz.memory import View, lay
from support.fuzz.oracle import WIDE

from rope_xp.papers import encodings

pytestmark = [pytest.mark.fuzz, bounds.needs_long_double]
NAMES = (
    *("shaw", "shaw_values", "multiplicative", "deberta"),
    *("t5_bias", "tupe", "transformer_xl"),
)


@dataclass(frozen=True)
class Case:
    """A call of an encoding that gives scores, or reads values."""

    name: str
    batch: int
    tokens: int
    k_tokens: int
    k_heads: int
    group: int
    head_dim: int
    clip: int
    views: tuple[View, View]
    positions: Positions
    k_positions: Positions
    bidirectional: bool
    scale: float
    seed: int


@st.composite
def calls(draw: st.DrawFn) -> Case:
    batch, tokens, k_tokens, group, d = (draw(st.integers(1, 3)) for _ in range(5))
    at, k_at = (
        draw(cases.positions((batch,), n, 0, none=False).map(whole)) for n in (tokens, k_tokens)
    )
    return Case(
        draw(st.sampled_from(NAMES)), batch, tokens, k_tokens, draw(st.integers(1, 2)), group, d,
        draw(st.integers(1, 6)), tuple(draw(cases.views(4, ("float64",))) for _ in range(2)),
        at, k_at, draw(st.booleans()), draw(st.floats(0.1, 3)), draw(st.integers(0, 99)),
    )  # fmt: skip


def whole(positions: Positions) -> Positions:
    """Return positions as integers, which these functions take alone."""
    view = positions.view
    if "float" in view.dtype:
        view = replace(view, dtype="int64")
    return replace(positions, view=view)


_AT = Positions("list", (1,), "small", View("int64", (0,), (1,)))
_PLAIN = View("float64", (0, 1, 2, 3), (1, 1, 1, 1))
# Bytes in another order were taken for another dtype.
SWAPPED = Case(
    *("shaw", 1, 1, 1, 1, 1, 1, 1, (_PLAIN, replace(_PLAIN, swapped=True))),
    *(_AT, _AT, False, 1.0, 0),
)


@fuzzed(tuple(each for each in LIBRARIES if "float64" in each.floats and each.path is None))
@example(case=SWAPPED)
@given(case=calls())
def test_encodings(library: Library, case: Case) -> None:
    random, heads, d, clip = (
        np.random.default_rng(case.seed), case.k_heads * case.group, case.head_dim, case.clip,
    )  # fmt: skip
    (given_at, at), (given_k, k_at) = (p.given(library) for p in (case.positions, case.k_positions))
    first, second = (library.view(view, "float64") for view in case.views)
    _, k = lay((case.batch, case.k_tokens, case.k_heads, d), second)
    if case.name == "shaw_values":
        _, q = lay((case.batch, heads, case.tokens, case.k_tokens), first)
    else:
        _, q = lay((case.batch, case.tokens, heads, d), first)
    wide_q, wide_k = q.astype(WIDE), np.repeat(k.astype(WIDE), case.group, axis=2)
    at = np.broadcast_to(at, (case.batch, case.tokens))
    k_at = np.broadcast_to(k_at, (case.batch, case.k_tokens))
    apart = at[:, :, None].astype(np.int64) - k_at[:, None, :].astype(np.int64)
    if case.name == "transformer_xl" and np.abs(apart).max() >= (1 << 31) - 1:
        return

    def table(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    def entry(lowest: int, highest: int) -> np.ndarray:
        return np.clip(apart, lowest, highest) - lowest

    def buckets(far: int) -> np.ndarray:
        found = np.vectorize(lambda r: oracle.bucket(-r, 2 * clip + 2, far, case.bidirectional))
        return found(apart)

    more = {"positions": given_at, "k_positions": given_k}
    if case.name != "shaw_values":
        more["scale"] = case.scale
        content = np.einsum("bshd,bthd->bhst", wide_q, wide_k)
    if case.name in ("t5_bias", "tupe"):
        more |= {"max_distance": 50, "bidirectional": case.bidirectional}
        bias = table(2 * clip + 2, heads)
        added = np.moveaxis(bias.astype(WIDE)[buckets(50)], -1, 1)
    if case.name == "shaw":
        tables = [table(2 * clip + 1, d)]
        rows = tables[0].astype(WIDE)[entry(-clip, clip)]
        right = (content + np.einsum("bshd,bstd->bhst", wide_q, rows)) * case.scale
    elif case.name == "shaw_values":
        tables = [table(2 * clip + 1, d)]
        rows = tables[0].astype(WIDE)[entry(-clip, clip)]
        right = np.einsum("bhst,bthd->bshd", wide_q, wide_k)
        right = right + np.einsum("bhst,bstd->bshd", wide_q, rows)
    elif case.name == "multiplicative":
        tables = [table(2 * clip + 1, heads)]
        rows = tables[0].astype(WIDE)[entry(-clip, clip)]
        right = content * np.moveaxis(rows, -1, 1) * case.scale
    elif case.name == "deberta":
        tables = [table(2 * clip, heads, d), table(2 * clip, heads, d)]
        to_keys, to_queries = (t.astype(WIDE)[entry(-clip, clip - 1)] for t in tables)
        right = content + np.einsum("bshd,bsthd->bhst", wide_q, to_queries)
        right = (right + np.einsum("bthd,bsthd->bhst", wide_k, to_keys)) * case.scale
    elif case.name == "t5_bias":
        tables = [bias]
        right = content * case.scale + added
    elif case.name == "tupe":
        places = table(case.tokens, heads, d), table(case.k_tokens, heads, d)
        tables = [*places, bias]
        between = np.einsum("shd,thd->hst", *(place.astype(WIDE) for place in places))
        right = (content + between) * case.scale + added
    else:
        dim = 2 * clip
        tables = [table(heads, d), table(heads, d), table(heads, d, dim)]
        u, v, w = (t.astype(WIDE) for t in tables)
        turned = apart[..., None].astype(WIDE) * oracle.series(10_000, dim)
        waves = np.stack([np.sin(turned), np.cos(turned)], axis=-1).reshape(*apart.shape, dim)
        right = np.einsum("bshd,bthd->bhst", wide_q + u, wide_k)
        right = right + np.einsum("bshd,hde,bste->bhst", wide_q + v, w, waves)
        right = right * case.scale
    with library.chosen():
        arrays = [library.make(x) for x in (q, k, *tables)]
        got = library.back(getattr(encodings, case.name)(*arrays, **more))
    assert got.shape == right.shape
    # Sums of at most 3 * 12 products of numbers below 100; angles off by 2**-52 of themselves.
    size = (1 + np.abs(wide_q).max()) * (1 + np.abs(wide_k).max())
    off = 1e-12 + (np.abs(apart).max() * 1e-15 if case.name == "transformer_xl" else 0)
    assert np.abs(got - right).max() <= 100 * size * off
