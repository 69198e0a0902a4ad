"""Strategies of arguments of calls: shapes and axes, ropes, positions, and where arrays lie."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rope_xp import RoPE, scaling
from support.equality import LAYOUTS
from support.fuzz.libraries import INTEGERS
from support.fuzz.memory import View, lay
from support.rules import Only
from support.targets import ALL_FLOATS

LIMIT = 1 << 31
EDGES = (0, 1, 2047, 2048, 2049, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, LIMIT - 2, LIMIT - 1)
# The largest float32 below the limit, bfloat16 among them, and the largest float16.
LARGEST = {"float16": 6e4, "bfloat16": 2.0**30, "float32": 2.0**30}
HEAD_DIMS = st.integers(2, 12) | st.sampled_from([16, 34, 64, 70, 80, 96, 128])
BASES = st.sampled_from([1e4, 5e5]) | st.floats(1.5, 1e9)
FACTORS = st.floats(0.25, 64.0)


@lru_cache
def views(ndim, dtypes, any_memory):
    steps = [1] * 6 + [2, 3, 0] + [-1, -2] * any_memory
    return st.builds(
        View,
        st.sampled_from(dtypes),
        st.just(tuple(range(ndim))) | st.permutations(range(ndim)).map(tuple),
        st.just((1,) * ndim) | st.tuples(*[st.sampled_from(steps)] * ndim),
        st.sampled_from([False] * 3 + [any_memory]),
        st.sampled_from([0, 0, 0, 1, 2, 4, 8] if any_memory else [0, 0, 8]),
        st.integers(0, 1 << 16),
    )


def repeat(count, elements):
    """Return a strategy of tuples of so many elements, few of which differ."""
    few = st.lists(elements, min_size=1, max_size=4)
    return few.map(lambda some: tuple((some * count)[:count]))


def turned_anew(rope, head_dim):
    """Return a strategy of ropes that rotate the same components by other angles."""
    pairs = (rope.rotary_dim or head_dim) // 2
    axes = repeat(pairs, st.integers(0, 2))
    yarn = partial(scaling.YaRN, original_max_position_embeddings=4096)
    scalings = [
        st.builds(scaling.Linear, FACTORS),
        st.builds(yarn, FACTORS, attention_factor=st.none() | FACTORS),
        st.builds(Only, repeat(pairs, st.floats(-4, 4))),
    ]
    return st.builds(
        partial(replace, rope),
        base=BASES,
        scaling=st.none() | st.one_of(scalings),
        position_axes=st.one_of(st.none(), st.none(), axes),
    )


@st.composite
def ropes(draw, head_dim):
    r = 2 * draw(st.integers(1, head_dim // 2))
    offset = draw(st.integers(0, head_dim - r))
    whole = r == head_dim and draw(st.booleans())
    rope = RoPE(
        layout=draw(st.sampled_from(LAYOUTS)),
        rotary_dim=None if whole else r,
        rotary_offset=offset - head_dim if offset and draw(st.booleans()) else offset,
    )
    return draw(turned_anew(rope, head_dim))


@st.composite
def numbers(draw, dtype, shape):
    """Return positions within the limit, of one size, as numbers that the dtype can hold."""
    top, whole = draw(st.sampled_from([1 << 11, 1 << 22, LIMIT])), dtype in INTEGERS
    highest = min(top - 1, np.iinfo(dtype).max if whole else LARGEST.get(dtype, LIMIT))
    lowest = max(-highest, np.iinfo(dtype).min) if whole else -highest
    edges = [e for edge in EDGES for e in (edge, -edge) if lowest <= e <= highest]
    between = st.integers(lowest, highest) if whole else st.floats(-highest, highest)
    kind = np.int64 if whole else np.float64
    return draw(arrays.arrays(kind, shape, elements=between | st.sampled_from(edges)))


@st.composite
def positions(draw, library, rope, batch, tokens, kinds=("list", "numpy", "library")):
    """Return positions for (batch..., tokens) as they are given, and as exact numbers."""
    batch = batch[draw(st.integers(0, len(batch))) :]
    shape = (*(draw(st.sampled_from([n, 1])) for n in batch), tokens)
    if shape == (1,) and draw(st.booleans()):
        shape = ()
    if rope.position_axes is not None:
        shape = (max(rope.position_axes) + 1, *shape)
    kind = draw(st.sampled_from(kinds))
    if kind == "none":
        return None, None
    own = kind == "library"
    dtypes = library.integers + library.floats if own else INTEGERS + ALL_FLOATS
    view = draw(views(len(shape), dtypes, library.any_memory or not own))
    _, x = lay(shape, view, draw(numbers(view.dtype, shape)))
    exact = x.astype(np.longdouble)
    if kind == "list" and 0 not in shape[:-1]:  # lists within an empty list have no shape
        return x.astype(np.int64 if view.dtype in INTEGERS else np.float64).tolist(), exact
    return (library.make(x) if own else x), exact


@dataclass(frozen=True)
class Shape:
    axes: str
    named: bool  # whether the names are passed, or are those by default
    sizes: dict[str, int]

    def of(self, **other):
        return tuple({**self.sizes, **other}[a] for a in self.axes)

    @property
    def given(self):
        return self.axes if self.named else None

    @property
    def batch(self):
        return tuple(self.sizes[a] for a in self.axes if a not in "shd")


@st.composite
def shapes(draw):
    batch, heads = "bcefgi"[: draw(st.integers(0, 5))], draw(st.booleans())
    named = (bool(batch) and not heads) or draw(st.booleans())
    letters = batch + "s" + "h" * heads
    axes = ("".join(draw(st.permutations(letters))) if named else letters) + "d"
    sizes = {a: draw(st.sampled_from([1, 2, 2, 3, 0])) for a in batch}
    few = np.prod(list(sizes.values()), dtype=int) <= 12
    tokens = st.integers(0, 5) | st.sampled_from([9, 65, 130])
    sizes |= {"s": draw(tokens if few else st.integers(0, 3)), "h": draw(st.integers(0, 4))}
    many = np.prod(list(sizes.values()), dtype=int) > 400
    return Shape(axes, named, sizes | {"d": draw(st.integers(2, 12) if many else HEAD_DIMS)})
