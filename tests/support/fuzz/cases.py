"""Strategies: all arguments of a call, as plain data that a failing example is printed as."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from rope_xp import RoPE, scaling
from support.equality import LAYOUTS
from support.fuzz.memory import View, lay
from support.targets import ALL_FLOATS, numpy_dtype

LIMIT = 1 << 31
EDGES = (0, 1, 2047, 2048, 2049, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, LIMIT - 2, LIMIT - 1)
POSITIONS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *ALL_FLOATS,
)


@dataclass(frozen=True)
class Positions:
    kind: str  # none, list, numpy, or library for an array of the library
    shape: tuple[int, ...]
    how: str  # counted, small, signed, large, edges, fractions
    view: View

    def numbers(self, dtype):
        random, shape = np.random.default_rng(self.view.seed), self.shape
        count = np.prod(shape, dtype=int)
        numbers = {
            "counted": lambda: np.arange(count).reshape(shape) + 70_000,
            "small": lambda: random.integers(0, 2048, shape),
            "signed": lambda: random.integers(-5000, 5000, shape),
            "large": lambda: random.integers(1 - LIMIT, LIMIT, shape),
            "edges": lambda: random.choice(EDGES, shape) * random.choice([1, -1], shape),
            "fractions": lambda: (
                random.uniform(-1, 1, shape) * random.choice([2, 300, 1e5, 1e9], shape)
            ),
        }[self.how]()
        kind, numbers = numpy_dtype(dtype), np.asarray(numbers)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            numbers = np.trunc(numbers).astype(np.int64)
            numbers = np.abs(numbers) if kind.kind == "u" else numbers
            lowest, highest = max(limits.min, 1 - LIMIT), min(limits.max, LIMIT - 1)
            return np.clip(numbers, lowest, highest).astype(kind)
        most = {"float16": 6e4, "float64": LIMIT - 1}.get(dtype, 2.0**30)
        return np.clip(numbers, -most, most).astype(kind)

    def given(self, library):
        if self.kind == "none":
            return None, None
        view, dtype = self.view, self.view.dtype
        if self.kind == "library":
            dtype = library.number(dtype)
            view = library.view(view, dtype)
        numbers = self.numbers(dtype)
        if self.kind == "list":
            double = numbers.astype(np.float64 if numbers.dtype.kind not in "iu" else np.int64)
            return double.tolist(), double
        _, x = lay(self.shape, view, numbers)
        exact = x.astype(np.longdouble)
        return (library.make(x) if self.kind == "library" else x), exact


@lru_cache
def views(ndim, dtypes=ALL_FLOATS):
    steps = [1, 1, 1, 1, 1, 1, 2, -1, -2, 3, 0]
    plain = st.just(tuple(range(ndim)))
    ones = st.just((1,) * ndim)
    return st.builds(
        View,
        st.sampled_from(dtypes),
        plain | st.permutations(range(ndim)).map(tuple),
        ones | st.tuples(*[st.sampled_from(steps)] * ndim),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([0, 0, 0, 1, 2, 4, 8]),
        st.integers(0, 1 << 16),
    )


@st.composite
def positions(draw, batch, tokens, components, *, none=True):
    """Return positions of so many components that broadcast to (batch..., tokens)."""
    kept = draw(st.integers(0, len(batch)))
    lead = [draw(st.sampled_from([n, 1])) for n in batch[len(batch) - kept :]]
    shape = (*lead, tokens)
    if tokens == 1 and not lead and draw(st.integers(0, 3)) == 0:
        shape = ()
    if components:
        shape = (components, *shape)
    kind = draw(_KINDS)
    # Lists within an empty list have no shape.
    if (kind == "none" and not none) or (kind == "list" and 0 in shape[:-1]):
        kind = "numpy"
    return Positions(kind, shape, draw(_HOW), draw(views(len(shape), POSITIONS)))


_factors = st.floats(0.25, 64.0)
_trained = st.integers(2, 1 << 20)
_BASES = st.sampled_from([1e4, 5e5]) | st.floats(1.5, 1e9)
_KINDS = st.sampled_from(["list", "numpy", "numpy", "library", "library", "none"])
_HOW = st.sampled_from(["small", "signed", "large", "edges", "fractions", "counted"])


def _yarn(factor, trained, slow, wider, truncate, scale):
    return scaling.YaRN(
        factor, trained, slow * wider, slow, truncate=truncate, mscale=scale[0],
        mscale_all_dim=scale[1], attention_factor=scale[2],
    )  # fmt: skip


@lru_cache
def rules(r):
    known = [
        st.builds(scaling.Linear, _factors),
        st.builds(
            _yarn, _factors, _trained, st.floats(0.1, 8), st.floats(1, 64), st.booleans(),
            st.sampled_from([(None, None, None), (0.7, 1, None), (0, 1, None), (None, None, 1.5)]),
        ),
        st.builds(
            lambda f, t, low, wider: scaling.Llama3(f, low, low * wider, t),
            _factors, _trained, st.floats(0.1, 8), st.floats(1, 16),
        ),
        st.builds(scaling.Proportional, st.floats(0.01, 1.0), _factors),
        st.builds(
            lambda a, b, t, f, n: scaling.LongRoPE(
                (a * (r // 2))[: r // 2], (b * (r // 2))[: r // 2], t, f, length=n
            ),
            *[st.tuples(_factors, _factors, _factors)] * 2, _trained, _factors, _trained,
        ),
    ]  # fmt: skip
    if r >= 4:
        known.append(st.builds(scaling.NTK, _factors))
        known.append(st.builds(scaling.DynamicNTK, _factors, _trained, _trained))
        known.append(
            st.builds(
                lambda n, order, bases: scaling.Axial(
                    order=order, sections=(2 * n, r - 2 * n), bases=bases
                ),
                st.integers(1, r // 2 - 1), st.sampled_from(["blocks", "alternating"]),
                st.none() | st.tuples(_BASES, _BASES),
            )
        )  # fmt: skip
    axes = [a for a in (1, 2, 3) if r % (2 * a) == 0]
    orders = st.sampled_from(["blocks", "alternating", "strided"])
    known.append(st.builds(scaling.Axial, st.sampled_from(axes), orders))
    return st.one_of(known)


@st.composite
def ropes(draw, head_dim, *, like=None):
    if like is not None:
        r = like.rotary_dim or head_dim
        same = {"layout": like.layout, "rotary_dim": r, "rotary_offset": like.rotary_offset}
    else:
        r = 2 * draw(st.integers(1, head_dim // 2))
        offset = draw(st.integers(0, head_dim - r))
        if offset and draw(st.booleans()):
            offset -= head_dim
        whole = r == head_dim and draw(st.booleans())
        layout = draw(st.sampled_from(LAYOUTS))
        same = {"layout": layout, "rotary_dim": None if whole else r, "rotary_offset": offset}
    base = draw(_BASES)
    scaled = draw(rules(r)) if draw(st.booleans()) else None
    axes = None
    if getattr(scaled, "axes", 1) > 1 or draw(st.integers(0, 3)) == 0:
        pattern = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        axes = tuple((pattern * (r // 2))[: r // 2])
    return RoPE(base=base, scaling=scaled, position_axes=axes, **same)


def components(rope):
    return 0 if rope.position_axes is None else max(rope.position_axes) + 1


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


HEAD_DIMS = st.integers(2, 12) | st.sampled_from([16, 34, 64, 70, 80, 96, 128])
_TOKENS = st.integers(0, 5) | st.sampled_from([9, 65, 130])


@st.composite
def shapes(draw):
    ndim = draw(st.integers(2, 8))
    if draw(st.booleans()):
        axes = "sd" if ndim == 2 else "bcefgijk"[: ndim - 3] + "shd"
        named = draw(st.booleans())
    else:
        heads = ndim > 2 and draw(st.booleans())
        letters = "bcefgijk"[: ndim - 2 - heads] + "s" + "h" * heads
        axes, named = "".join(draw(st.permutations(letters))) + "d", True
    sizes = {a: draw(st.sampled_from([1, 2, 2, 3, 0])) for a in axes if a not in "shd"}
    few = np.prod(list(sizes.values()), dtype=int) > 12
    sizes["s"] = draw(st.integers(0, 3) if few else _TOKENS)
    if "h" in axes:
        sizes["h"] = draw(st.integers(0, 4))
    many = np.prod(list(sizes.values()), dtype=int) > 400
    sizes["d"] = draw(st.integers(2, 12) if many else HEAD_DIMS)
    return Shape(axes, named, sizes)


@dataclass(frozen=True)
class Out:
    kind: str
    """none, new, same, the other array of a call (swapped), or moved: overlapping what is read."""
    view: View
    by: int = 0
    backwards: int | None = None


@lru_cache
def outs(ndim):
    kinds = ["none", "none", "new", "new", "same", "same", "swapped", "moved"]
    return st.builds(
        Out,
        st.sampled_from(kinds),
        views(ndim),
        st.integers(-40, 40),
        st.none() | st.integers(0, ndim - 1),
    )
