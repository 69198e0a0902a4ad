"""What a kernel is told of a call besides addresses: lengths, strides and tables, in one row.

It is the same for every call of a kind. So it is made once, and a call hands over addresses alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from rope_xp._core.call import RotationSpec
from rope_xp._core.memory import CollapsedDim, StridedLayout, collapse_dims

FEW = 8
"""Pairs that go together at least, but for the last ones of a head."""
BLOCK = 64
"""Tokens whose angles are held at once, in the first cache: 32 KB at head_dim 128."""
APART_FROM_BYTES = 1 << 22
HELD_BYTES = 1 << 21
"""Of angles that each thread holds, twice as many where components are mixed, if the tokens of a
head lie side by side, heads far apart, and arrays have ``APART_FROM_BYTES``: many tokens are read
in a row, so that memory streams, and a new page is filled soon after it is set to zero. In float32
4096 tokens at head_dim 128: on one core and two of Zen 4 they take 0.7 of the time of 64."""
OPERAND_FIELDS = (
    "heads",
    "x_batch",
    "x_token",
    "x_head",
    "y_batch",
    "y_token",
    "y_head",
    "x_skip",
    "y_skip",
)
TABLES = ("low", "middle", "high", "frequencies", "component")
FIELDS = (
    *("length", "block", "pairs", "inverse", "before", "behind"),
    *("use_tables", "implicit_positions", "has_fraction", "segments", "needs_select"),
    *TABLES,
    *("a_skip", "a_batch", "a_token", "a_segment", "b_skip", "b_batch", "b_token", "b_segment"),
    *(f"q_{name}" for name in OPERAND_FIELDS),
    *(f"k_{name}" for name in OPERAND_FIELDS),
)
"""Lengths are of axes, all else is in bytes. ``a`` and ``b`` are positions and what they have
after the point, or cos and sin, of which a segment is one component or number. The bounds of the
segments follow the fields, see :func:`segments`."""
_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class KernelKey(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    """Of q and k."""
    interleaved_in: bool
    """Whether pairs lie side by side, (2i, 2i+1), where they are read. Else they lie half apart,
    (i, i + r/2)."""
    interleaved_out: bool
    """Likewise where they are written."""

    @property
    def size(self) -> int:
        """Of an element, in bytes."""
        return _ITEMSIZE[self.dtype]

    @property
    def double(self) -> bool:
        """Whether arithmetic and angles have 64 bits. Else they have 32."""
        return self.dtype == "float64"

    @property
    def width(self) -> int:
        """Of a number in arithmetic, in bytes."""
        return 8 if self.double else 4


class Pair(NamedTuple):
    """How an array and its result lie, with the axes of the call, in bytes."""

    x: StridedLayout
    y: StridedLayout


@dataclass(frozen=True)
class Angles:
    """What a kernel is told of angles besides where they are.

    Parameters
    ----------
    pairs : int
        r/2.
    laid : tuple of Laid
        Of positions and their fractions, or of cos and sin: (batch..., tokens, any), in bytes.
        None at all where positions are counted.
    tables : tuple of int
        Addresses of Digits, of which the component's may be 0; empty where cos and sin are given.
    component : tuple of int
        Which component of positions each frequency reads; empty where there is one without an axis.
    """

    pairs: int
    laid: tuple[StridedLayout, ...]
    tables: tuple[int, ...]
    component: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a kernel is told. The tables must be kept for as long."""

    params: tuple[np.ndarray, ...]
    """One row of numbers for each launch."""
    addresses: tuple[int, ...]
    """Where these rows lie."""
    rows: int
    """Batches times tokens of a launch."""
    bytes: int
    """Of all arrays, without results."""


def plan(operands: Sequence[Pair], angles: Angles, spec: RotationSpec, itemsize: int) -> Plan:
    """Return what a kernel is told of one array or two, which share their angles."""
    axes, use_tables = spec.axes, bool(angles.tables)
    laid = [each for pair in operands for each in pair]
    of_angles = [StridedLayout(a.shape[:-1], a.strides[:-1]) for a in angles.laid]
    found = collapse_dims(axes.batch_tokens, laid, of_angles)
    alone = CollapsedDim(1, (0,) * (len(laid) + max(len(of_angles), 1)))
    if not of_angles and not (found and found[-1].steps[-1]):
        found.append(alone)  # a single token, which is the last axis all the same
    found = [alone] * (2 - len(found)) + found
    *outer, batch, token = found
    sizes = [itemsize * int(np.prod(pair.x.shape)) for pair in operands]
    segment_bounds, needs_select = segments(angles.component, angles.pairs)
    block = BLOCK
    if sum(sizes) >= APART_FROM_BYTES and any(
        _heads_apart(pair.x, axes.heads, token.steps[2 * i]) for i, pair in enumerate(operands)
    ):
        block = max(BLOCK, HELD_BYTES // (2 * max(itemsize, 4) * angles.pairs))
    told: dict[str, int] = {
        "length": token.length,
        "block": min(block, token.length),
        "pairs": angles.pairs,
        "inverse": spec.inverse,
        "before": spec.rotary_offset * itemsize,
        "behind": (laid[0].shape[-1] - spec.rotary_offset - 2 * angles.pairs) * itemsize,
        "use_tables": use_tables,
        "implicit_positions": not angles.laid,
        "has_fraction": use_tables and len(angles.laid) > 1,
        "segments": len(segment_bounds),
        "needs_select": needs_select,
        **dict(zip(TABLES, angles.tables, strict=False)),
    }
    for i, pair in enumerate(operands):
        name, x, y = "qk"[i], 2 * i, 2 * i + 1
        told[f"{name}_heads"] = 1 if axes.heads is None else pair.x.shape[axes.heads]
        for end, which, of in (("x", x, pair.x), ("y", y, pair.y)):
            told[f"{name}_{end}_batch"] = batch.steps[which]
            told[f"{name}_{end}_token"] = token.steps[which]
            told[f"{name}_{end}_head"] = 0 if axes.heads is None else of.strides[axes.heads]
    for i, a in enumerate(angles.laid):
        name, which = "ab"[i], len(laid) + i
        told[f"{name}_batch"], told[f"{name}_token"] = batch.steps[which], token.steps[which]
        told[f"{name}_segment"] = a.strides[-1]
    skips = [f"{'qk'[i // 2]}_{'xy'[i % 2]}_skip" for i in range(len(laid))]
    skips += [f"{'ab'[i]}_skip" for i in range(len(angles.laid))]
    params = []
    for index in product(*(range(row.length) for row in outer)):
        for which, name in enumerate(skips):
            told[name] = sum(i * row.steps[which] for i, row in zip(index, outer, strict=True))
        row = [told.get(name, 0) for name in FIELDS]
        params.append(np.array(row + [n for segment in segment_bounds for n in segment], np.int64))
    places = tuple([row.ctypes.data for row in params])
    return Plan(tuple(params), places, batch.length * token.length, sum(sizes))


def _heads_apart(x: StridedLayout, heads: int | None, step: int) -> bool:
    """Return whether heads lie farther apart than tokens, of which two lie this far."""
    return heads is not None and x.shape[heads] > 1 and abs(x.strides[heads]) > abs(step)


def segments(component: Sequence[int], pairs: int) -> tuple[list[tuple[int, int, int]], bool]:
    """Return stretches of frequencies, (component, first, end), and whether they are mixed.

    Then each component has one stretch, of all frequencies, of which it wants its own.
    """
    if not component:
        return [(0, 0, pairs)], False
    starts = [i for i, c in enumerate(component) if i == 0 or c != component[i - 1]]
    components = max(component) + 1
    if len(starts) > components:
        return [(c, 0, pairs) for c in range(components)], True
    # In whole steps: what lies behind a stretch is written again by the next.
    operands = [a + -(-(b - a) // FEW) * FEW for a, b in pairwise([*starts, pairs])]
    return [(component[a], a, min(b, pairs)) for a, b in zip(starts, operands, strict=True)], False
